"""`GET /calibrators`, revocation over HTTP, and answers drawn for feedback."""

import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from app.calibrators import drift
from app.calibrators.listing import CalibratorList
from app.calibrators.store import ArtifactStore
from app.core.artifact import Thresholds
from tests.e2e.postgres import PostgresServer
from tests.fakes.gateway import FakeGateway, fake_gateway, matching
from tests.waiting import until

from .conftest import Open


async def calibrator(gateway: FakeGateway) -> dict[str, Any]:
    """The calibrator in the reply of `/readyz`."""
    await gateway.refresh()
    said = (await gateway.client.get("/readyz")).json()["calibrator"]
    assert isinstance(said, dict)
    return said


async def listed(gateway: FakeGateway, **query: Any) -> CalibratorList:
    response = await gateway.client.get("/calibrators", params=query)
    assert response.status_code == 200, response.text
    return TypeAdapter(CalibratorList).validate_python(response.json())


async def test_the_folder_is_listed(gateway: FakeGateway) -> None:
    """Versions newest first, the served one, the identity of each, and the problem of those that cannot be served."""
    store = ArtifactStore(gateway.settings.calibration.where)
    store.publish(await matching(gateway.reader, gateway.embedder, version="3-foreign", max_tokens=24))
    (Path(store.where) / "4-broken.json").write_text("{")
    found = await listed(gateway)
    assert found.current == found.serving == "2026-01-31-0a1b2c3d"
    assert found.problem == ""
    by_version = {one.version: one for one in found.versions}
    assert list(by_version) == ["4-broken", "3-foreign", "2026-01-31-0a1b2c3d"]
    assert "not JSON" in by_version["4-broken"].problem
    assert by_version["4-broken"].policies is None
    assert "max_tokens: fitted on 24, running 48" in by_version["3-foreign"].problem
    served = by_version["2026-01-31-0a1b2c3d"]
    assert (served.current, served.serving, served.certified, served.problem) == (True, True, True, "")
    assert served.identity is not None
    assert served.identity.reader == "fake"
    assert served.policies is not None
    assert served.policies["graded"].thresholds == Thresholds(0.75, 0.5)
    assert served.policies["graded"].certificate is not None
    assert [(change.version, change.by) for change in found.changes] == [("2026-01-31-0a1b2c3d", "promote")]
    assert [one.version for one in (await listed(gateway, limit=1)).versions] == ["4-broken"]


async def test_a_rejected_current_is_reported(gateway: FakeGateway) -> None:
    """If CURRENT cannot be served, both versions are listed and the problem says which one is served."""
    store = ArtifactStore(gateway.settings.calibration.where)
    artifact = await matching(gateway.reader, gateway.embedder, version="foreign", max_tokens=24)
    store.publish(artifact)
    store.promote("foreign")

    async def refused() -> bool:
        return bool((await listed(gateway)).problem)

    await until(refused)
    found = await listed(gateway)
    assert (found.current, found.serving) == ("foreign", "2026-01-31-0a1b2c3d")
    assert "the previous one keeps serving" in found.problem
    reply = await gateway.receipt()
    assert reply["decision"]["calibrator"]["version"] == "2026-01-31-0a1b2c3d"


async def test_no_folder_is_no_error(open_gateway: Open) -> None:
    """Before the first refit the list is empty, and the problem says what that means."""
    async with open_gateway() as gateway:
        found = await listed(gateway)
        assert (found.current, found.serving, found.versions, found.changes) == (None, None, (), ())
        assert "no calibrator" in found.problem


async def test_an_invalid_folder_is_reported(gateway: FakeGateway) -> None:
    """A broken CURRENT is a problem in the reply, not an error."""
    (gateway.settings.calibration.where / "CURRENT").write_text("../x")
    found = await listed(gateway)
    assert found.current is None
    assert "does not name a version" in found.problem


@pytest.mark.parametrize("limit", ["0", "501", "many"])
async def test_an_invalid_limit_is_a_422(gateway: FakeGateway, limit: str) -> None:
    """The error has the usual shape."""
    response = await gateway.client.get("/calibrators", params={"limit": limit})
    assert response.status_code == 422
    assert response.json()["error"]["fields"][0]["field"].endswith("limit")


async def wrong(gateway: FakeGateway, times: int) -> list[dict[str, Any]]:
    """Ask, and send feedback that every answer was wrong."""
    receipts = []
    for _ in range(times):
        receipt = await gateway.receipt()
        reply = await gateway.client.post("/feedback", json={"id": receipt["id"], "correct": False})
        assert reply.status_code == 200, reply.text
        receipts.append(receipt)
    return receipts


def wait_for_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the waiting time pass for everything that was asked so far."""
    later = time.time() + 86_400.0
    monkeypatch.setattr(drift, "now", lambda: later)


async def test_feedback_revokes_until_another_version(open_gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong answers shown as sure take the calibrator out of force: its fallback serves, and everyone says so.

    A restart does not forget it, even where only the log is left, and a new version is clean.
    """
    monkeypatch.setattr("app.wiring.gateway.DRIFT_EVERY_S", 0.02)
    monkeypatch.setattr("app.wiring.gateway.CALIBRATOR_EVERY_S", 0.02)
    async with open_gateway(artifact={}, solicit_share=1.0) as gateway:
        before = await wrong(gateway, 40)
        assert before[0]["decision"]["reason"] == "confident"
        assert all(receipt["feedback_wanted"] for receipt in before)
        assert not (await calibrator(gateway))["revoked"]
        wait_for_verdicts(monkeypatch)

        async def revoked() -> bool:
            return bool((await calibrator(gateway))["revoked"])

        await until(revoked)
        state = await calibrator(gateway)
        assert not state["certified"]
        assert "is revoked, its fallback k is read" in state["problem"]
        receipt = await gateway.receipt()
        assert (receipt["k"], receipt["decision"]["reason"]) == (1, "not_certified")
        assert not receipt["decision"]["calibrator"]["certified"]
        assert await gateway.metric("calibrator_revoked") == 1
        assert await gateway.metric("calibrator_info", status="revoked", version="2026-01-31-0a1b2c3d") == 1
        (version,) = (await listed(gateway)).versions
        assert version.problem.startswith("revoked: recent confidences exceed")
    async with open_gateway(artifact={}, solicit_share=1.0) as again:
        assert (await calibrator(again))["revoked"]
        (again.settings.server.data_dir / "revoked.json").unlink()
    async with open_gateway(artifact={}, solicit_share=1.0) as from_log:
        assert (await calibrator(from_log))["revoked"]
        store = ArtifactStore(from_log.settings.calibration.where)
        store.publish(await matching(from_log.reader, from_log.embedder, version="new"))
        store.promote("new")
        clean = {"version": "new", "certified": True, "problem": "", "revoked": False}

        async def repaired() -> bool:
            return clean.items() <= (await calibrator(from_log)).items()

        await until(repaired)


@pytest.mark.e2e
async def test_a_revocation_reaches_every_gateway_of_a_database(
    open_gateway: Open, tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gateways on different disks that share a PostgreSQL log share revocations, without each testing for itself."""
    shared = {"artifact": {}, "solicit_share": 1.0, "decision_log": postgres.database()}
    monkeypatch.setattr("app.wiring.gateway.CALIBRATOR_EVERY_S", 0.02)
    monkeypatch.setattr("app.wiring.gateway.DRIFT_EVERY_S", 3600.0)
    async with fake_gateway(tmp_path / "elsewhere", **shared) as other:
        monkeypatch.setattr("app.wiring.gateway.DRIFT_EVERY_S", 0.02)
        async with open_gateway(**shared) as gateway:
            await wrong(gateway, 40)
            wait_for_verdicts(monkeypatch)

            async def revoked() -> bool:
                return bool((await calibrator(other))["revoked"])

            await until(revoked)


async def test_unsolicited_feedback_does_not_count(open_gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsolicited feedback is not a random sample: it is stored, and revokes nothing."""
    async with open_gateway(artifact={}, solicit_share=0.0) as gateway:
        receipts = await wrong(gateway, 60)
        assert not any(receipt["feedback_wanted"] for receipt in receipts)
    wait_for_verdicts(monkeypatch)
    async with open_gateway(artifact={}, solicit_share=0.0) as again:
        # A start reads the whole log before it serves.
        assert not (await calibrator(again))["revoked"]
        assert (await again.metrics())["fetchwise_drift_evidence", ()] == 0


async def test_alert_only_shows(open_gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """With FETCHWISE_DRIFT_ACTION=alert the metric shows the evidence, and the calibrator stays in use."""
    monkeypatch.setattr("app.wiring.gateway.DRIFT_EVERY_S", 0.02)
    async with open_gateway(artifact={}, solicit_share=1.0, drift_action="alert") as gateway:
        await wrong(gateway, 40)
        wait_for_verdicts(monkeypatch)

        async def shown() -> bool:
            await gateway.refresh()
            return await gateway.metric("drift_evidence") >= 1.0

        await until(shown)
        assert not (await calibrator(gateway))["revoked"]
        receipt = await gateway.receipt()
        assert receipt["decision"]["reason"] == "confident"


async def test_no_feedback_is_requested_without_a_log(open_gateway: Open) -> None:
    """Without a decision log no feedback is requested, and drift is not tested."""
    async with open_gateway(artifact={}, solicit_share=1.0, decision_log="off") as gateway:
        assert not (await gateway.receipt())["feedback_wanted"]
        assert ("fetchwise_drift_evidence", ()) not in await gateway.metrics()
