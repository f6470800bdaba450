"""Calibrators promoted and rolled back repeatedly under load: no request fails, and receipts name the version."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.calibrators.store import ArtifactStore
from app.core.artifact import Thresholds
from app.core.effective_policy import Graded
from tests.e2e.processes import Gateway, command_environment, fetchwise, from_each_worker, gateway
from tests.fakes.artifacts import a_fit, an_identity
from tests.waiting import until, wait_until
from tests.wire.paper_costs import PaperUpstream

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
ROUNDS, WORKERS = 25, 2
PAUSE_S = 0.1
# Under each version the same answer leads to another number of passages.
VERSIONS = {"v0": Thresholds(0.1, 0.0), "v1": Thresholds(0.7, 0.5), "v2": Thresholds(1.0, 1.0)}


async def publish(upstream: PaperUpstream, folder: Path) -> None:
    for version, thresholds in VERSIONS.items():
        fit = a_fit(thresholds.tau0, thresholds.tau1)
        await upstream.publish_gate(folder, version=version, policies={"graded": fit})


async def ask_until(done: asyncio.Event, url: str, receipts: list[dict[str, Any]]) -> None:
    """Ask without a pause, with a new connection now and then so that every worker gets requests."""
    while not done.is_set():
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            for _ in range(25):
                response = await client.post("/answer", json={"question": f"What is number {len(receipts)}?"})
                assert response.status_code == 200, response.text
                receipts.append(response.json())


async def change(store: ArtifactStore, done: asyncio.Event, receipts: list[dict[str, Any]]) -> None:
    """Promote another version and roll back, faster than workers check; then each in turn until it has served."""
    rng = random.Random(60)
    try:
        for _ in range(ROUNDS):
            served = store.current()
            await asyncio.to_thread(store.promote, rng.choice([one for one in VERSIONS if one != served]))
            await asyncio.sleep(PAUSE_S)
            assert await asyncio.to_thread(store.rollback) == served
            await asyncio.sleep(PAUSE_S)
            # Both in turn, so each is served.
            await asyncio.to_thread(store.promote, rng.choice(list(VERSIONS)))
        for version in VERSIONS:
            await asyncio.to_thread(store.promote, version)
            await until(lambda served=version: receipts[-1]["decision"]["calibrator"]["version"] == served)
    finally:
        done.set()


async def under_load(store: ArtifactStore, url: str) -> list[dict[str, Any]]:
    done, receipts = asyncio.Event(), list[dict[str, Any]]()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(6):
            tasks.create_task(ask_until(done, url, receipts))
        tasks.create_task(change(store, done, receipts))
    return receipts


def test_no_question_fails_and_no_receipt_mixes_two_versions(tmp_path: Path, upstream: PaperUpstream) -> None:
    """Every question is answered under an existing version, with the thresholds of that version."""
    folder = tmp_path / "calibrators"
    asyncio.run(publish(upstream, folder))
    store = ArtifactStore(folder)
    with gateway(tmp_path, workers=str(WORKERS), **upstream.settings(folder)) as running:
        receipts = asyncio.run(under_load(store, running.url))
        used = Counter(receipt["decision"]["calibrator"]["version"] for receipt in receipts)
        assert set(used) == set(VERSIONS)
        for receipt in receipts:
            decision = receipt["decision"]
            thresholds = VERSIONS[decision["calibrator"]["version"]]
            assert (decision["thresholds"]["tau0"], decision["thresholds"]["tau1"]) == (
                thresholds.tau0,
                thresholds.tau1,
            )
            graded = Graded(thresholds, 1, 5)
            assert receipt["k"] == graded.choose(decision["p_closed_book"])[0]
        assert len(store.history()) >= 2 * ROUNDS
        follows(running, store.current())
        assert "Traceback" not in running.log.read_text()


def follows(running: Gateway, version: str | None) -> None:
    """Wait until every worker serves this version."""

    def all_serve() -> bool:
        seen = from_each_worker(running, WORKERS, lambda client: client.get("/calibrators").json()["serving"])
        return set(seen.values()) == {version}

    wait_until(all_serve, f"not every worker serves {version}")


def test_running_gateway_follows_promote_and_rollback(tmp_path: Path, upstream: PaperUpstream) -> None:
    """The gateway follows the commands within seconds; both the command and the gateway refuse an unusable artifact."""
    folder = tmp_path / "calibrators"
    asyncio.run(publish(upstream, folder))
    store = ArtifactStore(folder)
    env = command_environment(tmp_path, calibrators=str(folder))
    with gateway(tmp_path, workers=str(WORKERS), **upstream.settings(folder)) as running:
        follows(running, "v2")
        assert fetchwise("calibrators", "promote", "v0", env=env).returncode == 0
        follows(running, "v0")
        assert fetchwise("calibrators", "rollback", env=env).returncode == 0
        follows(running, "v2")
        (folder / "torn.json").write_text("{")
        refused = fetchwise("calibrators", "promote", "torn", env=env)
        assert refused.returncode == 1
        assert "torn.json is not JSON" in refused.stderr
        asyncio.run(upstream.publish_gate(folder, version="foreign", identity=an_identity(reader="another")))
        assert store.current() == "foreign"

        def status() -> dict[str, Any]:
            said: dict[str, Any] = httpx.get(f"{running.url}/calibrators", timeout=30).json()
            return said

        wait_until(lambda: "does not match the running system" in status()["problem"], "the mismatch is not reported")
        said = status()
        assert (said["current"], said["serving"]) == ("foreign", "v2")
