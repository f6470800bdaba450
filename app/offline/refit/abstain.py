"""Abstention: the confidence below which answers are withheld, chosen on train and certified on validation.

The claim is about the share of wrong answers among those given. If every group is one row, the number of wrong answers
is binomial, and the test is exact. Otherwise the test bets on groups. Thresholds are tested from the strictest down,
each at the whole of delta, until one fails (see `certify`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv

from app.certify import bets as betting
from app.core.artifact import Abstention, Certificate
from app.offline.refit.certify import MAX_LABELS
from app.offline.refit.choose import RESOLUTION, STEPS, thin_cuts
from app.offline.refit.splits import VALIDATION_SHARE, Units
from app.offline.table import Floats

# Below every threshold: a question out of scope is withheld whatever tau is.
WITHHELD = -1.0
# A path of abstention starts at this coverage at least.
_MIN_COVERAGE = 0.05
# Bisections of a bound: to a millionth, and always on the safe side.
_HALVINGS = 20


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

    def p_value(self, tau: float, units: Units, target: float, delta: float) -> float:
        """The p-value of the hypothesis that the error among answered is at least the target."""
        if units.single:
            return binomial_p(*self._counts(tau), target)
        gain = units.means(self.gain(tau, target)).tolist()
        return betting.p_value(gain, 0.0, low=target - 1.0, high=target, delta=delta)

    def upper(self, tau: float, units: Units, delta: float) -> float:
        """The pointwise upper bound on the error among answered: the same test, inverted."""
        if units.single:
            return binomial_upper(*self._counts(tau), delta)
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            rejected = self.p_value(tau, units, middle, delta) <= delta
            low, high = (low, middle) if rejected else (middle, high)
        return high

    def observed(self, tau: float, units: Units) -> tuple[float, float]:
        """The share that is answered, and the error among it; 1 if nothing is answered."""
        answered = answers(self.confidence, tau)
        share = float(answered @ units.weights)
        return share, float(((1.0 - self.right) * answered) @ units.weights) / share if share else 1.0

    def _counts(self, tau: float) -> tuple[int, int]:
        answered = answers(self.confidence, tau)
        return int((answered & (self.right < 0.5)).sum()), int(answered.sum())


def binomial_p(successes: int, trials: int, chance: float) -> float:
    """Exact p-value of the hypothesis that the probability of a success is at least `chance`."""
    return float(bdtr(successes, trials, chance)) if trials else 1.0


def binomial_upper(successes: int, trials: int, delta: float) -> float:
    """Clopper and Pearson's upper confidence bound on a probability; 1 without a trial."""
    return 1.0 if successes >= trials else float(betaincinv(successes + 1, trials - successes, 1.0 - delta))


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
    given: GivenAnswers, units: Units, path: Sequence[float], *, target: float, delta: float
) -> Abstention:
    """Lower the threshold step by step, as long as the error among answered is shown to be below the target.

    The target is guaranteed for the selected threshold; the bound in its certificate is the pointwise upper bound.
    """
    last: float | None = None
    for tau in path:
        if given.p_value(tau, units, target, delta) > delta:
            break
        last = tau
    if last is not None:
        bound = given.upper(last, units, delta)
        return Abstention(last, target, Certificate(target, delta, "error among answered", units.count, bound))
    share, error = given.observed(path[0], units)
    needed = _labels_for_abstention(error, target, share, delta)
    why = f"at the strictest threshold tried, {error:.3f} of the answered {share:.0%} are wrong" + (
        f", not below the target of {target:g}: no number of labels fixes that"
        if needed is None
        else f"; showing that this is below {target:g} takes about {needed} labelled groups in all"
    )
    # Not certified: the lowest threshold whose observed error is within the target, else the strictest tried.
    tau = next((tau for tau in reversed(path) if given.observed(tau, units)[1] <= target), path[0])
    return Abstention(tau, target, None, why, needed)


def _labels_for_abstention(error: float, target: float, share: float, delta: float) -> int | None:
    if error >= target or share <= 0.0:
        return None
    answered = 10
    while answered < MAX_LABELS and binomial_p(int(np.ceil(error * answered)), answered, target) > delta:
        answered = int(answered * 1.1) + 1
    groups = answered / share / VALIDATION_SHARE
    return int(np.ceil(groups)) if groups <= MAX_LABELS else None
