"""The decision log: answers never wait for it, feedback is acknowledged only once it is on disk."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from app.core.feedback import Feedback, Judged, Source
from app.core.record import FullRun, Outcome
from app.errors import LogUnavailable
from app.learning.log import DecisionLog, LogMetrics, LogTiming
from tests.fakes.artifacts import an_identity
from tests.fakes.decision_store import FaultyStore
from tests.fakes.records import a_record
from tests.waiting import until

QUICK = LogTiming(write_every_s=0.01, retry_s=0.02, feedback_timeout_s=10.0, close_timeout_s=0.1)
# Nothing is written except for feedback or at the end.
IDLE = LogTiming(write_every_s=60.0, retry_s=0.02, feedback_timeout_s=10.0, close_timeout_s=0.1)
DAY = 86_400.0
DOWN = LogUnavailable("the decision log cannot be written: disk full")


@dataclass
class Running:
    """A running log, its store, and its metrics."""

    log: DecisionLog
    store: FaultyStore
    registry: CollectorRegistry

    @property
    def dropped(self) -> float | None:
        """How many entries were lost."""
        return self.registry.get_sample_value("fetchwise_log_dropped_total")

    def verdicts(self, correct: str) -> float | None:
        """How much such feedback on answers from one passage was counted."""
        return self.registry.get_sample_value("fetchwise_feedback_total", {"correct": correct, "action": "k1"})

    async def written(self, count: int) -> None:
        """Wait until that many decisions are on disk."""
        await until(lambda: len(self.store.rows()) >= count)

    async def tried(self, times: int) -> None:
        """Wait until the store was called that often."""
        await until(lambda: self.store.writes >= times)


Open = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def open_log(tmp_path: Path) -> Open:
    """Run a log on a file, the same for every log of a test."""

    @asynccontextmanager
    async def opened(
        pace: LogTiming = QUICK,
        *,
        capacity: int = 100,
        keep_days: int = 0,
        most: int = 0,
        now: float = 100 * DAY,
        fail_with: Exception | None = None,
    ) -> AsyncIterator[Running]:
        store = FaultyStore(str(tmp_path / "decisions.sqlite3"))
        store.fail_with = fail_with
        registry = CollectorRegistry()
        log = DecisionLog(
            store,
            capacity=capacity,
            keep_days=keep_days,
            most=most,
            metrics=LogMetrics(registry, (0, 1, 5)),
            pace=pace,
            clock=lambda: now,
        )
        log.start()
        try:
            yield Running(log, store, registry)
        finally:
            store.gate.set()
            await log.close()

    return opened


async def test_decisions_are_written_in_order_without_being_asked(open_log: Open) -> None:
    """Records are stored after the next write, with the time at which they were observed."""
    async with open_log() as running:
        for number in range(20):
            running.log.observe(a_record(id=str(number)))
        await running.written(20)
        assert [row["id"] for row in running.store.rows()] == [str(number) for number in range(20)]
        assert {row["created_at"] for row in running.store.rows()} == {100 * DAY}
    assert running.dropped == 0


async def test_shadow_runs_are_written_behind_their_decisions(open_log: Open) -> None:
    """They use the same queue, and are counted if it is full."""
    run = FullRun("a", an_identity(), {k: Outcome("Paris", {}, 40, 5, k, 20.0) for k in (0, 1, 5)})
    async with open_log(IDLE, capacity=2) as running:
        running.log.observe(a_record(id="a"))
        running.log.observe(run)
        running.log.observe(run)
    assert running.dropped == 1
    assert running.store.runs() == ["a"]


async def test_feedback_takes_the_waiting_decision_along(open_log: Open) -> None:
    """Feedback on a queued decision is acknowledged when both are stored, in one transaction."""
    async with open_log(IDLE) as running:
        running.log.observe(a_record(id="a"))
        running.log.observe(a_record(id="b"))
        judged = await running.log.give(Feedback("a", correct=True))
        assert judged == Judged("a", True, Source.CALLER, False, "k1")
        assert [(row["id"], bool(row["feedback"])) for row in running.store.rows()] == [("a", True), ("b", False)]
        assert running.store.writes == 1
        assert running.verdicts("true") == 1


async def test_a_decision_that_another_worker_is_about_to_write_is_found(open_log: Open) -> None:
    """The id is looked up again after the time in which the other worker writes."""
    async with open_log(LogTiming(write_every_s=0.7)) as here, open_log() as there:
        giving = asyncio.create_task(here.log.give(Feedback("a", correct=True)))
        await here.tried(1)
        there.log.observe(a_record(id="a"))
        assert (await giving).correct


async def test_a_full_queue_drops_and_counts(open_log: Open, caplog: pytest.LogCaptureFixture) -> None:
    """While the database hangs, observing goes on; beyond the capacity records are dropped, counted and logged once."""
    async with open_log(capacity=10) as running:
        running.store.gate.clear()
        running.log.observe(a_record(id="taken"))
        await running.tried(1)
        for number in range(30):
            running.log.observe(a_record(id=str(number)))
        # One is held by the writer, nine wait.
        assert running.dropped == 21
        running.store.gate.set()
        await running.written(10)
        running.log.observe(a_record(id="after"))
        await running.written(11)
    said = [record.getMessage() for record in caplog.records]
    assert sum("is too slow" in line for line in said) == 1
    assert sum("works again" in line for line in said) == 1


async def test_a_store_in_trouble_refuses_feedback_and_loses_nothing(
    open_log: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Decisions stay queued, feedback is refused, and one line says so; afterwards all is written."""
    async with open_log() as running:
        running.log.observe(a_record(id="a"))
        await running.written(1)
        running.store.fail_with = DOWN
        for number in range(5):
            running.log.observe(a_record(id=str(number)))
            with pytest.raises(LogUnavailable, match="disk full"):
                await running.log.give(Feedback("a", correct=True))
        assert len(running.store.rows()) == 1
        assert running.verdicts("true") == 0
        running.store.fail_with = None
        assert not (await running.log.give(Feedback("a", correct=True))).repeated
        assert [row["id"] for row in running.store.rows()] == ["a", "0", "1", "2", "3", "4"]
    assert running.dropped == 0
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2
    assert "feedback is refused" in said[0]
    assert "works again" in said[1]


async def test_a_database_in_trouble_is_not_tried_more_often_for_feedback(open_log: Open) -> None:
    """Feedback that arrives meanwhile waits for the next attempt."""
    async with open_log(LogTiming(write_every_s=0.01, retry_s=0.3, close_timeout_s=0.1)) as running:
        running.store.fail_with = DOWN
        running.log.observe(a_record())
        await running.tried(1)
        before = running.store.writes
        giving = [running.log.give(Feedback("0123", correct=True)) for _ in range(50)]
        outcomes = await asyncio.gather(*giving, return_exceptions=True)
        assert all(isinstance(outcome, LogUnavailable) for outcome in outcomes)
        assert running.store.writes <= before + 3


async def test_an_unexpected_error_drops_its_batch_only(open_log: Open, caplog: pytest.LogCaptureFixture) -> None:
    """A bug does not end the writer: the batch is dropped and counted, its trace is logged, the next is written."""
    async with open_log() as running:
        running.store.fail_with = ZeroDivisionError("oops")
        running.log.observe(a_record(id="a"))
        with pytest.raises(LogUnavailable, match="unexpected"):
            await running.log.give(Feedback("a", correct=True))
        running.store.fail_with = None
        running.log.observe(a_record(id="b"))
        await running.written(1)
        assert [row["id"] for row in running.store.rows()] == ["b"]
    assert running.dropped == 1
    assert any(record.exc_info for record in caplog.records)


async def test_feedback_that_takes_too_long_is_refused_and_not_kept(open_log: Open) -> None:
    """Feedback that was refused while it was queued is not stored."""
    pace = LogTiming(write_every_s=0.01, retry_s=0.02, feedback_timeout_s=0.1)
    async with open_log(pace) as running:
        running.store.gate.clear()
        running.log.observe(a_record(id="a"))
        await running.tried(1)
        with pytest.raises(LogUnavailable, match="in time"):
            await running.log.give(Feedback("a", correct=True))
        running.store.gate.set()
        await running.written(1)
    assert [row["feedback"] for row in running.store.rows()] == [None]


async def test_too_much_feedback_at_once_is_refused(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queued feedback is bounded, too."""
    monkeypatch.setattr("app.learning.log._MAX_PENDING_FEEDBACK", 2)
    async with open_log() as running:
        running.store.gate.clear()
        running.log.observe(a_record(id="a"))
        await running.tried(1)
        waiting = [asyncio.create_task(running.log.give(Feedback("a", correct=True))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(LogUnavailable, match="is busy"):
            await running.log.give(Feedback("a", correct=True))
        running.store.gate.set()
        assert [judged.correct for judged in await asyncio.gather(*waiting)] == [True, True]


async def test_closing_writes_what_waits(open_log: Open) -> None:
    """A normal stop loses nothing, and accepts no more feedback."""
    async with open_log(IDLE) as running:
        for number in range(50):
            running.log.observe(a_record(id=str(number)))
        assert running.store.rows() == []
    assert len(running.store.rows()) == 50
    assert running.store.closed
    assert running.dropped == 0
    with pytest.raises(LogUnavailable):
        await running.log.give(Feedback("1", correct=True))


async def test_closing_on_a_store_in_trouble_says_what_is_lost(
    open_log: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """It retries until the time limit; then the loss is counted and logged."""
    async with open_log() as running:
        running.store.fail_with = DOWN
        for number in range(3):
            running.log.observe(a_record(id=str(number)))
    assert running.dropped == 3
    assert "3 decisions could not be written" in caplog.text


async def test_closing_waits_for_a_store_that_recovers(open_log: Open) -> None:
    """If the store recovers in time, nothing is lost."""
    async with open_log(LogTiming(write_every_s=0.01, retry_s=0.02, close_timeout_s=30.0)) as running:
        running.store.fail_with = DOWN
        running.log.observe(a_record())
        await running.tried(1)
        asyncio.get_running_loop().call_later(0.1, setattr, running.store, "fail_with", None)
    assert len(running.store.rows()) == 1


async def test_old_decisions_go_once_a_minute(
    open_log: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Old decisions are deleted at the start, a few at a time and counted, and newer ones stay."""
    monkeypatch.setattr("app.learning.log._PRUNED_AT_ONCE", 2)
    monkeypatch.setattr("app.learning.log._PRUNE_SPEED", 1e6)
    caplog.set_level(logging.INFO)
    async with open_log(now=1.0) as running:
        for number in range(5):
            running.log.observe(a_record(id=f"old{number}"))
    async with open_log(now=time.time(), keep_days=90) as running:
        running.log.observe(a_record(id="new"))
        await until(lambda: [row["id"] for row in running.store.rows()] == ["new"])
        running.log.observe(a_record(id="newer"))
        await running.written(2)
        # Two, two and one; the last was less than it might have been, so the next is in a minute.
        assert running.store.prunings == [2, 2, 2]
        assert [row["id"] for row in running.store.rows()] == ["new", "newer"]
        assert running.registry.get_sample_value("fetchwise_log_pruned_total") == 5
    assert "deleted 5 decisions" in caplog.text


async def test_a_wrong_clock_deletes_little_at_a_time(open_log: Open, caplog: pytest.LogCaptureFixture) -> None:
    """In a minute at most ten minutes' share of the log goes, and a line says that more is due."""
    caplog.set_level(logging.INFO)
    async with open_log(now=1.0) as running:
        for number in range(50):
            running.log.observe(a_record(id=f"old{number}"))
    async with open_log(keep_days=1) as running:
        await until(lambda: "more are due" in caplog.text)
        # A day has 1,440 minutes: ten of them are less than one of 50 decisions.
        assert len(running.store.rows()) == 49
        assert running.store.prunings == [1]


async def test_another_clock_deletes_nothing(open_log: Open) -> None:
    """The age of a decision is by the clock of the database, not by that of the gateway."""
    async with open_log(now=time.time()) as running:
        running.log.observe(a_record(id="new"))
    async with open_log(now=time.time() + 100 * DAY, keep_days=90) as running:
        await until(lambda: running.store.prunings)
        assert len(running.store.rows()) == 1


async def test_the_newest_decisions_stay(open_log: Open) -> None:
    """Beyond the largest number the oldest are deleted, however new they are."""
    async with open_log() as running:
        for number in range(5):
            running.log.observe(a_record(id=str(number)))
    async with open_log(most=2) as running:
        await until(lambda: len(running.store.rows()) == 2)
    assert [row["id"] for row in running.store.rows()] == ["3", "4"]


async def test_pruning_that_fails_is_logged_and_does_no_harm(open_log: Open, caplog: pytest.LogCaptureFixture) -> None:
    """The log goes on, and tries again in a minute."""
    async with open_log(keep_days=90, fail_with=DOWN) as running:
        await until(lambda: running.store.prunings)
        running.store.fail_with = None
        running.log.observe(a_record())
        await running.written(1)
    assert "cannot be deleted" in caplog.text
    assert len(running.store.prunings) == 1


async def test_a_bug_outside_of_writing_does_not_end_the_writer(
    open_log: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Its trace is logged once and the log is failing until the next write, which is tried; pruning waits."""
    pace = LogTiming(write_every_s=0.01, retry_s=0.3, close_timeout_s=0.1)
    async with open_log(pace, keep_days=90, fail_with=TypeError("oops")) as running:
        await until(lambda: running.registry.get_sample_value("fetchwise_log_failing") == 1)
        running.store.fail_with = None
        running.log.observe(a_record(id="a"))
        assert (await running.log.give(Feedback("a", correct=True))).correct
        await until(lambda: running.registry.get_sample_value("fetchwise_log_failing") == 0)
    assert len(running.store.prunings) == 1
    assert sum(bool(record.exc_info) for record in caplog.records) == 1


async def test_an_outage_is_seen_in_the_metrics(open_log: Open) -> None:
    """While writes fail the log is failing and decisions wait; then neither."""
    async with open_log(fail_with=DOWN) as running:
        running.log.observe(a_record())
        await running.tried(2)
        assert running.registry.get_sample_value("fetchwise_log_failing") == 1
        assert running.registry.get_sample_value("fetchwise_log_waiting") == 1
        running.store.fail_with = None
        await running.written(1)
        await until(lambda: running.registry.get_sample_value("fetchwise_log_failing") == 0)
        assert running.registry.get_sample_value("fetchwise_log_waiting") == 0


async def test_an_outage_ends_without_traffic(open_log: Open) -> None:
    """Only feedback failed, and nothing waits: the metric falls back all the same."""
    async with open_log(fail_with=DOWN) as running:
        with pytest.raises(LogUnavailable):
            await running.log.give(Feedback("a", correct=True))
        await until(lambda: running.registry.get_sample_value("fetchwise_log_failing") == 1)
        running.store.fail_with = None
        await until(lambda: running.registry.get_sample_value("fetchwise_log_failing") == 0)


async def test_audits_that_wait_take_no_thread_of_others(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait for the database, work in asyncio's own threads goes on; each ends in time."""
    pace = LogTiming(audit_timeout_s=0.5, close_timeout_s=0.1)
    async with open_log(pace) as running:
        gate = threading.Event()
        monkeypatch.setattr(running.store, "audit_rows", lambda **_: [None] * (not gate.wait(60)))
        audits = [asyncio.create_task(running.log.audit(0.0, 10)) for _ in range(40)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(lambda: "done") == "done"
        for one in audits:
            with pytest.raises(LogUnavailable, match="did not answer in time"):
                await one
        gate.set()


async def test_closing_does_not_wait_for_a_store_that_hangs(open_log: Open, caplog: pytest.LogCaptureFixture) -> None:
    """It ends in time, and says how many decisions may be lost."""
    async with open_log(LogTiming(write_every_s=0.01, close_timeout_s=0.1, stuck_s=0.1)) as running:
        running.store.gate.clear()
        running.log.observe(a_record())
        await running.tried(1)
        await running.log.close()
        assert "up to 1 decisions are lost" in caplog.text


def test_every_verdict_label_is_there_from_the_start() -> None:
    """Every label value exists before the first event, so that rates are defined."""
    registry = CollectorRegistry()
    metrics = LogMetrics(registry, (0, 1, 5))
    for correct in ("true", "false"):
        for action in ("k0", "k1", "k5"):
            assert registry.get_sample_value("fetchwise_feedback_total", {"correct": correct, "action": action}) == 0
    assert registry.get_sample_value("fetchwise_log_dropped_total") == 0
    metrics.dropped.inc(3)
    metrics.feedback(Judged("a", True, Source.CALLER, False, "k5"))
    metrics.feedback(Judged("a", None, Source.REFERENCES, False, "abstain"))
    assert registry.get_sample_value("fetchwise_log_dropped_total") == 3
    assert registry.get_sample_value("fetchwise_feedback_total", {"correct": "true", "action": "k5"}) == 1
