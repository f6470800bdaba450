"""Drift: whether feedback still agrees with the calibrator, and whether evidence is still distributed as on train.

Every worker reads the same answers from the log in the same order and reaches the same result.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from app.calibrators.stability import ENOUGH, RecentCounts, RecentMean, bins_of, psi, psi_limit
from app.certify.drift import DriftState, DriftTest
from app.certify.plan import train_share
from app.core.artifact import Artifact
from app.core.evidence import about
from app.core.feedback import Asked
from app.core.record import DecisionRecord
from app.errors import DocumentConflict
from app.ports import Clock, Documents
from app.threads import in_storage_thread

logger = logging.getLogger(__name__)

# Small enough not to block the event loop.
_AT_ONCE = 100
# Per run: the state is saved after each, and a start does not wait for a whole log.
_BATCHES = 50
# Answers over which evidence is counted.
_RECENT = 2_000
Revoke = Callable[[str, str], Awaitable[None]]
now: Clock = time.time


class AskedAnswers(Protocol):
    """Reads from the decision log, in the order of asking, the answers whose verdict was asked for."""

    async def __call__(self, version: str, *, after: int, until: float, wait: float, limit: int) -> Sequence[Asked]:
        """At most `limit` answers under this version; see `app.ports.Rows.asked`."""
        ...


@dataclass(frozen=True, slots=True)
class _Saved:
    """The state of the drift test after the answer at `position` of the log."""

    position: int
    state: DriftState


_SAVED = TypeAdapter(_Saved)


class DriftWatch:
    """Tests the served calibrator on the answers whose verdict was asked for since it began to serve.

    An answer counts once the waiting time has passed. The test's state is a document, so that a restart does not read
    the log again. It is stored in the log's own database, because it contains a position of that log.
    """

    def __init__(
        self,
        asked: AskedAnswers,
        serving: Callable[[], Artifact | None],
        documents: Documents,
        *,
        tolerance: float,
        delta: float,
        wait: float,
        revoke: Revoke | None,
    ) -> None:
        """`wait` is in seconds. `revoke` revokes a version with a reason; None if only an alert is wanted."""
        self._asked = asked
        self._serving = serving
        self._documents = documents
        self._tolerance = tolerance
        self._delta = delta
        self._wait = wait
        self._revoke = revoke
        self._version: str | None = None
        self._test = DriftTest((), tolerance=tolerance, delta=delta)
        self._position = self._stored_position = 0
        self._revision: str | None = None
        self._logged = ""

    @property
    def test(self) -> DriftTest:
        """The test of the served calibrator; without one, a test that has seen nothing."""
        return self._test

    async def refresh(self) -> None:
        """Add the answers that have waited long enough to the test, and revoke the calibrator if drift is detected."""
        artifact = self._serving()
        if artifact is None:
            self._version, self._test = None, DriftTest((), tolerance=self._tolerance, delta=self._delta)
            return
        if artifact.version != self._version:
            await self._load(artifact)
            self._version, self._logged = artifact.version, ""
        while True:
            await self._learn(artifact.version)
            await self._act(artifact.version)
            if self._position == self._stored_position or await self._save(artifact.version):
                return
            # Another worker was faster: continue from its state, which is the same or further on.
            await self._load(artifact)

    async def _learn(self, version: str) -> None:
        until = now() - self._wait
        for _ in range(_BATCHES):
            batch = await self._asked(version, after=self._position, until=until, wait=self._wait, limit=_AT_ONCE)
            for one in batch:
                self._test.update(one)
                self._position = one.position
            if len(batch) < _AT_ONCE:
                return

    async def _load(self, artifact: Artifact) -> None:
        name = self._name(artifact.version)
        found = await in_storage_thread(self._documents.read, name)
        saved = _Saved(0, DriftState())
        if found is not None:
            try:
                saved = _SAVED.validate_json(found.content, strict=True, extra="forbid")
            except ValidationError as error:
                where = self._documents.where(name)
                logger.warning("%s is not the state of a drift test, reading the whole log again: %s", where, error)
        self._revision = found.revision if found else None
        self._position = self._stored_position = saved.position
        references, epsilon = promised(artifact)
        self._test = DriftTest(
            artifact.ks,
            references=references,
            epsilon=epsilon,
            tolerance=self._tolerance,
            delta=self._delta,
            state=saved.state,
        )

    async def _save(self, version: str) -> bool:
        content = _SAVED.dump_json(_Saved(self._position, self._test.state))
        try:
            self._revision = await in_storage_thread(
                self._documents.write, self._name(version), content, expected=self._revision
            )
        except DocumentConflict:
            return False
        self._stored_position = self._position
        return True

    def _name(self, version: str) -> str:
        """One document for each test: with other settings it is another test."""
        return f"drift-{version}-{self._tolerance:g}-{self._delta:g}-{self._wait:.0f}.json"

    async def _act(self, version: str) -> None:
        test = self._test
        if test.evidence < 1.0:
            return
        found = (
            f"{test.finding} (tolerance {test.tolerance:g}; {test.seen} judged answers, "
            f"P(false alarm) at most {test.delta:g})"
        )
        if not test.alarm:
            self._log_once("%s: drift in the feedback of a single key, nothing is revoked: %s", version, found)
        elif self._revoke is not None:
            await self._revoke(version, found)
        else:
            self._log_once("%s: drift detected, kept because of FETCHWISE_DRIFT_ACTION=alert: %s", version, found)

    def _log_once(self, line: str, version: str, found: str) -> None:
        """Log each finding once."""
        if line != self._logged:
            self._logged = line
            logger.warning(line, version, found)


def promised(artifact: Artifact) -> tuple[tuple[int, ...], float]:
    """The fixed k's that the certificate compares with, and how much less accurate the policy may be."""
    served = artifact.ladder or artifact.policies.get("graded")
    certificate = served.certificate if served else None
    if certificate is None:
        return (), 0.0
    named = tuple(k for k in artifact.ks if certificate.reference == f"always-k{k}")
    return named or artifact.ks, certificate.epsilon


@dataclass(frozen=True, slots=True)
class Stability:
    """The stability index of a kind of evidence, and the limit above which the difference is not due to chance."""

    index: float
    limit: float


@dataclass(frozen=True, slots=True)
class SignalReport:
    """The evidence of recent answers. `accuracy` is their mean confidence: correct while the confidences are."""

    signals: Mapping[str, Stability] = field(default_factory=dict)
    accuracy: float | None = None


class _Recent:
    """Recent answers under one artifact."""

    def __init__(self, artifact: Artifact, window: int) -> None:
        self.version = artifact.version
        groups = artifact.data_window.groups
        # The quantiles come from the train split.
        self.fitted_on = max(1, round(train_share(groups) * groups))
        self.confidence = RecentMean(window)
        bins = {name: bins_of(quantiles) for name, quantiles in sorted(artifact.quantiles.items())}
        self.signals = [
            (name, about(name), RecentCounts(each, window)) for name, each in bins.items() if len(each.shares) > 1
        ]


class SignalDrift:
    """Compares recent evidence with train. A new calibrator starts from zero; answers under other ones are ignored.

    Only evidence that no evidence selected is counted: that of the question, of the first purchase, and everything
    where k was drawn at random. What is bought later is bought for the harder questions, which differ from train.
    """

    def __init__(self, serving: Callable[[], Artifact | None], *, window: int = _RECENT) -> None:
        self._serving = serving
        self._window = window
        self._recent: _Recent | None = None

    def observe(self, record: DecisionRecord) -> None:
        """Count one answer."""
        recent = self._recent
        if recent is None or recent.version != record.policy.version:
            artifact = self._serving()
            if artifact is None or artifact.version != record.policy.version:
                return
            self._recent = recent = _Recent(artifact, self._window)
        evidence, explored = record.available.evidence, record.policy.explored
        first = frozenset(record.steps[:2][-1].state.split("+"))
        for name, needs, counts in recent.signals:
            value = evidence.get(name)
            if value is not None and (explored or needs <= first):
                counts.add(value)
        if record.reply.text is not None and record.reply.confidence is not None:
            recent.confidence.add(record.reply.confidence)

    def report(self) -> SignalReport:
        """The current figures; a name with fewer than 200 values is left out."""
        recent = self._recent
        if recent is None:
            return SignalReport()
        return SignalReport(
            signals={
                name: Stability(
                    psi(counts.counts, counts.bins.shares),
                    psi_limit(counts.total, recent.fitted_on, len(counts.bins.shares)),
                )
                for name, _, counts in recent.signals
                if counts.total >= ENOUGH
            },
            accuracy=recent.confidence.value,
        )
