"""Permits and their queue: never too many, first in first out, and none is lost."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from app.api.http.permits import Permits, retry_after_s
from app.errors import Overloaded
from app.telemetry.gauges import TrafficMetrics

FOREVER_S = 3600.0


class Watched:
    """Permits and their metrics."""

    def __init__(self, count: int, places: int, *, max_wait_s: float = FOREVER_S) -> None:
        self._registry = CollectorRegistry()
        self.permits = Permits(count, places=places, max_wait_s=max_wait_s, metrics=TrafficMetrics(self._registry))

    def count(self, what: str) -> int:
        """The value of a metric."""
        return int(self._registry.get_sample_value(f"fetchwise_{what}") or 0)


async def turns() -> None:
    """Let all tasks run until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


class Schedule:
    """Questions that arrive, end and are cancelled in any order; each step checks the invariants."""

    def __init__(self, count: int, places: int) -> None:
        self.count, self.places = count, places
        self.watched = Watched(count, places)
        self.running: dict[int, asyncio.Event] = {}
        self.asked: dict[int, asyncio.Task[None]] = {}
        self.waiting: list[int] = []
        self.refused: list[int] = []
        self.numbers: Iterator[int] = iter(range(10_000))

    async def _ask(self, number: int) -> None:
        permits = self.watched.permits
        self.waiting.append(number)
        try:
            await permits.take()
        except Overloaded:
            self.refused.append(number)
            return
        else:
            assert self.waiting[0] == number, "somebody was faster than one who came first"
        finally:
            self.waiting.remove(number)
        end = self.running[number] = asyncio.Event()
        assert len(self.running) <= self.count
        try:
            await end.wait()
        finally:
            del self.running[number]
            permits.give_back()

    def come(self) -> None:
        number = next(self.numbers)
        self.asked[number] = asyncio.create_task(self._ask(number))

    def end(self, which: int) -> None:
        if self.running:
            list(self.running.values())[which % len(self.running)].set()

    def leave(self, which: int) -> None:
        in_progress = [task for task in self.asked.values() if not task.done()]
        if in_progress:
            in_progress[which % len(in_progress)].cancel()

    def check(self) -> None:
        """Check when all tasks wait."""
        assert len(self.running) <= self.count
        assert len(self.waiting) <= self.places
        # No question waits while a permit is free: otherwise a permit was lost.
        assert not self.waiting or len(self.running) == self.count
        assert self.watched.count("in_flight") == len(self.running)
        assert self.watched.count("queued") == len(self.waiting)
        assert self.watched.count("shed_total") == len(self.refused)
        assert self.watched.permits.full == (len(self.running) == self.count and len(self.waiting) == self.places)


STEPS = st.lists(
    st.tuples(st.sampled_from(["come", "come", "end", "leave", "rest"]), st.integers(0, 20)), min_size=1, max_size=60
)


@given(count=st.integers(1, 3), places=st.integers(0, 4), steps=STEPS)
def test_any_schedule(count: int, places: int, steps: list[tuple[str, int]]) -> None:
    """In any order of arrivals, ends and cancellations the invariants hold, and all permits are released."""

    async def carried_out() -> None:
        schedule = Schedule(count, places)
        for step, which in steps:
            match step:
                case "come":
                    schedule.come()
                case "end":
                    schedule.end(which)
                case "leave":
                    schedule.leave(which)
                case "rest":
                    await turns()
                    schedule.check()
            if which % 2:
                await asyncio.sleep(0)
        for task in schedule.asked.values():
            task.cancel()
        await asyncio.gather(*schedule.asked.values(), return_exceptions=True)
        schedule.check()
        for _ in range(count):
            assert not await asyncio.wait_for(schedule.watched.permits.take(), 1)
        assert schedule.watched.permits.full == (places == 0)

    asyncio.run(carried_out())


async def test_a_permit_handed_to_one_who_leaves_goes_on_to_the_next() -> None:
    """Given back and cancelled in the same moment: the second in the queue gets it, and it is not lost."""
    watched = Watched(1, 2)
    await watched.permits.take()
    first, second = (asyncio.create_task(watched.permits.take()) for _ in range(2))
    await turns()
    watched.permits.give_back()
    first.cancel()
    await turns()
    assert first.cancelled()
    assert second.done()
    assert (watched.count("in_flight"), watched.count("queued")) == (1, 0)


@pytest.mark.parametrize(("max_wait_s", "until_s"), [(0.01, None), (0.01, FOREVER_S), (FOREVER_S, 0.01)])
async def test_who_waits_too_long_is_refused(max_wait_s: float, until_s: float | None) -> None:
    """After the maximum wait or at the deadline the place is free again, and the refusal is counted."""
    watched = Watched(1, 1, max_wait_s=max_wait_s)
    await watched.permits.take()
    until = None if until_s is None else asyncio.get_running_loop().time() + until_s
    with pytest.raises(Overloaded):
        await watched.permits.take(until)
    assert (watched.count("queued"), watched.count("shed_total"), watched.count("queue_wait_seconds_count")) == (
        0,
        1,
        1,
    )
    watched.permits.give_back()
    assert await watched.permits.take() == 0.0


async def test_a_wait_says_how_long_it_was() -> None:
    """The wait is returned; it is 0 for a free permit."""
    watched = Watched(1, 1)
    assert await watched.permits.take() == 0.0
    asyncio.get_running_loop().call_later(0.02, watched.permits.give_back)
    assert await watched.permits.take() >= 0.01


def test_refusals_are_said_now_and_then(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One log line at once, then one every few seconds with the number of refusals."""
    now = 100.0
    monkeypatch.setattr("app.api.http.permits.time.monotonic", lambda: now)
    watched = Watched(1, 0)
    with caplog.at_level(logging.WARNING):
        for _ in range(500):
            watched.permits.refuse()
        now += 60
        watched.permits.refuse()
    said: list[Any] = [record.args for record in caplog.records]
    assert said == [(1,), (500,)]


@pytest.mark.parametrize(("max_wait_s", "seconds"), [(0.1, 1), (1.0, 1), (2.5, 3)])
def test_retry_after_is_whole_seconds(max_wait_s: float, seconds: int) -> None:
    """At least one second, and at least the maximum wait."""
    assert retry_after_s(max_wait_s) == seconds
