"""Health, readiness, metrics and the OpenAPI document."""

import asyncio
import os
import time
from collections import Counter
from typing import Any

import pytest

from app.api.http.errors import STATUSES, ErrorOut
from app.api.receipt import Receipt
from app.api.request import AnswerRequest
from app.api.status import Readiness
from app.errors import UpstreamTimeout, UpstreamUnavailable
from tests.fakes.artifacts import an_uncertified_fit
from tests.fakes.gateway import ASKED, FakeGateway, matching, publish
from tests.waiting import until

from .conftest import Open


async def ready(gateway: FakeGateway, status: int) -> Readiness:
    """What /readyz says after a refresh, with the expected status."""
    await gateway.refresh()
    response = await gateway.client.get("/readyz")
    assert response.status_code == status, response.text
    return Readiness.model_validate(response.json())


async def test_an_observer_that_fails_is_counted(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is still sent."""
    assert await gateway.metric("background_failures_total", task="observers") == 0

    def broken(*_: object) -> None:
        raise RuntimeError("no room left")

    monkeypatch.setattr("app.telemetry.decisions.PrometheusObserver.observe", broken)
    assert (await gateway.ask()).status_code == 200
    assert await gateway.metric("background_failures_total", task="observers") == 1


async def test_healthz_needs_no_part(gateway: FakeGateway) -> None:
    """The process is up, even if upstreams are down."""
    gateway.reader.fail_with = UpstreamUnavailable("reader", "down")
    response = await gateway.client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok", "worker": os.getpid()})


async def test_ready(gateway: FakeGateway) -> None:
    """With every upstream up, all are `ok`, and the served calibrator is named."""
    state = await ready(gateway, 200)
    assert state.ready
    assert state.upstreams == {"reader": "ok", "embedder": "ok", "vectors": "ok"}
    assert (state.calibrator.version, state.calibrator.certified, state.calibrator.problem) == (
        "2026-01-31-0a1b2c3d",
        True,
        "",
    )


@pytest.mark.parametrize(("part", "status"), [("reader", 503), ("embedder", 200), ("vectors", 200)])
async def test_readiness_names_the_part(gateway: FakeGateway, part: str, status: int) -> None:
    """The failing upstream is shown with its error, the others stay ok. Without a search, questions are answered."""
    getattr(gateway, part).fail_with = UpstreamTimeout(part, f"the {part} sleeps")
    state = await ready(gateway, status)
    assert state.state == ("degraded" if status == 200 else "down")
    assert (await gateway.ask()).status_code == status
    assert state.upstreams.pop(part) == f"the {part} sleeps"
    assert set(state.upstreams.values()) == {"ok"}
    getattr(gateway, part).fail_with = None
    assert (await ready(gateway, 200)).state == "ready"


async def test_draining(gateway: FakeGateway) -> None:
    """Load balancers get a 503 and callers an answer, and each reply ends its connection."""
    assert "connection" not in (await gateway.ask()).headers
    gateway.app.state.gateway.snapshots.draining = True
    assert (await ready(gateway, 503)).state == "draining"
    reply = await gateway.ask()
    assert (reply.status_code, reply.headers["connection"]) == (200, "close")


async def test_a_part_that_does_not_reply(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ping that hangs times out."""
    monkeypatch.setattr("app.telemetry.snapshot.PING_TIMEOUT_S", 0.05)
    monkeypatch.setattr(gateway.reader, "_turn", asyncio.Event().wait)
    state = await ready(gateway, 503)
    assert state.upstreams["reader"] == "no reply within 0.05 s"


async def test_looking_at_the_gateway_calls_no_upstream(open_gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes, scrapes and dashboards read the last pings, however often they ask."""
    monkeypatch.setattr("app.wiring.gateway.PING_EVERY_S", 3600.0)
    monkeypatch.setattr("app.api.status.STALE_S", 3600.0)
    async with open_gateway(artifact={}) as gateway:
        pings = gateway.reader.pings
        gateway.reader.fail_with = gateway.embedder.fail_with = UpstreamUnavailable("reader", "down")
        gateway.vectors.fail_with = UpstreamUnavailable("vectors", "down")
        for _ in range(100):
            for path in ("/readyz", "/metrics", "/dashboard/data", "/breakeven"):
                assert (await gateway.client.get(path)).status_code == 200
        assert gateway.reader.pings == pings


async def test_a_part_that_dies_shows_at_the_next_ping(open_gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway pings on its own; readiness, metric and dashboard agree."""
    monkeypatch.setattr("app.wiring.gateway.PING_EVERY_S", 0.02)
    async with open_gateway(artifact={}) as gateway:
        gateway.vectors.fail_with = UpstreamUnavailable("vectors", "down")

        async def degraded() -> bool:
            return (await gateway.client.get("/readyz")).json()["state"] == "degraded"

        await until(degraded)
        assert await gateway.metric("upstream_up", part="vectors") == 0
        assert (await gateway.client.get("/dashboard/data")).json()["upstreams"]["vectors"] == "down"


async def test_a_missing_collection(open_gateway: Open) -> None:
    """A gateway without its collection is not ready, and says how to create it."""
    async with open_gateway(collection=False) as gateway:
        state = await ready(gateway, 503)
        assert "fetchwise ingest" in state.upstreams["vectors"]


@pytest.mark.parametrize(
    ("artifact", "problem", "version"),
    [
        (None, "no calibrator", "none"),
        ({"max_tokens": 24}, "max_tokens: fitted on 24, running 48", "none"),
        ({"policies": {"graded": an_uncertified_fit()}}, "certificate", "2026-01-31-0a1b2c3d"),
    ],
    ids=["none", "mismatched", "uncertified"],
)
async def test_a_calibrator_that_does_not_decide(
    open_gateway: Open, artifact: dict[str, Any] | None, problem: str, version: str
) -> None:
    """The gateway is ready, `/readyz` has the reason, and the metric shows the version as not certified."""
    async with open_gateway(artifact=artifact) as gateway:
        state = await ready(gateway, 200)
        assert problem in state.calibrator.problem
        assert not state.calibrator.certified
        assert await gateway.metric("calibrator_info", version=version, status="uncertified") == 1


async def test_a_new_calibrator_is_taken_up(open_gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A published calibrator is served without a restart."""
    monkeypatch.setattr("app.wiring.gateway.CALIBRATOR_EVERY_S", 0.02)
    async with open_gateway() as gateway:
        publish(gateway.settings.calibration.where, await matching(gateway.reader, gateway.embedder))

        async def certified() -> bool:
            return (await ready(gateway, 200)).calibrator.certified

        await until(certified)
        assert await gateway.metric("calibrator_info", version="2026-01-31-0a1b2c3d", status="certified") == 1
        assert await gateway.metric("calibrator_info", version="none", status="uncertified") == 0


async def test_metrics_equal_the_receipts(gateway: FakeGateway) -> None:
    """Each counter is the sum over the receipts."""
    await gateway.receipt(policy="always")
    before = await gateway.metrics()
    receipts = []
    nothing = {"filter": {"lang": "tlh"}}
    for p, body in [(0.875, {}), (0.625, {}), (0.375, {}), (0.375, nothing), (0.1, {"policy": "never"}), (0.875, {})]:
        gateway.reader.says(ASKED, "Paris", k=0, sure=p)
        receipts.append(await gateway.receipt(**body))
    after = await gateway.metrics()

    def grown(name: str, **labels: str) -> float:
        key = (f"fetchwise_{name}", tuple(sorted(labels.items())))
        return after.get(key, 0.0) - before.get(key, 0.0)

    counted = Counter((r["action"], str(r["k"]), r["decision"]["reason"]) for r in receipts)
    assert len(counted) == 5
    for (action, k, reason), number in counted.items():
        assert grown("requests_total", action=action, k=k, reason=reason) == number
        assert grown("request_duration_seconds_count", action=action, k=k) >= number
    for k in ("0", "1", "5"):
        of_k = [receipt for receipt in receipts if str(receipt["k"]) == k]
        assert grown("passages_read_total", k=k) == sum(receipt["usage"]["passages"] for receipt in of_k)
        total = sum(receipt["timings_ms"]["total"] for receipt in of_k) / 1000
        seconds = sum(grown("request_duration_seconds_sum", action=action, k=k) for action in (f"k{k}", "abstain"))
        assert seconds == pytest.approx(total, abs=1e-5)
        for stage in ("probe", "read"):
            used = [receipt["usage"][stage] for receipt in of_k if receipt["usage"][stage]]
            for kind in ("prompt", "completion"):
                tokens = sum(usage[f"{kind}_tokens"] for usage in used)
                assert grown("tokens_total", stage=stage, kind=kind, k=k) == tokens
        for stage in ("probe", "embed", "search", "read"):
            spent = [r["timings_ms"][stage] for r in of_k if r["timings_ms"][stage] is not None]
            assert grown("stage_duration_seconds_count", stage=stage, k=k) == len(spent)
            assert grown("stage_duration_seconds_sum", stage=stage, k=k) == pytest.approx(sum(spent) / 1000, abs=1e-5)
    assert grown("searches_total", use="read") == 2
    assert grown("searches_total", use="unread") == 1
    assert grown("p_closed_book_count") == len(receipts)
    assert grown("p_closed_book_sum") == pytest.approx(sum(r["decision"]["p_closed_book"] for r in receipts))
    assert grown("in_flight") == grown("shed_total") == 0


async def test_failures_are_counted_once(gateway: FakeGateway) -> None:
    """A failed upstream is counted once per question, whether or not the question is answered."""
    gateway.reader.says(ASKED, "Paris", k=0, sure=0.375)
    gateway.vectors.fail_with = UpstreamUnavailable("vectors", "down")
    assert (await gateway.ask()).status_code == 200
    assert (await gateway.ask(retrieval="required")).status_code == 503
    gateway.reader.fail_with = UpstreamTimeout("reader", "slow")
    assert (await gateway.ask()).status_code == 503
    assert await gateway.metric("upstream_errors_total", upstream="vectors", kind="unavailable") == 2
    assert await gateway.metric("upstream_errors_total", upstream="reader", kind="timeout") == 1


async def test_work_under_way_and_work_refused(open_gateway: Open) -> None:
    """Questions in flight are a gauge, and those refused a counter."""
    async with open_gateway(max_in_flight=2, queue=0) as gateway:
        async with gateway.busy(2):
            assert (await gateway.ask()).status_code == 429
            assert (await gateway.metric("in_flight"), await gateway.metric("shed_total")) == (2, 1)
        assert await gateway.metric("in_flight") == 0
        assert gateway.reader.cancelled == 2
        assert (await gateway.ask()).status_code == 200


async def test_metrics_answer_without_a_redirect(gateway: FakeGateway) -> None:
    """A plain `curl /metrics` gets the metrics."""
    response = await gateway.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert "fetchwise_in_flight" in response.text
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    response = await gateway.client.get("/metrics", headers=accept)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


async def test_two_gateways_do_not_share_metrics(open_gateway: Open, gateway: FakeGateway) -> None:
    """Each application has its own registry."""
    async with open_gateway() as other:
        await other.receipt(policy="always")
        assert await other.metric("passages_read_total", k="5") == 5
        assert await gateway.metric("passages_read_total", k="5") == 0


async def test_the_lifespan_closes_every_part(open_gateway: Open) -> None:
    """The lifespan closes all upstreams."""
    async with open_gateway() as gateway:
        assert not any(part.closed for part in (gateway.reader, gateway.embedder, gateway.vectors))
    assert all(part.closed for part in (gateway.reader, gateway.embedder, gateway.vectors))


async def test_openapi_documents_every_status(gateway: FakeGateway) -> None:
    """Every status of the error table is documented for /answer, in the usual shape."""
    schema = (await gateway.client.get("/openapi.json")).json()
    responses = schema["paths"]["/answer"]["post"]["responses"]
    # A conflict is feedback's.
    can_happen = {status for _, status, _ in STATUSES} - {409}
    assert set(responses) == {"200", "400", "408", "413", "500"} | {str(status) for status in can_happen}
    for status, response in responses.items():
        wanted = "Receipt" if status == "200" else "ErrorOut"
        reference = response["content"]["application/json"]["schema"]["$ref"]
        assert reference == f"#/components/schemas/{wanted}", status
        assert response["description"]
    ready_responses = schema["paths"]["/readyz"]["get"]["responses"]
    assert set(ready_responses) == {"200", "503"}
    assert "HTTPValidationError" not in schema["components"]["schemas"]


async def test_openapi_examples_are_real(gateway: FakeGateway) -> None:
    """Every example is valid, and the example requests are answered."""
    components = (await gateway.client.get("/openapi.json")).json()["components"]["schemas"]
    examples = components["AnswerRequest"]["examples"]
    assert examples
    for example in examples:
        AnswerRequest.model_validate(example)
        assert (await gateway.client.post("/answer", json=example)).status_code == 200
    # FastAPI leaves nulls out of the document, so the examples themselves are checked.
    for example in Receipt.model_config["json_schema_extra"]["examples"]:
        assert Receipt.model_validate(example).model_dump(mode="json") == example
    for name in ("AnswerRequest", "Receipt", ErrorOut.__name__):
        assert components[name]["description"]


async def test_the_event_loops_lag_is_measured(gateway: FakeGateway) -> None:
    """Blocking the loop shows as a lag of about that time."""

    async def shown() -> bool:
        time.sleep(0.6)  # noqa: ASYNC251 - it is to block
        await asyncio.sleep(0)
        few = await gateway.metric("event_loop_lag_seconds_bucket", le="0.25")
        return await gateway.metric("event_loop_lag_seconds_count") > few

    await until(shown)
