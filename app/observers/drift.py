"""Watches whether shown confidences still come true, and takes the calibrator out of force where they do not.

Every worker reads the same judgements from the log in the same order and comes to the same verdict, so nothing has to
be passed between them, and a restart comes to it again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from app.decision.artifact import Artifact
from app.decision.drift import DriftTest
from app.errors import FetchwiseError
from app.observers.decision_log import DecisionLog
from app.observers.signal_drift import Outlook

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
# Few enough that the event loop turns in between.
_AT_ONCE = 100


class Revocable(Protocol):
    """What holds the calibrator in force."""

    @property
    def serving(self) -> Artifact | None:
        """The artifact in force."""
        ...

    def revoked(self, version: str) -> str | None:
        """Why a version is revoked; None where it is not."""
        ...

    async def revoke(self, version: str, why: str) -> None:
        """Let no threshold of this version decide any more; the second time changes nothing."""
        ...


class DriftWatch:
    """Tests the calibrator in force on the judgements that were asked for, from its first on."""

    def __init__(
        self, log: DecisionLog, calibrator: Revocable, *, tolerance: float, delta: float, revoke: bool
    ) -> None:
        self._log = log
        self._calibrator = calibrator
        self._tolerance = tolerance
        self._delta = delta
        self._revoke = revoke
        self._version: str | None = None
        self._position = 0
        self._test = self._fresh()
        self._said = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def test(self) -> DriftTest:
        """What is known of the calibrator in force."""
        return self._test

    async def start(self) -> None:
        """Catch up with the log, so that nothing revoked serves after a restart; then keep looking."""
        await self._look_again()
        self._task = asyncio.create_task(self._watch(), name="watch drift")

    async def close(self) -> None:
        """Stop looking; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def refresh(self) -> None:
        """Learn the judgements that came in since, and act on what they show."""
        artifact = self._calibrator.serving
        version = artifact.version if artifact else None
        if version != self._version:
            self._version, self._position, self._test, self._said = version, 0, self._fresh(), ""
        if version is None:
            return
        while True:
            batch = await self._log.solicited(version, after=self._position, limit=_AT_ONCE)
            for one in batch:
                self._test.update(one.p, correct=one.correct, key=one.key)
                self._position = one.position
            if len(batch) < _AT_ONCE:
                break
        await self._act(version)

    async def _act(self, version: str) -> None:
        test = self._test
        if test.evidence < 1.0:
            return
        found = (
            f"of late, confidences exceed the share of right answers by {test.recent_gap:.2f} "
            f"(tolerated: {test.tolerance:g}; {test.seen} judged answers, false alarm at most {test.delta:g})"
        )
        if not test.alarm:
            self._say("%s drifts by the feedback of one key alone, which is not acted on: %s", version, found)
        elif self._revoke:
            await self._calibrator.revoke(version, found)
        else:
            self._say("%s drifts, and serves on as FETCHWISE_DRIFT_ACTION=alert says: %s", version, found)

    def _say(self, line: str, version: str, found: str) -> None:
        """Once a finding, not once a look."""
        if line != self._said:
            self._said = line
            logger.warning(line, version, found)

    def _fresh(self) -> DriftTest:
        return DriftTest(tolerance=self._tolerance, delta=self._delta)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self._look_again()

    async def _look_again(self) -> None:
        try:
            await self.refresh()
        except FetchwiseError as error:
            self._say("drift of %s cannot be judged now, trying again: %s", self._version or "none", str(error))
        except Exception:
            logger.exception("looking for drift failed; trying again")


class DriftMetrics(Collector):
    """Computed at the scrape; what is not known, or not watched, is absent."""

    def __init__(
        self, look: Callable[[], Outlook], calibrator: Revocable, test: Callable[[], DriftTest | None]
    ) -> None:
        self._look = look
        self._calibrator = calibrator
        self._test = test

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The families without a sample, so that registering computes nothing."""
        yield from _families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What stands now."""
        index, limit, accuracy, evidence, revoked = _families()
        outlook, test, artifact = self._look(), self._test(), self._calibrator.serving
        for signal, stability in outlook.signals.items():
            index.add_metric((signal,), stability.index)
            limit.add_metric((signal,), stability.limit)
        if outlook.accuracy is not None:
            accuracy.add_metric((), outlook.accuracy)
        if test is not None:
            evidence.add_metric((), test.evidence)
        revoked.add_metric((), artifact is not None and self._calibrator.revoked(artifact.version) is not None)
        yield from (index, limit, accuracy, evidence, revoked)


def _families() -> tuple[GaugeMetricFamily, ...]:
    return (
        GaugeMetricFamily(
            "fetchwise_drift_psi",
            "Population stability index of a signal: the last 2,000 questions against those fitted on.",
            labels=("signal",),
        ),
        GaugeMetricFamily(
            "fetchwise_drift_psi_limit",
            "The index above which a signal differs by more than chance and habit; it falls as questions come in.",
            labels=("signal",),
        ),
        GaugeMetricFamily(
            "fetchwise_estimated_accuracy",
            "Mean confidence of the last 2,000 answers given: their accuracy, for as long as confidences are true.",
        ),
        GaugeMetricFamily(
            "fetchwise_drift_evidence",
            "How much the judgements asked for speak against the confidences shown; from 1 on, drift is shown.",
        ),
        GaugeMetricFamily("fetchwise_drift_revoked", "Whether the calibrator in force is revoked, 1 or 0."),
    )
