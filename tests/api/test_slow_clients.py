"""Slow clients, and a server that stops: over real sockets, with short timeouts."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from app.api.http.errors import ErrorOut
from app.api.http.protocol import MAX_HEAD_BYTES, MAX_PIPELINED
from tests.fakes.gateway import ASKED, FakeGateway
from tests.waiting import PATIENCE_S, until

from .conftest import Open
from .served import HEALTHZ, Connection, Reply, connected, head, post, served

BODY = json.dumps({"question": ASKED}).encode()
SHORT_S = 0.2


def check_shape(reply: Reply, status: int, kind: str) -> None:
    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
    assert reply.headers["connection"] == "close"
    assert ErrorOut.model_validate(reply.json).error.type == kind


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /answer HTT",
        b"POST /answer HTTP/1.1\r\nhost: gateway\r\nx-slow: ",
        head("/answer", len(BODY)),
        head("/answer", len(BODY)) + BODY[:-1],
        head("/nowhere", 7),
        b"POST /answer HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
    ids=["line", "head", "no body", "part of a body", "another route", "chunks"],
)
@pytest.mark.parametrize("used", [False, True], ids=["new connection", "used connection"])
async def test_a_request_that_does_not_come_in_whole(open_gateway: Open, sent: bytes, used: bool) -> None:
    """The response is a 408, the connection is closed, and no upstream is called."""
    async with connected(open_gateway(client_timeout_s=SHORT_S)) as (gateway, _, slow):
        if used:
            slow.send(HEALTHZ)
            assert (await slow.reply()).status == 200
        slow.send(sent)
        reply = await slow.reply()
        if b"/nowhere" in sent:
            # The body is not needed for this reply, and is not waited for longer than any other.
            assert reply.status == 404
        else:
            check_shape(reply, 408, "request_timeout")
        assert await slow.rest() == b""
        assert gateway.reader.calls == 0


@pytest.mark.parametrize(("sent", "said"), [(b"", b""), (b"\r\n", b"HTTP/1.1 408 ")], ids=["nothing", "line breaks"])
async def test_a_connection_on_which_nothing_is_asked(open_gateway: Open, sent: bytes, said: bytes) -> None:
    """An idle connection is closed."""
    async with connected(open_gateway(client_timeout_s=SHORT_S)) as (_, _, idle):
        idle.send(sent)
        assert (await idle.rest())[:13] == said


async def test_bytes_now_and_then_buy_no_time(open_gateway: Open) -> None:
    """The timeout is for the whole request, however steadily its bytes arrive."""

    async def trickle(connection: Connection) -> None:
        for byte in b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 10_000:
            connection.send(bytes([byte]))
            await asyncio.sleep(0.01)

    async with connected(open_gateway(client_timeout_s=SHORT_S)) as (_, _, slow):
        trickling = asyncio.create_task(trickle(slow))
        check_shape(await slow.reply(), 408, "request_timeout")
        trickling.cancel()


async def test_a_client_that_leaves_in_mid_body(gateway: FakeGateway, caplog: pytest.LogCaptureFixture) -> None:
    """It is not an error: the log says that the client left."""
    access = "app.api.http.middleware"

    def logged() -> list[str]:
        """The lines of the request log."""
        return [record.getMessage() for record in caplog.records if record.name == access]

    with caplog.at_level(logging.INFO, logger=access):
        async with served(gateway) as server, server.connection() as leaving:
            leaving.send(head("/answer", len(BODY)) + BODY[:-1])
            await until(lambda: server.server.server_state.tasks)
            leaving.writer.close()
            await until(logged)
    assert [line[:17] for line in logged()] == ["POST /answer 499 "]


async def test_work_is_not_a_slow_request(open_gateway: Open) -> None:
    """A complete request has no receive timeout any more, also if it arrived in pieces."""
    async with connected(open_gateway(client_timeout_s=SHORT_S)) as (gateway, _, patient):
        gateway.reader.hang = True
        patient.send(head("/answer", len(BODY)))
        await asyncio.sleep(0)
        patient.send(BODY)
        await until(lambda: gateway.reader.calls)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(patient.reader.read(1), 3 * SHORT_S)
        assert gateway.reader.cancelled == 0


async def test_an_endless_head(gateway: FakeGateway) -> None:
    """A head that is too large is refused."""
    async with served(gateway) as server, server.connection() as endless:
        endless.send(b"GET /healthz HTTP/1.1\r\nx-long: " + b"y" * (MAX_HEAD_BYTES + 1))
        check_shape(await endless.reply(), 431, "head_too_large")


async def test_an_endless_head_behind_a_question(gateway: FakeGateway) -> None:
    """The next head is bounded while the first request is answered."""
    gateway.reader.hang = True
    async with served(gateway) as server, server.connection() as endless:
        endless.send(post("/answer", BODY))
        await until(lambda: gateway.reader.calls)
        endless.send(b"GET /healthz HTTP/1.1\r\nx-long: " + b"y" * (MAX_HEAD_BYTES + 1))
        check_shape(await endless.reply(), 431, "head_too_large")
        await until(lambda: gateway.reader.cancelled == 1)


async def test_what_is_not_http(gateway: FakeGateway) -> None:
    """Bytes that are not HTTP get an error in the usual shape."""
    async with served(gateway) as server, server.connection() as odd:
        odd.send(b"\x16\x03\x01\x02\x00\x01")
        check_shape(await odd.reply(), 400, "invalid_request")


async def test_below_v1_the_shape_is_openais(open_gateway: Open) -> None:
    """The error has the shape of the path."""
    async with connected(open_gateway(client_timeout_s=SHORT_S)) as (_, _, slow):
        slow.send(head("/v1/chat/completions", 100))
        reply = await slow.reply()
        assert reply.status == 408
        assert reply.json["error"].keys() == {"message", "type", "param", "code"}


async def asking(gateway: FakeGateway, connection: Connection, **more: Any) -> None:
    """Ask a question, and return when the reader has it."""
    gateway.reader.hang = True
    connection.send(post("/answer", json.dumps({"question": ASKED} | more).encode()))
    await until(lambda: gateway.reader.calls)


async def stopped(server: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await server.serving


async def test_an_answer_under_way_ends_before_the_server_does(open_gateway: Open, monkeypatch: Any) -> None:
    """On a stop signal it accepts nothing new, closes idle connections, and lets the answer finish."""
    go_on = asyncio.Event()
    async with (
        open_gateway(artifact={}) as gateway,
        served(gateway) as server,
        server.connection() as idle,
        server.connection() as waiting,
    ):
        idle.send(HEALTHZ)
        await idle.reply()
        turn = gateway.reader._turn

        async def held(*args: Any) -> None:
            await go_on.wait()
            await turn(*args)

        monkeypatch.setattr(gateway.reader, "_turn", held)
        await asking(gateway, waiting)
        gateway.reader.hang = False
        server.stop()
        assert await idle.rest() == b""
        with pytest.raises(ConnectionError):
            async with server.connection():
                pass
        go_on.set()
        reply = await waiting.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        await stopped(server)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_outlasts_the_stop(open_gateway: Open, stream: bool) -> None:
    """It is cancelled in the end, upstream too; its client gets an error, or its stream is closed."""
    async with connected(open_gateway(artifact={}, shutdown_timeout_s=SHORT_S)) as (gateway, server, waiting):
        await asking(gateway, waiting, stream=stream, policy="always", abstain=False)
        server.stop()
        if stream:
            assert b"event: final" not in await waiting.rest()
        else:
            reply = await waiting.reply()
            check_shape(reply, 503, "stopping")
            assert reply.headers["retry-after"] == "1"
        await stopped(server)
        assert gateway.reader.cancelled == 1


async def test_a_few_pipelined_requests(gateway: FakeGateway) -> None:
    """They are answered in their order."""
    async with served(gateway) as server, server.connection() as eager:
        eager.send(HEALTHZ + post("/answer", BODY) + HEALTHZ)
        replies = [await eager.reply() for _ in range(3)]
        assert [reply.status for reply in replies] == [200] * 3
        assert ["status" in reply.json for reply in replies] == [True, False, True]


async def test_too_many_pipelined_requests(gateway: FakeGateway) -> None:
    """The connection is closed, instead of keeping them all in memory."""
    gateway.reader.hang = True
    async with served(gateway) as server, server.connection() as greedy:
        greedy.send(post("/answer", BODY) + HEALTHZ * (MAX_PIPELINED + 1))
        reply = await greedy.reply()
        check_shape(reply, 400, "invalid_request")
        assert f"more than {MAX_PIPELINED} requests" in reply.json["error"]["message"]
        assert await greedy.rest() == b""
        await until(lambda: not server.server.server_state.tasks)
        assert gateway.reader.cancelled == gateway.reader.calls


async def test_a_client_that_leaves_with_requests_in_the_queue(open_gateway: Open) -> None:
    """The running request is cancelled, upstream too."""
    async with connected(open_gateway(request_timeout_s=1000)) as (gateway, _, leaving):
        gateway.reader.hang = True
        leaving.send(post("/answer", BODY) + HEALTHZ)
        await until(lambda: gateway.reader.calls)
        leaving.writer.close()
        await until(lambda: gateway.reader.cancelled == 1)


@asynccontextmanager
async def not_reading(port: int, asked: bytes) -> AsyncIterator[None]:
    """A client that has sent some bytes and reads nothing."""
    with socket.socket() as client:
        # Small, so that little of a response leaves the gateway.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        await asyncio.get_running_loop().sock_sendall(client, asked)
        yield


async def test_a_client_that_does_not_read(open_gateway: Open) -> None:
    """Its connection is closed, and its requests end; a client that reads is served."""
    asked = b"GET /static/swagger-ui-bundle.js HTTP/1.1\r\nhost: gateway\r\n\r\n"
    async with open_gateway(client_timeout_s=SHORT_S) as gateway, served(gateway) as server:
        state = server.server.server_state
        async with not_reading(server.port, asked * MAX_PIPELINED):
            await until(lambda: state.tasks)
            await until(lambda: not state.connections)
            await until(lambda: not state.tasks)
        async with server.connection() as reading:
            reading.send(asked)
            assert (await reading.reply()).status == 200


async def test_a_closed_connection_that_is_not_read(open_gateway: Open) -> None:
    """A response that was the last one is not kept for the client either."""
    asked = b"GET /static/swagger-ui-bundle.js HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n"
    async with open_gateway(client_timeout_s=SHORT_S) as gateway, served(gateway) as server:
        state = server.server.server_state
        async with not_reading(server.port, asked):
            await until(lambda: state.connections)
            await until(lambda: not state.connections)


async def test_more_connections_than_allowed(open_gateway: Open) -> None:
    """A new connection gets an error and is closed; it can be opened when another one is closed."""
    async with open_gateway(max_connections=16) as gateway, served(gateway) as server, AsyncExitStack() as open_ones:
        connections = server.server.server_state.connections
        first = [await open_ones.enter_async_context(server.connection()) for _ in range(16)]
        await until(lambda: len(connections) == 16)
        async with server.connection() as refused:
            reply = await refused.reply()
            check_shape(reply, 503, "too_many_connections")
            assert reply.headers["retry-after"] == "1"
            assert await refused.rest() == b""
        first[0].writer.close()
        await until(lambda: len(connections) == 15)
        async with server.connection() as accepted:
            accepted.send(HEALTHZ)
            assert (await accepted.reply()).status == 200
