"""Servers on free ports that answer as they are told, and a proxy that spoils a healthy server's replies.

Each connection carries one request. A fault is a function of one `Exchange`: it may look at the healthy reply, and
writes whatever it likes, whenever it likes.
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
    """One request that came in, and what the healthy server says to it."""

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
        """The head of a reply whose body is so long; the end of an event stream is the end of the connection."""
        lines = [f"HTTP/1.1 {status or self.status}", f"content-type: {content_type or self.content_type}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if "event-stream" not in lines[1]:
            lines.append(f"content-length: {length}")
        return "\r\n".join([*lines, "connection: close", "", ""]).encode()

    def say(self, body: bytes, **head: str) -> None:
        """A whole reply with another body."""
        self.writer.write(self.head_for(len(body), **head) + body)

    def reset(self) -> None:
        """Break the connection as a crashed process does."""
        connection: socket.socket = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()

    async def until_the_client_leaves(self) -> None:
        """Keep the connection, and say nothing more."""
        with suppress(ConnectionError):
            await self.reader.read()


Fault = Callable[[Exchange], Awaitable[None]]


async def healthy(exchange: Exchange) -> None:
    exchange.writer.write(exchange.head + exchange.body)


async def late(exchange: Exchange) -> None:
    await asyncio.wait_for(exchange.until_the_client_leaves(), FOREVER)


async def dripping(exchange: Exchange) -> None:
    """Every byte comes soon after the one before, and the last one never."""
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


async def closed_without_a_word(exchange: Exchange) -> None:
    """The connection just ends."""


async def half_closed(exchange: Exchange) -> None:
    """The server has said all that it will, which is nothing, and still listens."""
    exchange.writer.write_eof()
    await exchange.until_the_client_leaves()


async def half_closed_in_the_body(exchange: Exchange) -> None:
    exchange.writer.write(exchange.head + exchange.body[: len(exchange.body) // 2])
    exchange.writer.write_eof()
    await exchange.until_the_client_leaves()


async def cut_in_the_body(exchange: Exchange) -> None:
    exchange.writer.write(exchange.head + exchange.body[: len(exchange.body) // 2])


async def truncated_json(exchange: Exchange) -> None:
    """A whole reply by its head, that ends in the middle of a value."""
    exchange.say(exchange.body[: len(exchange.body) // 2])


async def not_http(exchange: Exchange) -> None:
    exchange.writer.write(b"220 mail.example.com ESMTP\r\n" * 20)


def answer(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> Fault:
    """A whole reply."""

    async def reply(exchange: Exchange) -> None:
        exchange.say(body, status=f"{status} {HTTPStatus(status).phrase}", content_type=content_type, **headers)

    return reply


def answer_json(status: int, value: object) -> Fault:
    """A whole reply with a JSON body."""
    return answer(status, json.dumps(value).encode())


def shaped(value: object) -> Fault:
    """JSON, and not what was asked for."""
    return answer_json(200, value)


def status(code: int) -> Fault:
    """An error as servers and the balancers before them send it."""
    return answer_json(code, {"error": {"message": "no"}})


def numbers_as(word: bytes, *names: bytes) -> Fault:
    """The healthy reply, with another word for every number (or list of numbers) of these names."""
    pattern = re.compile(rb'("(?:' + b"|".join(names) + rb')":\s*)(-?[\d.e+-]+|\[[^\]]*\])')

    async def reply(exchange: Exchange) -> None:
        exchange.say(
            pattern.sub(
                lambda found: found[1] + (b"[" + word + b", 1.0]" if found[2].startswith(b"[") else word), exchange.body
            )
        )

    return reply


def renamed(name: bytes, other: bytes = b'"elsewhere"') -> Fault:
    """The healthy reply, with these bytes in place of others."""

    async def reply(exchange: Exchange) -> None:
        exchange.say(exchange.body.replace(name, other))

    return reply


def ending_in(event: bytes) -> Fault:
    """The first half of a healthy stream of events, then this one and no more."""

    async def reply(exchange: Exchange) -> None:
        events = exchange.body.split(b"\n\n")
        exchange.say(b"\n\n".join([*events[: len(events) // 2], b"data: " + event, b""]))

    return reply


html = answer(200, b"<html><h1>It works!</h1></html>", "text/html")
empty = answer(200, b"")
# Of a server that was not started for log-probabilities.
without_logprobs = renamed(b'"logprobs"')


@dataclass
class Listener:
    """Takes connections, each for one request; `_exchange` answers it."""

    port: int = 0
    _listener: asyncio.Server | None = None
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Where it listens, or did."""
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        """Take connections, from the second time on at the same port as before."""
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Take none, as a server that is not there; those that are open are cut."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        for task in [*self._open]:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await listener.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._exchange(reader, writer)
            await writer.drain()
            writer.close()
        except (ConnectionError, asyncio.IncompleteReadError):
            # The client may leave first: that is what a timeout does.
            writer.close()
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._open.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


@dataclass
class FaultProxy(Listener):
    """A running proxy; `fault` spoils every `every`th request for a path that `spoils` accepts."""

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
        """The healthy server's status, content type and body: by HTTP/1.0, so that its end is the connection's."""
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
    """The head and the body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return head, await reader.readexactly(int(length[1])) if length else b""


@asynccontextmanager
async def fault_proxy(upstream: str) -> AsyncIterator[FaultProxy]:
    """A proxy that is healthy until told otherwise."""
    async with listening(FaultProxy(upstream=upstream)) as proxy:
        yield proxy


T = TypeVar("T", bound=Listener)


@asynccontextmanager
async def listening(listener: T) -> AsyncIterator[T]:
    """Listen while this is open."""
    await listener.listen()
    try:
        yield listener
    finally:
        await listener.refuse()
