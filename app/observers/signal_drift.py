"""Recent signals against those that the calibrator in force was fitted on: counted as answers pass, without labels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from app.decision.artifact import Artifact
from app.decision.calibrator import signals_of
from app.decision.record import DecisionRecord
from app.decision.stability import ENOUGH, RecentCounts, RecentMean, bins_of, psi, psi_limit

WINDOW = 2_000
# The quantiles are those of the train split, which takes this share of the groups.
_TRAIN = 0.4


@dataclass(frozen=True, slots=True)
class Stability:
    """A signal's stability index, and the limit beyond which it is no accident."""

    index: float
    limit: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """What recent answers look like. `accuracy` is what their own confidences add up to: true while these are."""

    signals: Mapping[str, Stability] = field(default_factory=dict)
    accuracy: float | None = None


class _Recent:
    """The last answers under one artifact."""

    def __init__(self, artifact: Artifact, window: int) -> None:
        self.version = artifact.version
        self.fitted_on = max(1, round(_TRAIN * artifact.window.groups))
        self.confidence = RecentMean(window)
        deciding = sorted(signals_of(artifact.p0))
        bins = {name: bins_of(artifact.quantiles[name]) for name in deciding if name in artifact.quantiles}
        self.signals = [(name, RecentCounts(each, window)) for name, each in bins.items() if len(each.shares) > 1]


class SignalDrift:
    """Watches the signals that decide. A new calibrator begins anew; answers under any other are passed over."""

    def __init__(self, serving: Callable[[], Artifact | None], *, window: int = WINDOW) -> None:
        self._serving = serving
        self._window = window
        self._recent: _Recent | None = None

    def observe(self, record: DecisionRecord) -> None:
        """Count one answer."""
        recent = self._recent
        if recent is None or recent.version != record.calibrator:
            artifact = self._serving()
            if artifact is None or artifact.version != record.calibrator:
                return
            self._recent = recent = _Recent(artifact, self._window)
        for name, counts in recent.signals:
            value = record.signals.get(name)
            if value is not None:
                counts.add(value)
        if record.answer is not None and record.confidence is not None:
            recent.confidence.add(record.confidence)

    def look(self) -> Outlook:
        """What there is to say now; of a signal that was seen less than 200 times, nothing."""
        recent = self._recent
        if recent is None:
            return Outlook()
        return Outlook(
            signals={
                name: Stability(
                    psi(counts.counts, counts.bins.shares),
                    psi_limit(counts.total, recent.fitted_on, len(counts.bins.shares)),
                )
                for name, counts in recent.signals
                if counts.total >= ENOUGH
            },
            accuracy=recent.confidence.value,
        )
