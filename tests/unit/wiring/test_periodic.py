"""Background work goes on whatever it raises, and ends with its context."""

import asyncio
import logging
import time

import pytest
from prometheus_client import CollectorRegistry

from app.errors import DataError
from app.wiring.periodic import Periodic
from tests.waiting import until

OFTEN_S = 0.001
NEVER_S = 3600.0


class Work:
    """Counts its runs and raises a chosen error."""

    def __init__(self) -> None:
        self.runs = 0
        self.error: Exception | None = None

    async def __call__(self) -> None:
        await asyncio.sleep(0)
        self.runs += 1
        if self.error is not None:
            raise self.error

    async def more(self, runs: int = 3) -> None:
        """Wait for so many further runs."""
        enough = self.runs + runs
        await until(lambda: self.runs >= enough)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def failures(registry: CollectorRegistry, task: str) -> float | None:
    return registry.get_sample_value("fetchwise_background_failures_total", {"task": task})


async def test_work_has_run_once_before_it_repeats(registry: CollectorRegistry) -> None:
    """Who schedules it can rely on the first run; the counter is there before the first failure."""
    slow, quick = Work(), Work()
    async with Periodic(registry) as periodic:
        await periodic.every(NEVER_S, "slow", slow)
        await periodic.every(OFTEN_S, "quick", quick)
        assert slow.runs == 1
        await quick.more()
        assert slow.runs == 1
        assert failures(registry, "slow") == failures(registry, "quick") == 0


async def test_the_first_run_may_come_later(registry: CollectorRegistry) -> None:
    """After the interval."""
    slow, quick = Work(), Work()
    async with Periodic(registry) as periodic:
        await periodic.every(NEVER_S, "slow", slow, at_once=False)
        await periodic.every(OFTEN_S, "quick", quick, at_once=False)
        await quick.more()
        assert slow.runs == 0


@pytest.mark.parametrize(("error", "trace"), [(DataError("keys.json is gone"), False), (ValueError("a bug"), True)])
async def test_a_failure_is_counted_each_time_and_logged_once(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture, error: Exception, trace: bool
) -> None:
    """So is the recovery; a further failure is logged again. Only unexpected errors have a traceback."""
    caplog.set_level(logging.INFO)
    work = Work()
    work.error = error
    async with Periodic(registry) as periodic:
        await periodic.every(OFTEN_S, "keys", work)
        await work.more()
        assert (failures(registry, "keys") or 0) >= 3
        assert [record.getMessage() for record in caplog.records] == [f"keys failed, next try in 0.001 s: {error}"]
        assert (caplog.records[0].exc_info is not None) is trace
        work.error = None
        await work.more()
        counted = failures(registry, "keys")
        assert caplog.messages[1:] == ["keys works again"]
        work.error = error
        await work.more()
    assert len(caplog.messages) == 3
    assert (failures(registry, "keys") or 0) > (counted or 0)


async def test_running_work_may_end(registry: CollectorRegistry) -> None:
    """Leaving waits for it: what it does in a thread could not be cancelled."""
    runs: list[str] = []

    def block() -> None:
        runs.append("began")
        time.sleep(0.02)
        runs.append("ended")

    async with Periodic(registry) as periodic:
        await periodic.every(OFTEN_S, "slow", lambda: asyncio.to_thread(block))
        await until(lambda: len(runs) >= 3)
    assert runs[-1] == "ended"


async def test_work_that_hangs_is_cancelled(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some time to end."""
    monkeypatch.setattr("app.wiring.periodic.GRACE_S", 0.01)
    hanging, cancelled = asyncio.Event(), asyncio.Event()
    runs = 0

    async def hangs() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            return
        hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    quick = Work()
    async with Periodic(registry) as periodic:
        await periodic.every(OFTEN_S, "hangs", hangs)
        await periodic.every(OFTEN_S, "quick", quick)
        await hanging.wait()
    assert cancelled.is_set()
    runs_then = quick.runs
    await asyncio.sleep(0.02)
    assert quick.runs == runs_then
