"""Abstention: the confidence below which answers are withheld, chosen on train and certified on validation.

The claim is about the share of wrong answers among those given. If every group is one row, the number of wrong answers
is binomial, and the test is exact. Otherwise the test bets on groups. Thresholds are tested from the strictest down,
each at the whole of its level, until one fails (see `certify`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.certify import bets
from app.certify.intervals import binomial_p, binomial_upper
from app.certify.plan import labels_needed
from app.core.artifact import Abstention, Certificate
from app.offline.refit.choose import RESOLUTION, STEPS, thin_cuts
from app.offline.refit.splits import Units
from app.offline.table import Floats

# Below every threshold: a question out of scope is withheld whatever tau is.
WITHHELD = -1.0
# A path of abstention starts at this coverage at least.
_MIN_COVERAGE = 0.05
# A bound by bets is searched among so many shares.
_SHARES = 400


def answers(confidence: Floats, tau: float) -> NDArray[np.bool_]:
    """Which questions are answered. A missing confidence never abstains: it is unknown, not low."""
    with np.errstate(invalid="ignore"):
        return ~(confidence < tau)


@dataclass(frozen=True, eq=False, slots=True)
class GivenAnswers:
    """The answers that one policy gives on a split: whether each is right, and its confidence."""

    right: Floats
    confidence: Floats

    def gain(self, tau: float, target: float) -> Floats:
        """Above zero on average exactly if the error among answered is below the target; this avoids a ratio."""
        gain: Floats = answers(self.confidence, tau) * (target - (1.0 - self.right))
        return gain

    def below(self, tau: float, units: Units, target: float, delta: float) -> bool:
        """Whether the error among answered is shown to be below the target, wrong with probability at most delta."""
        if units.single:
            return binomial_p(*self._counts(tau), target) <= delta
        gain = units.scores(self.gain(tau, target)).tolist()
        return bets.above(gain, 0.0, low=target - 1.0, high=target, delta=delta)

    def upper(self, tau: float, units: Units, delta: float) -> float:
        """The pointwise upper bound on the error among answered: the same test, inverted."""
        if units.single:
            return binomial_upper(*self._counts(tau), delta)
        # From above, as bets that depend on the tested share need not reject an interval of shares.
        bound = 1.0
        for share in np.linspace(1.0, 0.0, _SHARES, endpoint=False)[1:].tolist():
            if not self.below(tau, units, share, delta):
                break
            bound = share
        return bound

    def observed(self, tau: float, units: Units) -> tuple[float, float]:
        """The share that is answered, and the error among it; 1 if nothing is answered."""
        answered = answers(self.confidence, tau)
        share = float(answered @ units.weights)
        return share, float(((1.0 - self.right) * answered) @ units.weights) / share if share else 1.0

    def _counts(self, tau: float) -> tuple[int, int]:
        answered = answers(self.confidence, tau)
        return int((answered & (self.right < 0.5)).sum()), int(answered.sum())


def abstention_path(given: GivenAnswers, units: Units, *, target: float) -> list[float]:
    """Thresholds on confidence from a strict one down to zero, built on train.

    The strictest of all would answer too little to show anything, so the path starts where the error is below the
    target by the most standard errors.
    """
    rows, some = units.first_groups()
    known = given.confidence[rows]
    known = np.sort(known[np.isfinite(known) & (known > WITHHELD)])[::-1]
    inner = np.flatnonzero(known[:-1] - known[1:] > RESOLUTION) + 1
    inner = thin_cuts(inner[inner >= len(known) * _MIN_COVERAGE], STEPS)
    taus = [*(0.5 * (known[inner - 1] + known[inner])).tolist(), 0.0]
    margins = [some.standard_errors(given.gain(tau, target)[rows]) for tau in taus]
    return taus[int(np.argmax(margins)) :]


def certify_abstention(
    given: GivenAnswers, units: Units, path: Sequence[float], *, target: float, promise: Certificate
) -> Abstention:
    """Lower the threshold step by step, as long as the error among answered is shown to be below the target.

    `promise` is the certificate to fill in; each threshold is tested at what it spends. The target is guaranteed for
    the selected threshold; the bound in its certificate is the pointwise upper bound.
    """
    last: float | None = None
    for tau in path:
        if not given.below(tau, units, target, promise.spent):
            break
        last = tau
    if last is not None:
        return Abstention(last, target, replace(promise, bound=given.upper(last, units, promise.spent)))
    share, error = given.observed(path[0], units)
    gain = units.scores(given.gain(path[0], target))
    needed = labels_needed(
        gap=float(gain.mean()), deviation=float(gain.std()), n=units.count, delta=promise.spent, single=units.single
    )
    then = f"collect {needed.text}" if needed else "allow a larger --risk-target; more labels will hardly help"
    why = (
        f"at the strictest threshold tried, {error:.3f} of the answered {share:.0%} are wrong, which does not show "
        f"that at most {target:g} are. Next: {then}"
    )
    # Not certified: the lowest threshold whose observed error is within the target, else the strictest tried.
    tau = next((tau for tau in reversed(path) if given.observed(tau, units)[1] <= target), path[0])
    return Abstention(tau, target, None, why, needed)
