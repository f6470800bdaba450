"""A circuit breaker: leaves an upstream that keeps failing alone for a while, then tries it with one call at a time.

closed ── so many of the last calls failed ──► open ── a pause ──► half-open ── the trial succeeds ──► closed
                                                ▲                     │
                                                └── the trial fails ──┘
"""

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.errors import UpstreamError, UpstreamUnavailable
from app.ports import Clock

logger = logging.getLogger(__name__)

# The pause is longer by up to this share of itself, so that many gateways do not come back all at once.
_JITTER = 0.5


class Breaker:
    """Opens when `failures` of the last twice as many calls have failed, for about `retry_s` seconds.

    A call begins with `admit` and ends with one of `succeeded`, `failed` and `withdrawn`, with the number that `admit`
    gave. One that began before the last change says nothing about the time after it, and is not listened to.
    """

    def __init__(
        self,
        upstream: str,
        *,
        failures: int,
        retry_s: float,
        on_change: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
        dice: random.Random | None = None,
    ) -> None:
        self._upstream = upstream
        self._failures = failures
        self._retry_s = retry_s
        self._on_change = on_change
        self._clock = clock
        self._dice = dice or random.Random()  # noqa: S311 - spreading pauses, not secrets
        # One bit a call, the newest last, 1 where it failed: nothing to do for a success after successes.
        self._recent = 0
        self._window = (1 << 2 * failures) - 1
        # When to try again; None while closed.
        self._until: float | None = None
        self._trying = False
        self._period = 0

    @property
    def open(self) -> bool:
        """Whether ordinary calls are refused: from the opening to the success of a trial."""
        return self._until is not None

    @property
    def due(self) -> bool:
        """Whether the next call would be let through as a trial."""
        return self._until is not None and not self._trying and self._clock() >= self._until

    @property
    def wait_s(self) -> float:
        """How long until a call may be let through; 0 where it may be now, or as soon as a trial has ended."""
        return max(0.0, self._until - self._clock()) if self._until is not None else 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let a call begin, or raise UpstreamUnavailable at once; and take note of how it ends."""
        period = self.admit()
        try:
            yield
        except UpstreamError as error:
            self.failed(period, error)
            raise
        except BaseException:
            self.withdrawn(period)
            raise
        else:
            self.succeeded(period)

    def admit(self) -> int:
        """Let a call begin, or raise UpstreamUnavailable at once."""
        if self._until is not None:
            if not self.due:
                raise self.refusal()
            self._trying = True
        return self._period

    def succeeded(self, period: int) -> None:
        """The upstream answered as it should."""
        if period != self._period:
            return
        if self._until is not None:
            self._until, self._recent = None, 0
            self._change()
            logger.info("%s answers again", self._upstream)
        elif self._recent:
            self._recent = self._recent << 1 & self._window

    def failed(self, period: int, error: UpstreamError) -> None:
        """The upstream was late, not there, or answered nonsense."""
        if period != self._period:
            return
        self._recent = (self._recent << 1 | 1) & self._window
        if self._until is None and self._recent.bit_count() < self._failures:
            return
        if self._until is None:
            logger.warning(
                "%s is left alone for a while: %s, the last one: %s", self._upstream, self._what_happened(), error
            )
        self._until = self._clock() + self._retry_s * self._dice.uniform(1.0, 1.0 + _JITTER)
        self._change()

    def withdrawn(self, period: int) -> None:
        """The call was given up, or its request was wrong: nothing was learned, and another may be the trial."""
        if period == self._period:
            self._trying = False

    def refusal(self) -> UpstreamUnavailable:
        """What a call is told that is not let through."""
        wait = math.ceil(self.wait_s)
        again = f"it is tried again in {wait} s" if wait else "it is being tried again now"
        return UpstreamUnavailable(
            self._upstream,
            f"{self._upstream} is left alone: {self._what_happened()}; {again}",
            retry_after_s=max(1, wait),
        )

    def _what_happened(self) -> str:
        return f"{self._recent.bit_count()} of its last {2 * self._failures} calls failed"

    def _change(self) -> None:
        self._period += 1
        self._trying = False
        self._on_change()
