"""Limits: permits, the queue, refusals and deadlines."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from app.api.http.errors import ErrorOut, as_openai
from app.errors import UpstreamUnavailable
from tests.fakes.gateway import ASKED, FakeGateway
from tests.waiting import until

from .conftest import Open, OpenKeyed
from .replies import check_shape
from .served import HEALTHZ, head, post, served

BODY = json.dumps({"question": ASKED}).encode()


@asynccontextmanager
async def in_line(gateway: FakeGateway, *, waiting: int = 0) -> AsyncIterator[list["asyncio.Task[httpx.Response]"]]:
    """Take the only permit and fill the queue with so many questions."""
    async with gateway.busy() as working:
        tasks = [asyncio.create_task(gateway.ask()) for _ in range(waiting)]
        await queued(gateway, waiting)
        yield [*working, *tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def queued(gateway: FakeGateway, number: int) -> None:
    """Wait until the queue has so many questions."""

    async def reached() -> bool:
        return await gateway.metric("queued") == number

    await until(reached)


async def test_a_question_waits_in_line_for_a_permit(open_gateway: Open) -> None:
    """A queued question is answered when a permit is free; receipt and metrics include the wait."""
    async with open_gateway(max_in_flight=1, queue=1, queue_wait_s=60) as gateway:
        async with in_line(gateway, waiting=1) as (working, waiting):
            assert gateway.reader.calls == 1
            working.cancel()
            response = await waiting
        assert response.status_code == 200
        timings = response.json()["timings_ms"]
        assert (await gateway.metric("queued"), await gateway.metric("shed_total")) == (0, 0)
        assert await gateway.metric("queue_wait_seconds_count") == 1
        waited = await gateway.metric("queue_wait_seconds_sum")
        assert waited > 0
        assert timings["total"] >= waited * 1000 + timings["read"]


async def test_a_stream_waits_in_line_too(open_gateway: Open) -> None:
    """A streamed question that waits too long is refused with a status, not with an event."""
    async with open_gateway(max_in_flight=1, queue=1, queue_wait_s=60) as gateway, gateway.busy() as (working,):
        asking = asyncio.create_task(gateway.events())
        await queued(gateway, 1)
        working.cancel()
        assert (await asking)[-1][0] == "final"
    async with open_gateway(max_in_flight=1, queue=1, queue_wait_s=0.01) as gateway, gateway.busy():
        refused = await gateway.ask(stream=True)
        check_shape(refused, 429, "overloaded")


async def test_a_stream_gives_its_permit_back(open_gateway: Open) -> None:
    """The permit is released after success and after failure; the failure is counted."""
    async with open_gateway(artifact={}, max_in_flight=1, queue=0) as gateway:
        assert (await gateway.events())[-1][0] == "final"
        gateway.reader.fail_with, gateway.reader.fail_on_k = UpstreamUnavailable("reader", "gone"), 5
        assert (await gateway.events("Who?", policy="always"))[-1][0] == "error"
        assert await gateway.metric("upstream_errors_total", upstream="reader", kind="unavailable") == 1
        assert (await gateway.events())[-1][0] == "final"
        assert await gateway.metric("in_flight") == 0


async def test_who_waits_too_long_is_refused(open_gateway: Open) -> None:
    """A wait that is too long is refused."""
    async with open_gateway(max_in_flight=1, queue=4, queue_wait_s=0.01) as gateway, gateway.busy():
        check_shape(await gateway.ask(), 429, "overloaded")
        assert (await gateway.metric("queued"), await gateway.metric("shed_total")) == (0, 1)
        assert await gateway.metric("in_flight") == 1
    assert gateway.reader.cancelled == 1


async def test_the_time_in_line_is_part_of_the_questions_time(open_gateway: Open) -> None:
    """A question whose deadline passes in the queue is refused."""
    async with open_gateway(max_in_flight=1, queue=4, queue_wait_s=3600) as gateway, gateway.busy():
        refused = await gateway.ask(timeout_ms=10)
        check_shape(refused, 429, "overloaded")


async def test_a_client_that_leaves_the_line_gives_its_place_up(open_gateway: Open) -> None:
    """Its place in the queue is free, and the permit goes to a client that still waits."""
    async with open_gateway(max_in_flight=1, queue=1, queue_wait_s=60) as gateway:
        async with served(gateway) as server, gateway.busy() as (working,):
            async with server.connection() as leaving:
                leaving.send(post("/answer", BODY))
                await queued(gateway, 1)
            await queued(gateway, 0)
            async with server.connection() as staying:
                staying.send(post("/answer", BODY))
                await queued(gateway, 1)
                working.cancel()
                assert (await staying.reply()).status == 200
        # One hung, one was answered; the one that left was never read for.
        assert gateway.reader.calls == 2
        assert await gateway.metric("in_flight") == 0


@pytest.mark.parametrize("path", ["/answer", "/v1/chat/completions"])
async def test_past_the_line_nothing_is_read_and_no_key_is_looked_at(open_keyed: OpenKeyed, path: str) -> None:
    """Every request gets the same refusal, in the shape of its route."""
    async with open_keyed(max_in_flight=1, queue=0) as keyed:
        gateway = keyed.gateway
        await gateway.app.state.gateway.permits.take()
        for content in (b"{}", b"not JSON", BODY):
            refused = await gateway.client.post(path, content=content)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.headers["content-type"] == "application/json"
            assert refused.headers["x-request-id"]
            assert refused.headers["cache-control"] == "no-store"
            said = refused.json()
            if path == "/answer":
                assert ErrorOut.model_validate(said).error.type == "overloaded"
            else:
                _, expected = as_openai(429, "overloaded", said["error"]["message"], [])
                assert said == expected
                assert (said["error"]["type"], said["error"]["code"]) == ("rate_limit_error", "overloaded")
        gateway.app.state.gateway.permits.give_back()
        assert (await gateway.client.post(path, content=BODY)).status_code == 401


async def test_only_questions_are_refused(open_gateway: Open) -> None:
    """Operators and feedback are still served, and a wrong method is still a 405."""
    async with open_gateway(max_in_flight=1, queue=0) as gateway, gateway.busy():
        for path in ("/healthz", "/readyz", "/metrics", "/breakeven", "/"):
            assert (await gateway.client.get(path)).status_code == 200
        check_shape(await gateway.client.get("/answer"), 405, "method_not_allowed")
        feedback = await gateway.client.post("/feedback", json={"id": "0" * 24, "correct": True})
        check_shape(feedback, 404, "unknown_decision")


async def test_a_flood_leaves_one_line(open_gateway: Open, caplog: pytest.LogCaptureFixture) -> None:
    """Refusals are counted, and logged once."""
    async with open_gateway(max_in_flight=1, queue=0) as gateway, gateway.busy():
        with caplog.at_level(logging.INFO, logger="app"):
            for _ in range(50):
                await gateway.ask()
        said = [record for record in caplog.records if record.name.startswith("app.api")]
        assert [(record.levelname, record.name) for record in said] == [("WARNING", "app.api.http.permits")]
        assert await gateway.metric("shed_total") == 50


@pytest.mark.parametrize("late", [False, True], ids=["body with the head", "body after the refusal"])
async def test_a_refused_connection_can_be_used_again(open_gateway: Open, late: bool) -> None:
    """The unread body is discarded, and the next request on the connection is parsed."""
    async with (
        open_gateway(max_in_flight=1, queue=0) as gateway,
        served(gateway) as server,
        gateway.busy(),
        server.connection() as connection,
    ):
        for _ in range(3):
            connection.send(head("/answer", len(BODY)))
            if not late:
                connection.send(BODY)
            assert (await connection.reply()).status == 429
            if late:
                connection.send(BODY)
            connection.send(HEALTHZ)
            assert (await connection.reply()).status == 200


async def test_a_refused_client_of_another_origin_hears_why(open_gateway: Open) -> None:
    """A refusal has the CORS headers, because a browser hides it otherwise."""
    async with open_gateway(max_in_flight=1, queue=0, cors_origins="https://a.example") as gateway, gateway.busy():
        refused = await gateway.ask(headers={"origin": "https://a.example"})
        check_shape(refused, 429, "overloaded")
        assert refused.headers["access-control-allow-origin"] == "https://a.example"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reader_that_outlasts_the_question(gateway: FakeGateway, stream: bool) -> None:
    """The call is cancelled, the error names the upstream, and the permit is released."""
    gateway.reader.hang = True
    error = check_shape(await gateway.ask(timeout_ms=20, stream=stream), 503, "deadline_passed")
    assert "reader" in error.error.message
    assert gateway.reader.cancelled == gateway.reader.calls == 1
    assert await gateway.metric("upstream_errors_total", upstream="reader", kind="deadline") == 1
    assert await gateway.metric("in_flight") == 0


async def test_the_servers_own_limit_holds(open_gateway: Open) -> None:
    """A request may shorten the deadline, never extend it."""
    async with open_gateway(request_timeout_s=0.02) as gateway:
        gateway.reader.hang = True
        response = await gateway.ask(timeout_ms=600_000)
        check_shape(response, 503, "deadline_passed")
