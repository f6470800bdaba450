"""Every request moves the metrics of its route: failures, refusals and streams included."""

import pytest

from app.api.app import VERSION
from app.errors import UpstreamUnavailable
from tests.fakes.gateway import FakeGateway

from .conftest import Open
from .keyed import Keyed

REQUESTS = "fetchwise_http_requests_total"


async def counted(gateway: FakeGateway) -> dict[tuple[str, str], float]:
    """The requests so far by route and code, without zeros and without the scrapes themselves."""
    found = {}
    for (name, labels), value in (await gateway.metrics()).items():
        if name == REQUESTS and value:
            by = dict(labels)
            found[by["route"], by["code"]] = value
    return {key: value for key, value in found.items() if key[0] != "/metrics"}


async def test_every_request_is_counted_by_route_and_code(gateway: FakeGateway) -> None:
    """Paths without a route share one label, so that nobody can make a new one."""
    await gateway.receipt()
    await gateway.client.post("/answer", json={"question": ""})
    await gateway.client.get("/readyz")
    await gateway.client.get("/static/base.css")
    for path in ("/wp-admin", "/answer/../x", "/v1/models/nobody"):
        await gateway.client.get(path)
    assert await counted(gateway) == {
        ("/answer", "200"): 1,
        ("/answer", "422"): 1,
        ("/readyz", "200"): 1,
        ("/static", "200"): 1,
        ("/v1/models/{model}", "404"): 1,
        ("other", "404"): 2,
    }


async def test_unexpected_errors_are_counted(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is a 500 of its route."""

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("app.answer.answer.Answerer.answer", broken)
    for _ in range(21):
        assert (await gateway.ask()).status_code == 500
    assert await counted(gateway) == {("/answer", "500"): 21}


async def test_failed_and_refused_questions_are_counted(open_gateway: Open) -> None:
    """A 503 of an upstream, and a 429 before the body is read."""
    async with open_gateway(artifact={}, max_in_flight=1, queue=0) as gateway:
        gateway.reader.fail_with = UpstreamUnavailable("reader", "down")
        assert (await gateway.ask()).status_code == 503
        gateway.reader.fail_with = None
        async with gateway.busy():
            assert (await gateway.ask()).status_code == 429
        found = await counted(gateway)
        assert (found["/answer", "503"], found["/answer", "429"]) == (1, 1)
        assert await gateway.metric("in_flight_limit") == 1


async def test_a_stream_that_fails_is_a_failure(gateway: FakeGateway) -> None:
    """Its status was 200 when it began; it counts with the status of its error."""
    gateway.reader.fail_with = UpstreamUnavailable("reader", "gone")
    (*_, (event, _)) = await gateway.events(policy="always")
    assert event == "error"
    assert await counted(gateway) == {("/answer", "503"): 1}
    assert await gateway.metric("http_request_duration_seconds_count", route="/answer") == 0


async def test_durations_and_first_tokens(gateway: FakeGateway) -> None:
    """A stream has a first token before its end; a whole reply has both at once, and an error neither."""
    await gateway.events()
    await gateway.receipt()
    await gateway.client.post("/answer", json={"question": ""})
    first, whole = "time_to_first_token_seconds", "http_request_duration_seconds"
    for name in (first, whole):
        assert await gateway.metric(f"{name}_count", route="/answer") == 2
        assert await gateway.metric(f"{name}_bucket", route="/answer", le="120.0") == 2
    assert (
        0
        < await gateway.metric(f"{first}_sum", route="/answer")
        < await gateway.metric(f"{whole}_sum", route="/answer")
    )


async def test_a_work_route_starts_at_zero(gateway: FakeGateway) -> None:
    """A rate needs the zero before the first failure."""
    found = [dict(labels) for name, labels in await gateway.metrics() if name == REQUESTS]
    assert {one["code"] for one in found if one["route"] == "/answer"} == {"200", "429", "500", "503"}


async def test_version_and_readiness(gateway: FakeGateway) -> None:
    """The running version, no keys, and whether questions can be answered."""
    assert await gateway.metric("build_info", version=VERSION) == 1
    assert await gateway.metric("keys_info", revision="none") == 1
    assert await gateway.metric("ready") == 1
    gateway.reader.fail_with = UpstreamUnavailable("reader", "down")
    await gateway.refresh()
    assert await gateway.metric("ready") == 0


async def test_a_new_key_is_another_revision(keyed: Keyed) -> None:
    """Gateways with the same keys show the same revision."""
    keys = keyed.gateway.app.state.gateway.guard.keys
    before = keys.revision
    _, key = keyed.make()
    await keyed.known(key)
    said = (await keyed.send("GET", "/metrics", keyed.operator)).text
    assert keys.revision != before
    assert f'fetchwise_keys_info{{revision="{keys.revision}"}} 1.0' in said


async def test_first_failures_are_seen(gateway: FakeGateway) -> None:
    """A rate misses the first increment of a counter that appears late: bugs of all routes, refused connections."""
    found = await gateway.metrics()
    zero = {(dict(labels)["route"], dict(labels)["code"]) for (name, labels), value in found.items()
            if name == REQUESTS and value == 0}  # fmt: skip
    assert {("/readyz", "500"), ("/dashboard", "500"), ("other", "500"), ("other", "503")} <= zero
