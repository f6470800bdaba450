"""Local servers on free ports that send a given reply and record the requests."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from app.upstream.resilience import Link, Resilience
from tests.wire.fault_proxy import Exchange, Fault, Listener, healthy, listening, read_request


@dataclass(frozen=True, slots=True)
class Request:
    """One request as received; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Server(Listener):
    """Sends `reply` to every request except those in `routes` ("GET /path"), and records the requests."""

    reply: Fault = healthy
    routes: dict[str, Fault] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw, body = await read_request(reader)
        head = raw.decode().splitlines()
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        self.requests.append(Request(method, path, headers, body))
        # So long that a reply that drips or breaks off never reaches it in time.
        exchange = Exchange(path, reader, writer, "200 OK", "application/json", b"[" + b"0, " * 1000 + b"0]")
        await self.routes.get(f"{method} {path.partition('?')[0]}", self.reply)(exchange)


@asynccontextmanager
async def handling(handle: Handler, *, client_max_size: int = 2**20) -> AsyncIterator[str]:
    """Serve every request with one aiohttp handler on a free port; yields the URL. A disconnect cancels the handler."""
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
async def serving(reply: Fault) -> AsyncIterator[Server]:
    """Serve on a free port; cut open connections at the end."""
    async with listening(Server(reply=reply)) as server:
        yield server


def direct(upstream: str, *, failures: int = 1000) -> Link:
    """Calls without retries, with a circuit breaker that opens after this many failures."""
    return Resilience(failures=failures, retry_s=3600.0, retries=0, at_once=1).link(upstream)


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
