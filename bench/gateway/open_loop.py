"""An open loop: requests are sent on a schedule whatever comes back, as from many independent clients."""

import asyncio
import itertools
import time
from array import array
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from bench.gateway.load import Connection, Target, connect

TICK_S = 0.001
# More than needed while replies take less than a tenth of a second; beyond that, requests wait and their time counts.
MAX_CONNECTIONS = 1024
OUTCOMES = ("served", "shed", "failed")


@dataclass
class Flood:
    """What came back: for each outcome, when it came and how many seconds after the request was due."""

    began: float
    at: dict[str, array] = field(default_factory=lambda: {outcome: array("d") for outcome in OUTCOMES})
    latencies: dict[str, array] = field(default_factory=lambda: {outcome: array("d") for outcome in OUTCOMES})
    sent: int = 0
    complaint: str = ""

    def by_second(self, outcome: str, seconds: int) -> list[int]:
        """The number of replies in each second."""
        counts = [0] * seconds
        for at in self.at[outcome]:
            if (second := int(at - self.began)) < seconds:
                counts[second] += 1
        return counts


async def open_loop(target: Target, *, rate: float, seconds: float, patience_s: float = 5.0) -> Flood:
    """Send `rate` requests per second for this long, then wait a little for the last replies."""
    loop = _OpenLoop(target)
    try:
        while (passed := time.perf_counter() - loop.flood.began) < seconds:
            loop.send_up_to(int(passed * rate), rate)
            await asyncio.sleep(TICK_S)
        with suppress(TimeoutError):
            await asyncio.wait_for(loop.drained(), patience_s)
        return loop.flood
    finally:
        await loop.close()


class _OpenLoop:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._requests = itertools.cycle(target.requests)
        self._idle: list[Connection] = []
        self._due: dict[Connection, float] = {}
        self._late: deque[float] = deque()
        self._opened: set[asyncio.Task[None]] = set()
        self._connections = 0
        self.flood = Flood(time.perf_counter())

    async def drained(self) -> None:
        while self._due or self._late:  # noqa: ASYNC110 - a look a millisecond costs less than an event a reply
            await asyncio.sleep(TICK_S)

    def send_up_to(self, count: int, rate: float) -> None:
        """Send the requests that are due, each timed from the moment it was due."""
        for number in range(self.flood.sent, count):
            self._late.append(self.flood.began + number / rate)
        self.flood.sent = max(self.flood.sent, count)
        while self._late and self._idle:
            connection = self._idle.pop()
            if connection.open:
                self._send(connection)
            else:
                # It was idle for so long that the server closed it.
                self._connections -= 1
        for _ in range(min(len(self._late) - len(self._opened), MAX_CONNECTIONS - self._connections)):
            self._connections += 1
            task = asyncio.ensure_future(self._open())
            self._opened.add(task)
            task.add_done_callback(self._opened.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._opened, return_exceptions=True)
        for connection in (*self._idle, *self._due):
            connection.close()

    async def _open(self) -> None:
        try:
            connection = await connect(self._target.port, self._answered)
        except OSError as error:
            self._connections -= 1
            self._note("failed", self._late.popleft() if self._late else time.perf_counter(), f"refused: {error}")
            return
        if self._late:
            self._send(connection)
        else:
            self._idle.append(connection)

    def _send(self, connection: Connection) -> None:
        self._due[connection] = self._late.popleft()
        connection.send(next(self._requests))

    def _answered(self, connection: Connection, status: int, body: bytes, took: float) -> None:  # noqa: ARG002
        due = self._due.pop(connection)
        if status == 200 and self._target.expected in body:
            self._note("served", due)
        elif status == 429:
            self._note("shed", due)
        else:
            self._note("failed", due, f"{status}: {body[:300].decode(errors='replace')}")
        if not connection.open:
            self._connections -= 1
            connection.close()
        elif self._late:
            self._send(connection)
        else:
            self._idle.append(connection)

    def _note(self, outcome: str, due: float, complaint: str = "") -> None:
        now = time.perf_counter()
        self.flood.at[outcome].append(now)
        self.flood.latencies[outcome].append(now - due)
        self.flood.complaint = self.flood.complaint or complaint
