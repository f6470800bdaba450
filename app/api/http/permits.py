"""Limits on load: permits for questions with a short queue, and the size of a body."""

import asyncio
import logging
import math
import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.http.errors import problem
from app.errors import Overloaded
from app.learning.shadow import ShadowRunner
from app.telemetry.gauges import TrafficMetrics

logger = logging.getLogger(__name__)

_TOO_BUSY = "the gateway is busy and its queue is full: try again later"
_ASKING = ("/answer", "/v1/chat/completions", "/v1/responses")
# Between two log lines about refused questions: a line for each would add load when there is too much.
_LOG_EVERY_S = 5.0


class Permits:
    """Limits concurrent questions. A few more wait in a queue; the others are refused at once.

    The queue is that of `asyncio.Semaphore`: first in, first out. Shadow runs pause while a permit is taken.
    """

    def __init__(
        self,
        count: int,
        *,
        places: int,
        max_wait_s: float,
        metrics: TrafficMetrics,
        shadows: ShadowRunner | None = None,
    ) -> None:
        self._free = asyncio.Semaphore(count)
        # Questions in flight or in the queue; a permit that is being handed over counts once.
        self._inside = 0
        self._most = count + places
        self._waiting = 0
        self._max_wait_s = max_wait_s
        self._metrics = metrics
        metrics.in_flight_limit.set(count)
        self._shadows = shadows
        self._refused = _Refused()

    @property
    def full(self) -> bool:
        """Whether the next question must be refused."""
        return self._inside >= self._most

    async def take(self, until: float | None = None) -> float:
        """Take a permit; wait in the queue at most until this time of the loop's clock. Returns the seconds waited.

        Raises Overloaded if the queue is full or the wait is too long.
        """
        if self.full:
            raise self.refuse()
        waited = 0.0
        self._inside += 1
        if self._free.locked():
            try:
                waited = await self._wait(until)
            except BaseException:
                self._inside -= 1
                raise
        else:
            await self._free.acquire()
        self._metrics.in_flight.inc()
        if self._shadows is not None:
            self._shadows.began()
        return waited

    def give_back(self) -> None:
        """Release a permit; the first in the queue gets it."""
        self._inside -= 1
        self._free.release()
        self._metrics.in_flight.dec()
        if self._shadows is not None:
            self._shadows.ended()

    def refuse(self) -> Overloaded:
        """Count a refused question, and return the error to raise."""
        self._metrics.shed.inc()
        self._refused.one_more()
        return Overloaded(_TOO_BUSY, retry_after_s=retry_after_s(self._max_wait_s))

    async def _wait(self, until: float | None) -> float:
        now = asyncio.get_running_loop().time
        came = now()
        give_up = came + self._max_wait_s
        self._line(1)
        try:
            async with asyncio.timeout_at(give_up if until is None else min(give_up, until)):
                await self._free.acquire()
        except TimeoutError:
            raise self.refuse() from None
        finally:
            self._line(-1)
            waited = now() - came
            self._metrics.waited.observe(waited)
        return waited

    def _line(self, change: int) -> None:
        self._waiting += change
        self._metrics.queued.set(self._waiting)


def retry_after_s(max_wait_s: float) -> int:
    """When to try again, in whole seconds: by then the queue of now is gone."""
    return max(1, math.ceil(max_wait_s))


class _Refused:
    """Logs how many questions are refused, at most one line in a while."""

    def __init__(self) -> None:
        self._unlogged = 0
        self._silent_until = -math.inf

    def one_more(self) -> None:
        self._unlogged += 1
        now = time.monotonic()
        if now >= self._silent_until:
            logger.warning("overloaded: questions refused with 429: %d", self._unlogged)
            self._unlogged, self._silent_until = 0, now + _LOG_EVERY_S


class Shedding:
    """Answers 429 before the body is read, if there is neither a permit nor a place in the queue.

    The server discards the rest of the body, and the connection can be reused.
    """

    def __init__(self, app: ASGIApp, *, max_wait_s: float) -> None:
        self._app = app
        self._headers = {"retry-after": str(retry_after_s(max_wait_s))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or handle it."""
        if scope["type"] == "http" and scope["path"] in _ASKING and scope["method"] == "POST":
            permits: Permits = scope["app"].state.gateway.permits
            if permits.full:
                permits.refuse()
                refusal = problem(429, "overloaded", _TOO_BUSY, path=scope["path"], headers=self._headers)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """Answers 413 to a body over the limit: by its declared length, or as soon as too much has arrived."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request, and count the bytes that it receives."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_large = f"the body is larger than {self._max_bytes} bytes: send less"
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
                # An HTTPException, because code that parses the body reports any other error as invalid JSON.
                raise HTTPException(413, too_large)
            return message

        await self._app(scope, counted, send)
