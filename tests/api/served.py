"""A gateway over fakes behind the server that serves it, on a real socket."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from app.api.http.protocol import ServerConfig
from tests.fakes.gateway import FakeGateway
from tests.waiting import PATIENCE_S, until


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to pytest."""
        yield


@dataclass
class Served:
    """A running server."""

    port: int
    server: uvicorn.Server
    serving: asyncio.Task[None]

    @asynccontextmanager
    async def connection(self) -> AsyncIterator["Connection"]:
        """Open a plain connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()

    def stop(self) -> None:
        """Stop it as a signal would."""
        self.server.should_exit = True


@dataclass
class Reply:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Connection:
    """A plain connection to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self) -> Reply:
        """The next response."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
            }
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Reply(int(head[0].split()[1]), headers, body)

    async def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()


@asynccontextmanager
async def served(gateway: FakeGateway) -> AsyncIterator[Served]:
    """Serve it on a free port; requests that still run at the end are cancelled."""
    config = ServerConfig(gateway.app, gateway.settings)
    # The fake gateway has opened what the lifespan opens.
    config.lifespan = "off"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await until(lambda: server.started)
            yield Served(listener.getsockname()[1], server, serving)
        finally:
            server.should_exit = server.force_exit = True
            await asyncio.wait([serving], timeout=PATIENCE_S)
            for task in [*server.server_state.tasks]:
                task.cancel()
            await asyncio.gather(*server.server_state.tasks, return_exceptions=True)


@asynccontextmanager
async def connected(
    opening: AbstractAsyncContextManager[FakeGateway],
) -> AsyncIterator[tuple[FakeGateway, Served, Connection]]:
    """A gateway, its server, and a plain connection to it."""
    async with opening as gateway, served(gateway) as server, server.connection() as connection:
        yield gateway, server, connection


def post(path: str, body: bytes, *, headers: str = "") -> bytes:
    """A complete request."""
    return head(path, len(body), headers=headers) + body


def head(path: str, length: int, *, headers: str = "") -> bytes:
    """The head of a request, without its body."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: gateway",
        "content-type: application/json",
        f"content-length: {length}",
        *headers.splitlines(),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


HEALTHZ = b"GET /healthz HTTP/1.1\r\nhost: gateway\r\n\r\n"
