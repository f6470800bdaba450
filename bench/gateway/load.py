"""Load on one address: a closed loop of connections, each sending its next request when the last is answered."""

import asyncio
import itertools
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import httptools

# How long to wait for requests in progress at the end.
DRAIN_S = 5.0


@dataclass
class Sample:
    """The outcome of a period of load: the seconds of each good reply, and everything else that came."""

    seconds: float
    began: float = 0.0
    latencies: array = field(default_factory=lambda: array("d"))
    # When each of them came, on the clock of `time.perf_counter`.
    at: array = field(default_factory=lambda: array("d"))
    errors: int = 0
    # The change of the meter over the period.
    metered: float = 0.0
    # The first failure, to be printed.
    complaint: str = ""

    @property
    def rps(self) -> float:
        """Good replies per second."""
        return len(self.latencies) / self.seconds


@dataclass(frozen=True)
class Target:
    """The address, the requests as bytes, and what a good reply contains."""

    port: int
    requests: tuple[bytes, ...]
    expected: bytes


def request(path: str, body: bytes, headers: Iterable[tuple[str, str]] = (), method: str = "POST") -> bytes:
    """A complete request."""
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


# Called with the status, the body and the seconds since the request was sent; status 0 is a lost connection.
Answered = Callable[["Connection", int, bytes, float], None]


class Connection(asyncio.Protocol):
    """A persistent connection with at most one request in progress."""

    def __init__(self, answered: Answered) -> None:
        self._answered = answered
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._sent: float | None = None
        # Whether another request may be sent: neither side has closed the connection or announced it.
        self.open = True

    def send(self, data: bytes) -> None:
        """Send a request."""
        assert self._transport is not None
        self._sent = time.perf_counter()
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection; pending requests are not errors."""
        self._sent, self.open = None, False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Keep the transport."""
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Report a pending request as lost."""
        self.open = False
        if self._sent is not None:
            self._answered(self, 0, b"the connection was closed", time.perf_counter() - self._sent)

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Pass the reply on."""
        took = time.perf_counter() - (self._sent or 0.0)
        body, self._parts, self._sent = b"".join(self._parts), [], None
        self.open = self._parser.should_keep_alive()
        self._answered(self, self._parser.get_status_code(), body, took)


async def connect(port: int, answered: Answered) -> Connection:
    """A new connection."""
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(answered), "127.0.0.1", port)
    return connection


async def closed_loop(
    target: Target,
    *,
    connections: int,
    seconds: float,
    warm_up_s: float = 0.0,
    meter: Callable[[], float] = lambda: 0.0,
) -> Sample:
    """Keep this many requests in progress for this many seconds, after a warm-up that does not count.

    `meter` is read at the start and at the end of the measured period.
    """
    loop = _ClosedLoop(target, connections)
    opened = [await connect(target.port, loop.answered) for _ in range(connections)]
    try:
        for connection in opened:
            connection.send(next(loop.requests))
        if warm_up_s:
            await loop.wait(warm_up_s)
        read = meter()
        loop.sample = sample = Sample(0.0, began=time.perf_counter())
        await loop.wait(seconds)
        sample.seconds = time.perf_counter() - sample.began
        sample.metered = meter() - read
        await loop.drain()
    finally:
        for connection in opened:
            connection.close()
    return sample


class _ClosedLoop:
    def __init__(self, target: Target, connections: int) -> None:
        self._expected = target.expected
        self.requests: Iterator[bytes] = itertools.cycle(target.requests)
        self.sample = Sample(0.0)
        self._in_progress = connections
        self._over = False
        # A system that closes connections cannot be measured.
        self._broken = asyncio.Event()
        self._drained = asyncio.Event()

    def answered(self, connection: Connection, status: int, body: bytes, took: float) -> None:
        if self._over:
            self._in_progress -= 1
            if self._in_progress == 0:
                self._drained.set()
            return
        if status == 200 and self._expected in body:
            self.sample.latencies.append(took)
            self.sample.at.append(time.perf_counter())
        else:
            self.sample.errors += 1
            self.sample.complaint = self.sample.complaint or f"{status}: {body[:300].decode(errors='replace')}"
        if connection.open:
            connection.send(next(self.requests))
        else:
            self._broken.set()

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._broken.wait(), seconds)
            raise ConnectionError(f"the system closed the connection: {self.sample.complaint}")

    async def drain(self) -> None:
        """Wait for the requests in progress, so that the next measurement finds the core free."""
        self._over = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), DRAIN_S)
