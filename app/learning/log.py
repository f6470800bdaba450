"""The decision log as an observer: records are queued, and one thread writes them.

    observe ──► pending ──┐
                          ├──► one transaction ──► store
    give ─────► waiting ──┘              │
      ▲                                  │ committed, or refused
      └──────────────────────────────────┘

Answers never wait for the log: a full queue drops records and counts them. Feedback does: it is acknowledged once
it is stored together with its decision, or refused.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from app.certify.audit import Audit, audit
from app.core.feedback import Asked, Feedback, Judged
from app.core.policy import action_of
from app.core.record import DecisionRecord, FullRun
from app.errors import FetchwiseError, LogUnavailable, UnknownDecision
from app.ports import Documents, Rows
from app.threads import in_storage_thread

logger = logging.getLogger(__name__)

_DAY_S = 86_400.0
_PRUNE_EVERY_S = 60.0
# Small, so that each write stays short.
_PRUNED_AT_ONCE = 1_000
# How much faster than they arrived decisions may be deleted: a wrong clock takes a tenth of the retention to delete the
# log, and not a minute.
_PRUNE_SPEED = 10.0
# Few, because judging takes time from other requests.
_MAX_PENDING_FEEDBACK = 100
# Further ones wait: each may hold a connection to the database for seconds.
_AUDITS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class LogTiming:
    """How often to write, how long to wait after a failure, how long feedback, audits and closing may take; seconds.

    Closing takes longer by at most `stuck_s`, for a call to the database that is under way.
    """

    write_every_s: float = 0.5
    retry_s: float = 0.5
    feedback_timeout_s: float = 5.0
    audit_timeout_s: float = 20.0
    close_timeout_s: float = 5.0
    stuck_s: float = 10.0


@dataclass(frozen=True, slots=True)
class _PendingFeedback:
    at: float
    feedback: Feedback
    done: "Future[Judged]"


class LogMetrics:
    """The metrics of the log; every label exists from the start."""

    def __init__(self, registry: CollectorRegistry, ks: Iterable[int]) -> None:
        self.dropped = Counter(
            "fetchwise_log_dropped",
            "Decisions that the log could not store and dropped.",
            registry=registry,
        )
        # The worst worker, since each writes for itself.
        self.failing = Gauge(
            "fetchwise_log_failing",
            "Whether the last write to the decision log failed, 1 or 0.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.waiting = Gauge(
            "fetchwise_log_waiting",
            "Decisions that wait to be written to the log, as of the last write.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.pruned = Counter(
            "fetchwise_log_pruned",
            "Decisions that were deleted because of their age or their number.",
            registry=registry,
        )
        self._feedback = Counter(
            "fetchwise_feedback",
            "Feedback on answers, by action; repeated feedback is not counted, changed feedback is.",
            ("correct", "action"),
            registry=registry,
        )
        self._shadows = Counter(
            "fetchwise_shadow_runs",
            "Questions drawn for a shadow run, by whether it was completed.",
            ("result",),
            registry=registry,
        )
        for result in ("completed", "lost"):
            self._shadows.labels(result)
        for correct in ("true", "false"):
            for k in ks:
                self._feedback.labels(correct, action_of(k))

    def shadow(self, result: str) -> None:
        """Count a shadow run as `completed` or `lost`."""
        self._shadows.labels(result).inc()

    def feedback(self, judged: Judged) -> None:
        """Count feedback; references for an abstention are not counted."""
        if judged.correct is None:
            return
        self._feedback.labels(str(judged.correct).lower(), judged.action).inc()


class DecisionLog:
    """Writes every decision to a store, and accepts feedback on them."""

    def __init__(
        self,
        store: Rows,
        *,
        capacity: int,
        keep_days: int,
        most: int = 0,
        metrics: LogMetrics,
        pace: LogTiming | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._keep_s = keep_days * _DAY_S
        self._most = most
        self._metrics = metrics
        self._pace = pace or LogTiming()
        self._clock = clock
        self._pending: deque[tuple[float, DecisionRecord | FullRun]] = deque()
        self._pending_feedback: deque[_PendingFeedback] = deque()
        # Taken from `pending` but not written yet.
        self._held: list[tuple[float, DecisionRecord | FullRun]] = []
        self._failing = False
        self._dropping = False
        self._auditing = asyncio.Semaphore(_AUDITS_AT_ONCE)
        # On the monotonic clock: when the next pruning begins; how many it may still delete, and how many it has.
        self._prune_at = 0.0
        self._may_prune: int | None = None
        self._pruned = 0
        self._prune_failed = False
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._writer = threading.Thread(target=self._run, name="decision-log", daemon=True)

    def start(self) -> None:
        """Start the writer."""
        self._writer.start()

    def observe(self, entry: DecisionRecord | FullRun) -> None:
        """Queue a decision, or a shadow run after its decision; dropped and counted if the queue is full."""
        if self._waiting < self._capacity:
            self._pending.append((self._clock(), entry))
            return
        self._metrics.dropped.inc()
        if not self._dropping:
            self._dropping = True
            logger.warning("the decision log is too slow: decisions are dropped and counted")

    async def give(self, feedback: Feedback) -> Judged:
        """Store feedback and return the verdict; UnknownDecision, NothingToJudge, or LogUnavailable if not stored."""
        try:
            return await self._submit(feedback)
        except UnknownDecision:
            # Another worker may have answered a moment ago, and writes the decision soon.
            await asyncio.sleep(2 * self._pace.write_every_s)
            return await self._submit(feedback)

    async def asked(self, version: str, *, after: int, until: float, wait: float, limit: int) -> list[Asked]:
        """The next answers under this calibrator whose verdict was asked for, for the drift test."""
        return await in_storage_thread(self._store.asked, version, after=after, until=until, wait=wait, limit=limit)

    async def audit(self, since: float, limit: int) -> Audit:
        """Rates by tag over the newest decisions from that time on; LogUnavailable if that takes too long."""
        try:
            async with asyncio.timeout(self._pace.audit_timeout_s), self._auditing:
                return await in_storage_thread(lambda: audit(self._store.audit_rows(since=since, limit=limit)))
        except TimeoutError as error:
            raise LogUnavailable("the decision log did not answer in time: try again, with fewer decisions") from error

    @property
    def documents(self) -> Documents:
        """Documents in the log's own database."""
        return self._store.documents

    async def close(self) -> None:
        """Write what is queued, until `close_timeout_s` has passed, and end the thread."""
        self._stopping.set()
        self._wake.set()
        await asyncio.to_thread(self._writer.join, self._pace.close_timeout_s + self._pace.stuck_s)
        if self._writer.is_alive():
            logger.error("the decision log does not answer: up to %d decisions are lost", self._waiting)
        self._store.close()

    async def _submit(self, feedback: Feedback) -> Judged:
        if self._stopping.is_set() or len(self._pending_feedback) >= _MAX_PENDING_FEEDBACK:
            raise LogUnavailable("the decision log is busy: send the feedback again in a second")
        done: Future[Judged] = Future()
        self._pending_feedback.append(_PendingFeedback(self._clock(), feedback, done))
        self._wake.set()
        try:
            async with asyncio.timeout(self._pace.feedback_timeout_s):
                return await asyncio.wrap_future(done)
        except TimeoutError as error:
            raise LogUnavailable("the decision log did not answer in time: send the feedback again") from error

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._failing:
                # Not woken by feedback: a failing database is not called more often.
                self._stopping.wait(self._pace.retry_s)
            else:
                self._wake.wait(self._pace.write_every_s)
            self._wake.clear()
            try:
                self._write_pending()
                self._prune()
            except Exception:
                # A bug. Without this thread no feedback would ever be stored again, and no metric would say so.
                logger.exception("unexpected error in the decision log")
                self._failing, self._prune_at = True, time.monotonic() + _PRUNE_EVERY_S
                self._metrics.failing.set(1)
        self._finish()

    @property
    def _waiting(self) -> int:
        return len(self._held) + len(self._pending)

    def _write_pending(self) -> None:
        """Write everything that is queued, and resolve the waiting feedback."""
        # Feedback first: its decision was queued before it, so it is among those taken next.
        waiting = [self._pending_feedback.popleft() for _ in range(len(self._pending_feedback))]
        waiting = [one for one in waiting if one.done.set_running_or_notify_cancel()]
        self._held.extend(self._pending.popleft() for _ in range(len(self._pending)))
        # After a failure, write nothing to see whether it works again.
        if not (waiting or self._held or self._failing):
            return
        self._metrics.waiting.set(self._waiting)
        outcomes = self._write(waiting)
        self._metrics.waiting.set(self._waiting)
        self._metrics.failing.set(self._failing)
        for one, outcome in zip(waiting, outcomes, strict=True):
            if isinstance(outcome, Judged):
                if not outcome.repeated:
                    self._metrics.feedback(outcome)
                one.done.set_result(outcome)
            else:
                one.done.set_exception(outcome)

    def _write(self, waiting: Sequence[_PendingFeedback]) -> Sequence[Judged | FetchwiseError]:
        try:
            outcomes = self._store.write(self._held, [(one.at, one.feedback) for one in waiting])
        except LogUnavailable as error:
            if not self._failing:
                logger.error("%s; up to %d decisions are queued, and feedback is refused", error, self._capacity)  # noqa: TRY400 logged once; the message is enough
            self._failing = True
            return [LogUnavailable(str(error)) for _ in waiting]
        except Exception:
            # A bug: the same records would fail again, and block all later ones.
            logger.exception("unexpected error in the decision log: %d decisions are dropped", len(self._held))
            self._metrics.dropped.inc(len(self._held))
            self._held.clear()
            return [LogUnavailable("unexpected error in the decision log: the feedback is not stored") for _ in waiting]
        if self._failing or self._dropping:
            logger.warning("the decision log works again; fetchwise_log_dropped_total counts what was lost")
        self._failing = self._dropping = False
        self._held.clear()
        return outcomes

    def _prune(self) -> None:
        """Once a minute, a few at a time: delete decisions that are too old, or too many."""
        if not (self._keep_s or self._most) or self._failing or time.monotonic() < self._prune_at:
            return
        try:
            if self._may_prune is None:
                self._may_prune = self._share(self._store.size(self._most))
            limit = min(_PRUNED_AT_ONCE, self._may_prune)
            gone = self._store.prune(self._keep_s, limit=limit, most=self._most)
            self._prune_failed = False
        except LogUnavailable as error:
            if not self._prune_failed:
                logger.warning("old decisions cannot be deleted now: %s", error)
            self._prune_failed, limit, gone = True, 1, 0
        self._metrics.pruned.inc(gone)
        self._pruned += gone
        if self._may_prune is not None:
            self._may_prune -= gone
        if gone == limit and self._may_prune:
            return
        if self._pruned:
            rest = "; more are due, `fetchwise log prune` deletes them at once" if gone == limit else ""
            logger.info("deleted %d decisions that were too old or too many%s", self._pruned, rest)
        self._may_prune, self._pruned, self._prune_at = None, 0, time.monotonic() + _PRUNE_EVERY_S

    def _share(self, size: int) -> int:
        """How many of so many decisions a pruning may delete."""
        beyond = max(0, size - self._most) if self._most else 0
        aged = math.ceil(size * _PRUNE_SPEED * _PRUNE_EVERY_S / self._keep_s) if self._keep_s else 0
        return max(beyond, aged)

    def _finish(self) -> None:
        """Write what is left, with retries, until the time for closing has passed."""
        deadline = time.monotonic() + self._pace.close_timeout_s
        self._write_pending()
        while self._waiting and time.monotonic() < deadline:
            time.sleep(min(self._pace.retry_s, self._pace.write_every_s))
            self._write_pending()
        if lost := self._waiting:
            logger.error("%d decisions could not be written before the stop", lost)
            self._metrics.dropped.inc(lost)
