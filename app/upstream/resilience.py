"""Calls to remote parts: a circuit breaker for each part or replica, and a few retries where they are safe.

closed ── `failures` of the last calls failed ──► open ── a pause ──► half-open ── the trial succeeds ──► closed
                                                    ▲                     │
                                                    └── the trial fails ──┘

A retry is safe where the call is cheap and changes nothing (embedding, searching), or where the part did not answer;
never after a timeout, which would double the load of a part that is too slow. Libraries for this cost twenty
microseconds and more for a call that succeeds; this costs about two.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from app.errors import UpstreamBadReply, UpstreamError, UpstreamUnavailable
from app.ports import Clock

T = TypeVar("T")

logger = logging.getLogger(__name__)

# An open breaker pauses longer by up to this share of `retry_s`, so that gateways do not all come back at once.
_JITTER = 0.5
# Of all calls to a part, this share may be retried.
_SHARE = 0.1
# The longest wait before the first retry; twice that before the next.
_PAUSE_S = 0.05


class Breaker:
    """Opens when `failures` of the last twice as many calls have failed, for about `retry_s` seconds.

    A call that began before the last opening or closing says nothing about the time after it, and does not count.
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
        if self._until is not None:
            if not self.due:
                raise self.refusal()
            self._trying = True
        period = self._period
        try:
            yield
        except UpstreamError as error:
            if period == self._period:
                self._failed(error)
            raise
        except BaseException:
            # Given up, or its request was wrong: nothing was learned, and another call may be the trial.
            if period == self._period:
                self._trying = False
            raise
        if period == self._period:
            self._succeeded()

    def _succeeded(self) -> None:
        if self._until is not None:
            self._until, self._recent = None, 0
            self._change()
            logger.info("%s answers again", self._upstream)
        elif self._recent:
            self._recent = self._recent << 1 & self._window

    def _failed(self, error: UpstreamError) -> None:
        self._recent = (self._recent << 1 | 1) & self._window
        if self._until is None:
            if self._recent.bit_count() < self._failures:
                return
            logger.warning(
                "%s is left alone for a while: %s, the last one: %s", self._upstream, self._what_happened(), error
            )
        self._until = self._clock() + self._retry_s * self._dice.uniform(1.0, 1.0 + _JITTER)
        self._change()

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


class Retries:
    """At most so many for a call, and for all calls a share of them, so that a storm is not made worse.

    `at_once` are in store from the beginning: a server that dies takes all that it was asked with it.
    """

    def __init__(
        self, most: int, kinds: tuple[type[UpstreamError], ...], *, at_once: int, on_retry: Callable[[], None]
    ) -> None:
        self._most = most
        self._kinds = kinds
        self._at_once = self._left = float(at_once)
        self._on_retry = on_retry
        self._dice = random.Random()  # noqa: S311 - spreading pauses, not secrets

    def earn(self) -> None:
        """Count a call: each pays for a part of a retry."""
        if self._left < self._at_once:
            self._left += _SHARE

    def allow(self, error: UpstreamError, tried: int) -> bool:
        """Whether a call that has failed `tried` times is to be tried again; counts it if so."""
        # Whole seconds are longer than an asker should wait.
        if tried > self._most or not isinstance(error, self._kinds) or error.retry_after_s or self._left < 1.0:
            return False
        self._left -= 1.0
        self._on_retry()
        return True

    async def pause(self, tried: int) -> None:
        """Wait a random time, so that calls that failed together do not come back together."""
        await asyncio.sleep(self._dice.uniform(0.0, _PAUSE_S * 2 ** (tried - 1)))


class Resilience:
    """Makes the breakers and retries of a gateway, and tells whoever watches what becomes of them."""

    def __init__(self, *, failures: int, retry_s: float, retries: int, at_once: int) -> None:
        self._failures = failures
        self._retry_s = retry_s
        self._retries = retries
        self._at_once = at_once
        self._breakers: dict[str, list[Breaker]] = {}
        self._on_open: Callable[[str, float], None] = lambda _upstream, _share: None
        self._on_retry: Callable[[str], None] = lambda _upstream: None

    def watch(self, on_open: Callable[[str, float], None], on_retry: Callable[[str], None]) -> None:
        """Be told the share of a part's breakers that are open, now and at every change; and of every retry."""
        self._on_open, self._on_retry = on_open, on_retry
        for upstream in self._breakers:
            self._tell(upstream)

    def breaker(self, upstream: str) -> Breaker:
        """A breaker for one part, or for one of its replicas."""
        breaker = Breaker(
            upstream, failures=self._failures, retry_s=self._retry_s, on_change=lambda: self._tell(upstream)
        )
        self._breakers.setdefault(upstream, []).append(breaker)
        return breaker

    def retries(self, upstream: str, *kinds: type[UpstreamError]) -> Retries:
        """The retries of one part, after failures of these kinds."""
        return Retries(self._retries, kinds, at_once=self._at_once, on_retry=lambda: self._on_retry(upstream))

    def link(self, upstream: str) -> "Link":
        """The way to a part whose calls are cheap and change nothing."""
        return Link(self.breaker(upstream), self.retries(upstream, UpstreamUnavailable, UpstreamBadReply))

    def _tell(self, upstream: str) -> None:
        breakers = self._breakers[upstream]
        self._on_open(upstream, sum(breaker.open for breaker in breakers) / len(breakers))


@dataclass(frozen=True, slots=True)
class Link:
    """The way to one part."""

    breaker: Breaker
    retries: Retries

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it, if the breaker lets it through, and once more where that is safe."""
        self.retries.earn()
        tried = 0
        while True:
            try:
                with self.breaker.watching():
                    return await work()
            except UpstreamError as error:
                tried += 1
                if self.breaker.open or not self.retries.allow(error, tried):
                    raise
            await self.retries.pause(tried)

    async def ping(self, ping: Callable[[], Awaitable[object]]) -> None:
        """Ping past the breaker, for the truth; a reply is as good as a trial, where one is due."""
        await ping()
        if self.breaker.due:
            with self.breaker.watching():
                pass
