"""Calls to remote upstreams: what is retried, what is not, and when the breaker opens."""

import asyncio
import math

import pytest

from app.errors import UnknownCollection, UpstreamBadReply, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from app.upstream.resilience import Link, Resilience

AWHILE = 3600.0


def resilience(*, failures: int = 100, retry_s: float = AWHILE, retries: int = 1) -> Resilience:
    return Resilience(failures=failures, retry_s=retry_s, retries=retries, at_once=10)


class FlakyUpstream:
    """Fails with each of `ends` in turn, then succeeds; counts the calls."""

    def __init__(self, *ends: Exception) -> None:
        self.ends = list(ends)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        await asyncio.sleep(0)
        if self.ends:
            raise self.ends.pop(0)
        return "answer"


GONE = UpstreamUnavailable("vectors", "gone")


@pytest.mark.parametrize("error", [GONE, UpstreamBadReply("vectors", "nonsense")])
async def test_failed_cheap_call_is_retried(error: UpstreamError) -> None:
    """The caller does not see the failure, and the retry is counted."""
    retried: list[str] = []
    made = resilience()
    made.watch(lambda *_: None, retried.append, lambda *_: None, lambda *_: None)
    upstream = FlakyUpstream(error)
    assert await made.link("vectors").call(upstream) == "answer"
    assert (upstream.calls, retried) == (2, ["vectors"])


@pytest.mark.parametrize(
    "error",
    [
        UpstreamTimeout("vectors", "late"),
        UpstreamUnavailable("vectors", "come back later", retry_after_s=1),
        UnknownCollection("no such collection"),
    ],
)
async def test_timeouts_and_wrong_calls_are_not_retried(error: Exception) -> None:
    """A retry would double the load of a slow upstream, come before its `Retry-After`, or fail in the same way."""
    upstream = FlakyUpstream(error)
    with pytest.raises(type(error)):
        await resilience(retries=3).link("vectors").call(upstream)
    assert upstream.calls == 1


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_number_of_retries_is_bounded(retries: int) -> None:
    """The setting is the number of retries; the caller sees the last failure."""
    upstream = FlakyUpstream(*(UpstreamUnavailable("vectors", f"failure {number}") for number in range(1, 9)))
    with pytest.raises(UpstreamUnavailable, match=f"failure {retries + 1}"):
        await resilience(retries=retries).link("vectors").call(upstream)
    assert upstream.calls == retries + 1


async def test_retries_are_limited_when_everything_fails() -> None:
    """If every call fails, retries add only a tenth to the calls, after the first few."""
    link = resilience(failures=1000).link("vectors")
    upstream = FlakyUpstream(*[GONE] * 1000)
    for _ in range(400):
        with pytest.raises(UpstreamUnavailable):
            await link.call(upstream)
    assert 400 + 10 <= upstream.calls <= 400 + 10 + 40


async def test_open_breaker_refuses_calls_until_a_trial_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are refused at once while the breaker is open; the first call after the pause closes it."""
    shares: list[tuple[str, float]] = []
    made = resilience(failures=2, retries=0)
    link = made.link("vectors")
    ignored = lambda *_: None  # noqa: E731
    made.watch(lambda upstream, share: shares.append((upstream, share)), ignored, ignored, ignored)
    upstream = FlakyUpstream(GONE, GONE)
    for _ in range(2):
        with pytest.raises(UpstreamUnavailable, match="gone"):
            await link.call(upstream)
    with pytest.raises(UpstreamUnavailable, match="is open: ") as refused:
        await link.call(upstream)
    assert upstream.calls == 2
    assert refused.value.retry_after_s is not None
    assert refused.value.retry_after_s >= AWHILE
    monkeypatch.setattr(link.breaker, "_clock", lambda: math.inf)
    assert await link.call(upstream) == "answer"
    assert shares == [("vectors", 0.0), ("vectors", 1.0), ("vectors", 0.0)]


@pytest.mark.parametrize("answered", [True, False])
async def test_wrong_and_cancelled_requests_do_not_open_the_breaker(answered: bool) -> None:
    """Only the upstream's own failures count: no caller can block others."""
    link = resilience(failures=2).link("vectors")
    for _ in range(10):
        if answered:
            with pytest.raises(UnknownCollection):
                await link.call(FlakyUpstream(UnknownCollection("no such collection")))
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await link.call(lambda: asyncio.sleep(AWHILE))
    assert await link.call(FlakyUpstream()) == "answer"


async def tripped(made: Resilience, upstream: str) -> Link:
    """A link with an open breaker."""
    link = made.link(upstream)
    with pytest.raises(UpstreamUnavailable):
        await link.call(FlakyUpstream(GONE))
    return link


async def test_ping_bypasses_the_breaker_and_closes_it_after_the_pause() -> None:
    """A ping reports the real state, and brings an upstream back even without questions."""
    soon = await tripped(resilience(failures=1, retry_s=0.001, retries=0), "embedder")
    later = await tripped(resilience(failures=1, retries=0), "embedder")
    await asyncio.sleep(0.05)
    for link in (soon, later):
        await link.ping(FlakyUpstream())
        with pytest.raises(UpstreamUnavailable, match="gone"):
            await link.ping(FlakyUpstream(GONE))
    assert await soon.call(FlakyUpstream()) == "answer"
    with pytest.raises(UpstreamUnavailable, match="is open: "):
        await later.call(FlakyUpstream())
