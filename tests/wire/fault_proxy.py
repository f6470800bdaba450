"""Servers on free ports with a configurable reply, and a proxy that corrupts a healthy server's replies.

Each connection carries one request. A fault is a function of one `Exchange`: it can read the healthy reply, and
writes any bytes at any time.
"""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlsplit

FOREVER = 3600.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One incoming request, and the healthy server's reply to it."""

    path: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: str
    content_type: str
    body: bytes

    @property
    def head(self) -> bytes:
        """The head of the healthy reply."""
        return self.head_for(len(self.body))

    def head_for(self, length: int, *, status: str = "", content_type: str = "", **headers: str) -> bytes:
        """The head of a reply with a body of this length; an event stream has none and ends with the connection."""
        lines = [f"HTTP/1.1 {status or self.status}", f"content-type: {content_type or self.content_type}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if "event-stream" not in lines[1]:
            lines.append(f"content-length: {length}")
        return "\r\n".join([*lines, "connection: close", "", ""]).encode()

    def say(self, body: bytes, **head: str) -> None:
        """Send a complete reply with this body."""
        self.writer.write(self.head_for(len(body), **head) + body)

    def reset(self) -> None:
        """Reset the connection, as a crashed process does."""
        connection: socket.socket = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()

    async def until_client_disconnects(self) -> None:
        """Keep the connection open and send nothing more."""
        with suppress(ConnectionError):
            await self.reader.read()


Fault = Callable[[Exchange], Awaitable[None]]


async def healthy(exchange: Exchange) -> None:
    exchange.writer.write(exchange.head + exchange.body)


async def late(exchange: Exchange) -> None:
    await asyncio.wait_for(exchange.until_client_disconnects(), FOREVER)


async def dripping(exchange: Exchange) -> None:
    """Each byte follows soon after the last, but the reply never ends."""
    for byte in exchange.head + exchange.body:
        exchange.writer.write(bytes([byte]))
        await exchange.writer.drain()
        await asyncio.sleep(0.05)


async def reset_before_the_head(exchange: Exchange) -> None:
    exchange.reset()


async def reset_after_the_head(exchange: Exchange) -> None:
    exchange.writer.write(exchange.head)
    await exchange.writer.drain()
    exchange.reset()


async def closed_without_reply(exchange: Exchange) -> None:
    """Close the connection without a reply."""


async def half_closed(exchange: Exchange) -> None:
    """Close the sending side without a reply, and keep reading."""
    exchange.writer.write_eof()
    await exchange.until_client_disconnects()


async def half_closed_in_the_body(exchange: Exchange) -> None:
    exchange.writer.write(exchange.head + exchange.body[: len(exchange.body) // 2])
    exchange.writer.write_eof()
    await exchange.until_client_disconnects()


async def cut_in_the_body(exchange: Exchange) -> None:
    exchange.writer.write(exchange.head + exchange.body[: len(exchange.body) // 2])


async def truncated_json(exchange: Exchange) -> None:
    """A complete reply according to its head, but the JSON ends in the middle of a value."""
    exchange.say(exchange.body[: len(exchange.body) // 2])


async def not_http(exchange: Exchange) -> None:
    exchange.writer.write(b"220 mail.example.com ESMTP\r\n" * 20)


def answer(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> Fault:
    """A complete reply."""

    async def reply(exchange: Exchange) -> None:
        exchange.say(body, status=f"{status} {HTTPStatus(status).phrase}", content_type=content_type, **headers)

    return reply


def answer_json(status: int, value: object) -> Fault:
    """A complete reply with a JSON body."""
    return answer(status, json.dumps(value).encode())


def shaped(value: object) -> Fault:
    """Valid JSON of an unexpected shape."""
    return answer_json(200, value)


def status(code: int) -> Fault:
    """An error reply as sent by servers and load balancers."""
    return answer_json(code, {"error": {"message": "no"}})


def numbers_as(word: bytes, *names: bytes) -> Fault:
    """The healthy reply, with this word in place of every number (or list of numbers) under these names."""
    pattern = re.compile(rb'("(?:' + b"|".join(names) + rb')":\s*)(-?[\d.e+-]+|\[[^\]]*\])')

    async def reply(exchange: Exchange) -> None:
        exchange.say(
            pattern.sub(
                lambda found: found[1] + (b"[" + word + b", 1.0]" if found[2].startswith(b"[") else word), exchange.body
            )
        )

    return reply


def renamed(name: bytes, other: bytes = b'"elsewhere"') -> Fault:
    """The healthy reply, with some bytes replaced by others."""

    async def reply(exchange: Exchange) -> None:
        exchange.say(exchange.body.replace(name, other))

    return reply


def ending_in(event: bytes) -> Fault:
    """The first half of a healthy event stream, then this event, then the end."""

    async def reply(exchange: Exchange) -> None:
        events = exchange.body.split(b"\n\n")
        exchange.say(b"\n\n".join([*events[: len(events) // 2], b"data: " + event, b""]))

    return reply


html = answer(200, b"<html><h1>It works!</h1></html>", "text/html")
empty = answer(200, b"")
# A server that was started without log-probabilities.
without_logprobs = renamed(b'"logprobs"')


@dataclass
class Listener:
    """Accepts connections with one request each; `_exchange` replies."""

    port: int = 0
    _listener: socket.socket | None = None
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """The current or last address."""
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        """Accept connections. A second call listens on the same port as the first."""
        # Not `asyncio.start_server`: when it closes, it loses a connection that it has just accepted.
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    async def refuse(self) -> None:
        """Close open connections and accept no more, as if the server were down."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()
        await asyncio.sleep(0)  # Lets every task start: a task that is cancelled before would not close its socket.
        for task in [*self._open]:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError):
            connection, _ = listener.accept()
            task = asyncio.get_running_loop().create_task(self._connected(connection))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _connected(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            await self._exchange(reader, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # The client may disconnect first: a timeout does that.
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


@dataclass
class FaultProxy(Listener):
    """A running proxy. `fault` corrupts every `every`th request to a path that `spoils` accepts."""

    upstream: str = ""
    fault: Fault = healthy
    every: int = 1
    spoils: Callable[[str], bool] = lambda path: True
    asked: int = 0

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        request = head + body
        path = request.split(b" ", 2)[1].decode()
        exchange = Exchange(path, reader, writer, *await self._pass_on(request))
        if not self.spoils(path):
            await healthy(exchange)
            return
        self.asked += 1
        await (self.fault if self.asked % self.every == 0 else healthy)(exchange)

    async def _pass_on(self, request: bytes) -> tuple[str, str, bytes]:
        """The healthy server's status, content type and body. HTTP/1.0, so the reply ends with the connection."""
        address = urlsplit(self.upstream)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            writer.write(
                re.sub(rb"(?i)\r\nconnection: *[\w-]+", b"", request.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1))
            )
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        first, *fields = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in fields)}
        return first.split(" ", 1)[1], headers.get("content-type", "application/json"), body


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read the head and the body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return head, await reader.readexactly(int(length[1])) if length else b""


@asynccontextmanager
async def fault_proxy(upstream: str) -> AsyncIterator[FaultProxy]:
    """A proxy that forwards unchanged until `fault` is set."""
    async with listening(FaultProxy(upstream=upstream)) as proxy:
        yield proxy


T = TypeVar("T", bound=Listener)


@asynccontextmanager
async def listening(listener: T) -> AsyncIterator[T]:
    """Listen inside this context."""
    await listener.listen()
    try:
        yield listener
    finally:
        await listener.refuse()
