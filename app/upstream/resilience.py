"""Circuit breakers and retries for remote upstreams: one breaker for each upstream or replica.

closed ── `failures` of the last calls failed ──► open ── a pause ──► half-open ── the trial succeeds ──► closed
                                                    ▲                     │
                                                    └── the trial fails ──┘

Retry calls that are cheap and read-only (embedding, searching), or that the upstream did not answer. Never retry after
a timeout: that would double the load of a slow upstream. Libraries add twenty microseconds or more to a successful
call; this module adds about two.
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

# Random extra pause, as a share of `retry_s`, so that gateways do not all retry at the same time.
_JITTER = 0.5
# Share of all calls to an upstream that may be retried.
_SHARE = 0.1
# Longest wait before the first retry; it doubles for the next.
_PAUSE_S = 0.05


class Breaker:
    """Opens for about `retry_s` seconds when `failures` of the last `2 * failures` calls failed.

    A call that started before the breaker last opened or closed does not count.
    """

    def __init__(
        self,
        upstream: str,
        *,
        failures: int,
        retry_s: float,
        on_change: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._upstream = upstream
        self._failures = failures
        self._retry_s = retry_s
        self._on_change = on_change
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreading pauses, not secrets
        # One bit per call, newest last, 1 for a failure. A success after successes changes nothing.
        self._recent = 0
        self._window = (1 << 2 * failures) - 1
        # When to try again; None while closed.
        self._until: float | None = None
        self._trying = False
        self._period = 0

    @property
    def open(self) -> bool:
        """Whether calls are refused: from opening until a trial call succeeds."""
        return self._until is not None

    @property
    def due(self) -> bool:
        """Whether the next call would be the trial call."""
        return self._until is not None and not self._trying and self._clock() >= self._until

    @property
    def wait_s(self) -> float:
        """Seconds until the next trial call; 0 if it may start now, or when the running one ends."""
        return max(0.0, self._until - self._clock()) if self._until is not None else 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Start a call, or raise UpstreamUnavailable while the breaker is open; record how the call ends."""
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
            # Cancelled, or the request was wrong: this says nothing about the upstream. Another call may be the trial.
            if period == self._period:
                self._trying = False
            raise
        if period == self._period:
            self._succeeded()

    def _succeeded(self) -> None:
        if self._until is not None:
            self._until, self._recent = None, 0
            self._change()
            logger.info("circuit breaker of %s closed: it answers again", self._upstream)
        elif self._recent:
            self._recent = self._recent << 1 & self._window

    def _failed(self, error: UpstreamError) -> None:
        self._recent = (self._recent << 1 | 1) & self._window
        if self._until is None:
            if self._recent.bit_count() < self._failures:
                return
            logger.warning(
                "circuit breaker of %s opened: %s, last error: %s", self._upstream, self._what_happened(), error
            )
        self._until = self._clock() + self._retry_s * self._rng.uniform(1.0, 1.0 + _JITTER)
        self._change()

    def refusal(self) -> UpstreamUnavailable:
        """The error of a call that the open breaker refuses."""
        wait = math.ceil(self.wait_s)
        again = f"next trial in {wait} s" if wait else "a trial is running"
        return UpstreamUnavailable(
            self._upstream,
            f"circuit breaker of {self._upstream} is open: {self._what_happened()}; {again}",
            retry_after_s=max(1, wait),
        )

    def _what_happened(self) -> str:
        return f"{self._recent.bit_count()} of its last {2 * self._failures} calls failed"

    def _change(self) -> None:
        self._period += 1
        self._trying = False
        self._on_change()


class Retries:
    """Limits retries: at most `most` per call, and a share of all calls, so that retries do not multiply an outage.

    `at_once` retries are available from the start: a server that dies fails all its running calls together.
    """

    def __init__(
        self, most: int, kinds: tuple[type[UpstreamError], ...], *, at_once: int, on_retry: Callable[[], None]
    ) -> None:
        self._most = most
        self._kinds = kinds
        self._at_once = self._left = float(at_once)
        self._on_retry = on_retry
        self._rng = random.Random()  # noqa: S311 - spreading pauses, not secrets

    def earn(self) -> None:
        """Count a call; each earns a fraction of a retry."""
        if self._left < self._at_once:
            self._left += _SHARE

    def allow(self, error: UpstreamError, tried: int) -> bool:
        """Whether to retry a call that failed `tried` times; if so, uses up one retry."""
        # Retry-After is in whole seconds, which is too long to wait within one request.
        if tried > self._most or not isinstance(error, self._kinds) or error.retry_after_s or self._left < 1.0:
            return False
        self._left -= 1.0
        self._on_retry()
        return True

    async def pause(self, tried: int) -> None:
        """Sleep for a random time, so that calls that failed together do not retry together."""
        await asyncio.sleep(self._rng.uniform(0.0, _PAUSE_S * 2 ** (tried - 1)))


class Resilience:
    """Creates the breakers and retries of a gateway and reports their changes."""

    def __init__(self, *, failures: int, retry_s: float, retries: int, at_once: int) -> None:
        self._failures = failures
        self._retry_s = retry_s
        self._retries = retries
        self._at_once = at_once
        self._breakers: dict[str, list[Breaker]] = {}
        self._on_open: Callable[[str, float], None] = lambda _upstream, _share: None
        self._on_retry: Callable[[str], None] = lambda _upstream: None
        self.on_call: Callable[[str, str, float], None] = lambda _server, _result, _seconds: None
        self.on_ping: Callable[[str, bool], None] = lambda _server, _up: None

    def watch(
        self,
        on_open: Callable[[str, float], None],
        on_retry: Callable[[str], None],
        on_call: Callable[[str, str, float], None],
        on_ping: Callable[[str, bool], None],
    ) -> None:
        """Report the share of an upstream's open breakers, now and on every change, and each retry.

        Report each call of a replica with its result and seconds, and whether a replica answered its ping.
        """
        self._on_open, self._on_retry, self.on_call, self.on_ping = on_open, on_retry, on_call, on_ping
        for upstream in self._breakers:
            self._report(upstream)

    def breaker(self, upstream: str) -> Breaker:
        """A breaker for one upstream, or for one of its replicas."""
        breaker = Breaker(
            upstream, failures=self._failures, retry_s=self._retry_s, on_change=lambda: self._report(upstream)
        )
        self._breakers.setdefault(upstream, []).append(breaker)
        return breaker

    def retries(self, upstream: str, *kinds: type[UpstreamError]) -> Retries:
        """The retries of one upstream, after failures of these kinds."""
        return Retries(self._retries, kinds, at_once=self._at_once, on_retry=lambda: self._on_retry(upstream))

    def link(self, upstream: str) -> "Link":
        """Breaker and retries for an upstream whose calls are cheap and read-only."""
        return Link(self.breaker(upstream), self.retries(upstream, UpstreamUnavailable, UpstreamBadReply))

    def _report(self, upstream: str) -> None:
        breakers = self._breakers[upstream]
        self._on_open(upstream, sum(breaker.open for breaker in breakers) / len(breakers))


@dataclass(frozen=True, slots=True)
class Link:
    """Breaker and retries of one upstream."""

    breaker: Breaker
    retries: Retries

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` if the breaker allows it, and retry it where that is safe."""
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
        """Ping without asking the breaker; a reply counts as the trial call if one is due."""
        await ping()
        if self.breaker.due:
            with self.breaker.watching():
                pass
