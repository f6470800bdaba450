"""Local servers on free ports that answer as told: rightly, late, with nonsense, or by hanging up."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from aiohttp import web

from app.adapters.resilience import Link, Resilience


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came over the wire; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# Writes whatever it likes to the connection, which is closed when it returns.
Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """A running server: what it answers, the same to all but `routes` ("GET /path"), and what it was asked so far."""

    url: str
    reply: Reply
    routes: dict[str, Reply] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request, remember it, answer it, hang up."""
        try:
            request = await _read(reader)
            self.requests.append(request)
            await self.routes.get(f"{request.method} {request.path.partition('?')[0]}", self.reply)(writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            # The client may leave first: that is what a timeout does.
            pass
        finally:
            writer.close()


@asynccontextmanager
async def handling(handle: Handler, *, client_max_size: int = 2**20) -> AsyncIterator[str]:
    """Let aiohttp serve every request by one handler on a free port; yields the URL. Who leaves cancels the handler."""
    app = web.Application(client_max_size=client_max_size)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(reply: Reply) -> AsyncIterator[Server]:
    """Serve on a free port; connections still open at the end are cut."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await server.handle(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            tasks.discard(task)

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    server = Server(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", reply)
    try:
        yield server
    finally:
        listener.close()
        for task in [*tasks]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


def direct(upstream: str, *, failures: int = 1000) -> Link:
    """Calls without retries, and with a breaker that opens after so many failures."""
    return Resilience(failures=failures, retry_s=3600.0, retries=0, at_once=1).link(upstream)


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answer(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> Reply:
    """A whole HTTP reply."""

    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(_head(status, len(body), content_type, headers) + body)

    return reply


def answer_json(status: int, value: object) -> Reply:
    """A whole HTTP reply with a JSON body."""
    return answer(status, json.dumps(value).encode())


def slow(reply: Reply, seconds: float) -> Reply:
    """The same reply, late."""

    async def late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        await reply(writer)

    return late


def dripping(body: bytes, every_s: float) -> Reply:
    """A reply whose every byte is in time and whose last one is not."""

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(_head(200, len(body), "application/json", {}))
        for byte in body:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(every_s)

    return drip


def cut_short(body: bytes) -> Reply:
    """A reply that announces more than it sends before it hangs up."""

    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.write(_head(200, len(body) + 100, "application/json", {}) + body)

    return cut


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close without a word."""


async def reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection, as a crashed process does."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


def _head(status: int, length: int, content_type: str, headers: dict[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {content_type}",
        f"content-length: {length}",
        "connection: close",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)
