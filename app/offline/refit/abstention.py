"""Which answers to withhold: thresholds on confidence, laid on train and certified on validation.

For the share of wrong answers among those given, where every unit is one row, the count is binomial: an exact test.
Where a group holds several rows it is one unit, and the gambler of `app.certify.bets` tests it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv

from app.certify.bets import p_value
from app.core.artifact import Abstention, Certificate
from app.offline.refit.paths import RESOLUTION, STEPS
from app.offline.refit.split import VALIDATION_SHARE, Units
from app.offline.table import Floats

# Answering less than this is not answering.
_LEAST_COVERAGE = 0.05
# An estimate of labels needed beyond this is no plan.
MOST_LABELS = 10_000_000
# Bisections of a bound: to a millionth, and never on the unsafe side.
_HALVINGS = 20


def answers(confidence: Floats, tau: float) -> NDArray[np.bool_]:
    """Which questions are answered. A missing confidence never abstains: it was not measured, not low."""
    with np.errstate(invalid="ignore"):
        return ~(confidence < tau)


@dataclass(frozen=True, eq=False, slots=True)
class Given:
    """The answers that one policy gives to a split: whether each is right, and the confidence it is given with."""

    right: Floats
    confidence: Floats

    def gain(self, tau: float, target: float) -> Floats:
        """Above zero on average exactly where the error among answered is below the target; no ratio is needed."""
        gain: Floats = answers(self.confidence, tau) * (target - (1.0 - self.right))
        return gain

    def p_value(self, tau: float, units: Units, target: float, delta: float) -> float:
        """Of the hypothesis that the error among answered is at least the target."""
        if units.single:
            return binomial_p(*self._counts(tau), target)
        gain = units.means(self.gain(tau, target)).tolist()
        return p_value(gain, 0.0, low=target - 1.0, high=target, delta=delta)

    def upper(self, tau: float, units: Units, delta: float) -> float:
        """The pointwise upper bound on the error among answered, from the same test inverted."""
        if units.single:
            return binomial_upper(*self._counts(tau), delta)
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            rejected = self.p_value(tau, units, middle, delta) <= delta
            low, high = (low, middle) if rejected else (middle, high)
        return high

    def observed(self, tau: float, units: Units) -> tuple[float, float]:
        """The share that is answered, and the error among it; 1 where nothing is."""
        answered = answers(self.confidence, tau)
        share = float(answered @ units.weights)
        return share, float(((1.0 - self.right) * answered) @ units.weights) / share if share else 1.0

    def _counts(self, tau: float) -> tuple[int, int]:
        answered = answers(self.confidence, tau)
        return int((answered & (self.right < 0.5)).sum()), int(answered.sum())


def binomial_p(successes: int, trials: int, chance: float) -> float:
    """Exact p-value of the hypothesis that the chance of a success is at least `chance`."""
    return float(bdtr(successes, trials, chance)) if trials else 1.0


def binomial_upper(successes: int, trials: int, delta: float) -> float:
    """Clopper and Pearson's upper confidence bound on a chance; 1 where there was no trial."""
    return 1.0 if successes >= trials else float(betaincinv(successes + 1, trials - successes, 1.0 - delta))


def lay_abstention(given: Sequence[Given], units: Units, *, target: float) -> list[float]:
    """Thresholds on confidence from a strict one to zero, starting where train is surest of the target.

    The strictest of all would answer so little that nothing could be shown of it. Of several policies the one that
    train is least sure of counts.
    """
    rows = units.first_groups()
    fewer = units.take(rows)
    known = np.concatenate([policy.confidence[rows] for policy in given])
    known = np.sort(known[np.isfinite(known)])[::-1]
    inner = np.flatnonzero(known[:-1] - known[1:] > RESOLUTION) + 1
    inner = inner[inner >= len(known) * _LEAST_COVERAGE]
    if len(inner) > STEPS:
        inner = np.unique(inner[np.linspace(0, len(inner) - 1, STEPS).round().astype(np.intp)])
    taus = [*(0.5 * (known[inner - 1] + known[inner])).tolist(), 0.0]
    surest = np.argmax([min(fewer.clearance(policy.gain(tau, target)[rows]) for policy in given) for tau in taus])
    return taus[int(surest) :]


def certify_abstention(
    served: Given, possible: Sequence[Given], units: Units, path: Sequence[float], *, target: float, delta: float
) -> Abstention:
    """Walk from a strict threshold to none, while the error among answered is shown to be below the target.

    Which policy is served was itself chosen on validation, so a step must be shown of every policy that might have
    been (`possible`): the p-value of a step is the greatest over them, which is an intersection-union test and needs
    no correction, and the walk is as valid as if the choice had been known before. Of the threshold selected the
    target is guaranteed; the bound in its certificate is the pointwise upper bound for the policy served.
    """
    last: float | None = None
    for tau in path:
        if any(policy.p_value(tau, units, target, delta) > delta for policy in possible):
            break
        last = tau
    if last is not None and served in possible:
        bound = served.upper(last, units, delta)
        return Abstention(last, target, Certificate(target, delta, "error among answered", units.count, bound))
    share, error = served.observed(path[0], units)
    needed = _answers_needed(error, target, share, delta)
    if served not in possible:
        why, needed = "the gate is certified further than train foresaw, and nothing was tested so far out", None
    else:
        why = f"at the strictest threshold tried, {error:.3f} of the answered {share:.0%} are wrong" + (
            f", not below the target of {target:g}: no number of labels mends that"
            if needed is None
            else f"; showing that this is below {target:g} takes about {needed} labelled groups in all"
        )
    return Abstention(_empirical_tau(served, units, path, target), target, None, why, needed)


def _empirical_tau(served: Given, units: Units, path: Sequence[float], target: float) -> float:
    """The most permissive threshold whose observed error is within the target, else the strictest tried."""
    return next((tau for tau in reversed(path) if served.observed(tau, units)[1] <= target), path[0])


def _answers_needed(error: float, target: float, share: float, delta: float) -> int | None:
    if error >= target or share <= 0.0:
        return None
    answered = 10
    while answered < MOST_LABELS and binomial_p(int(np.ceil(error * answered)), answered, target) > delta:
        answered = int(answered * 1.1) + 1
    groups = answered / share / VALIDATION_SHARE
    return int(np.ceil(groups)) if groups <= MOST_LABELS else None
