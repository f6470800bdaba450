"""Bounds on what is taken on: permits for questions with a short line before them, and the size of a body."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import problem
from app.errors import Overloaded

logger = logging.getLogger(__name__)

TOO_BUSY = "the gateway is working on as many questions as it may, and enough are waiting: try again later"
# Between two lines about refused questions: a line each would be work, just when there is too much of it.
_SAY_EVERY_S = 5.0


class Permits:
    """As many questions at once as there are permits; a few more wait in line, and the rest is refused at once.

    A permit that is given back goes straight to the first in line, so that nobody who comes later can be faster.
    """

    def __init__(
        self,
        count: int,
        *,
        places: int,
        longest_wait_s: float,
        on_began: Callable[[], None],
        on_ended: Callable[[], None],
        on_shed: Callable[[], None],
        on_queued: Callable[[int], None],
        on_waited: Callable[[float], None],
    ) -> None:
        self._retry_after_s = retry_after_s(longest_wait_s)
        self._free = count
        self._places = places
        self._longest_wait_s = longest_wait_s
        self._line: deque[asyncio.Future[bool]] = deque()
        self._on_began = on_began
        self._on_ended = on_ended
        self._on_shed = on_shed
        self._on_queued = on_queued
        self._on_waited = on_waited
        self._refused = _Refused()

    @property
    def full(self) -> bool:
        """Whether the next question can only be refused."""
        return self._free == 0 and len(self._line) >= self._places

    def take(self) -> bool:
        """Take a permit if one is free; never waits."""
        if self._free == 0:
            return False
        self._free -= 1
        self._on_began()
        return True

    async def wait(self, until: float | None) -> float:
        """Wait in line for a permit, at most until then on the loop's clock; the seconds that it took.

        Raises Overloaded where there is no place, or where it takes too long. Whoever is cancelled leaves the line.
        """
        if len(self._line) >= self._places:
            raise self.refuse()
        loop = asyncio.get_running_loop()
        came = loop.time()
        give_up = came + self._longest_wait_s
        turn: asyncio.Future[bool] = loop.create_future()
        self._line.append(turn)
        self._on_queued(len(self._line))
        timer = loop.call_at(give_up if until is None else min(give_up, until), self._too_long, turn)
        try:
            granted = await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result():
                # It was handed over in the very moment in which nobody wanted it any more.
                self.give_back()
            raise
        finally:
            timer.cancel()
            self._leave(turn)
            waited = loop.time() - came
            self._on_waited(waited)
        if not granted:
            raise self.refuse()
        return waited

    def give_back(self) -> None:
        """Hand a permit on to the first in line, or keep it for the next that comes."""
        while self._line:
            turn = self._line.popleft()
            self._on_queued(len(self._line))
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1
        self._on_ended()

    def refuse(self) -> Overloaded:
        """Count a question that is not taken on; what to raise for it."""
        self._on_shed()
        self._refused.one_more()
        return Overloaded(TOO_BUSY, retry_after_s=self._retry_after_s)

    def _too_long(self, turn: "asyncio.Future[bool]") -> None:
        self._leave(turn)
        if not turn.done():
            turn.set_result(False)

    def _leave(self, turn: "asyncio.Future[bool]") -> None:
        if turn in self._line:
            self._line.remove(turn)
            self._on_queued(len(self._line))


def retry_after_s(longest_wait_s: float) -> int:
    """When to try again, in whole seconds: all who wait in line now have left it by then."""
    return max(1, math.ceil(longest_wait_s))


class _Refused:
    """Says in the log that questions are refused, and how many, but not about each."""

    def __init__(self) -> None:
        self._unsaid = 0
        self._silent_until = -math.inf

    def one_more(self) -> None:
        self._unsaid += 1
        now = time.monotonic()
        if now >= self._silent_until:
            logger.warning("overloaded: questions refused with 429: %d", self._unsaid)
            self._unsaid, self._silent_until = 0, now + _SAY_EVERY_S


class BodyLimit:
    """Answers 413 to a body over the limit: by its declared length, or as soon as that much has come in."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting what it receives."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_large = f"the body is larger than {self._max_bytes} bytes"
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await problem(413, "body_too_large", too_large, path=scope["path"])(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                # Of this kind, because parsers of the body take any other for a mistake in it.
                raise HTTPException(413, too_large)
            return message

        await self._app(scope, counted, send)
