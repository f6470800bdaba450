"""What train chooses for `graded` and `binary`: a path of thresholds from the safest to the cheapest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.certify.plan import spent
from app.core.artifact import FIXED, UNREACHABLE, Certificate, Thresholds
from app.offline.refit.splits import Ledger, Train
from app.offline.table import Floats

# Cuts on either side of a graded pair: all of them on a small table, quantiles of p on a large one.
CUTS = 200
STEPS = 40
# A path does not start at a fixed k that clears its references by fewer standard errors on train.
_SAFE = 2.0
# Probabilities that are closer than this count as equal: no threshold depends on the last bit of an exponential.
RESOLUTION = 1e-9


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a certificate promises: accuracy at least that of each reference minus epsilon, at confidence 1 - delta."""

    references: tuple[int, ...]
    epsilon: float
    delta: float
    # The number of this refit among those that share delta.
    refit: int = 1

    @property
    def fixed(self) -> int | None:
        """The reference, if there is one; None if there are several."""
        return self.references[0] if len(self.references) == 1 else None

    @property
    def level(self) -> float:
        """What this refit spends of delta."""
        return spent(self.delta, self.refit)

    def certificate(self, epsilon: float, bound: float, *, n: int, labels: int, population: str) -> Certificate:
        """What was shown, and what it rests on."""
        return Certificate(epsilon, self.delta, self.reference, n, bound, self.level, labels, population, self.refit)

    @property
    def reference(self) -> str:
        """The name of the references in reports and certificates."""
        return "every fixed action" if self.fixed is None else f"always-k{self.fixed}"


@dataclass(frozen=True, slots=True)
class PathStep:
    """One pair of thresholds on a path, with its accuracy and cost on train."""

    thresholds: Thresholds
    accuracy: float
    cost: float


@dataclass(frozen=True, eq=False, slots=True)
class Grid:
    """Every pair of cuts: the thresholds, each pair as two indices into them, its accuracy and its cost."""

    taus: Floats
    first: NDArray[np.intp]
    second: NDArray[np.intp]
    accuracy: Floats
    cost: Floats

    def thresholds(self, pair: int) -> Thresholds:
        """The thresholds of one pair."""
        return Thresholds(float(self.taus[self.first[pair]]), float(self.taus[self.second[pair]]))


def best_fixed(ledger: Ledger[Train], among: Sequence[int]) -> int:
    """The fixed k with the highest accuracy on train; the smallest of equals."""
    return max(among, key=lambda k: (round(ledger.mean(ledger.fixed(k)), 12), -k))


def build_path(ledger: Ledger[Train], guarantee: Guarantee, *, graded: bool) -> tuple[PathStep, ...]:
    """Order policies from the safest to the cheapest, for a test that stops at its first failure.

    The path starts at the reference, which certifies trivially, or with several references at the best fixed k. Then
    it follows the efficient frontier of train: at each cost the most accurate policy. If the fixed k itself is likely
    to fail against the other references, and the most accurate policy is less likely to, the path starts at that
    policy, whatever its cost.
    """
    none, _, many = ledger.ks
    possible = ledger.ks if graded else (none, many)
    best = guarantee.fixed if guarantee.fixed in possible else best_fixed(ledger, possible)
    fixed = FIXED[ledger.ks.index(best)]
    accuracy = ledger.mean(ledger.right(ledger.route(fixed)))
    start = PathStep(fixed, accuracy, ledger.mean(ledger.spent(fixed)))
    margin = _margin(ledger, fixed, guarantee)
    if margin < _SAFE:
        steps = frontier(ledger, graded=graded, most=np.inf)
        if steps and _margin(ledger, steps[0].thresholds, guarantee) > margin:
            return tuple(steps)
    steps = frontier(ledger, graded=graded, most=start.cost)
    return (start, *(step for step in steps if step.thresholds != fixed))


def plausible_steps(ledger: Ledger[Train], path: Sequence[PathStep], guarantee: Guarantee) -> int:
    """How many steps of the path validation is likely to certify: those before the first that fails on train."""
    holds = [_margin(ledger, step.thresholds, guarantee) >= 0.0 for step in path]
    return holds.index(False) if False in holds else len(path)


def _margin(ledger: Ledger[Train], thresholds: Thresholds, guarantee: Guarantee) -> float:
    """How many standard errors the policy is above reference - epsilon on train, for the hardest reference."""
    right = ledger.right(ledger.route(thresholds))
    others = (k for k in guarantee.references if not ledger.is_reference(thresholds, k))
    margins = (ledger.units.standard_errors(right - ledger.fixed(k) + guarantee.epsilon) for k in others)
    return min(margins, default=np.inf)


def frontier(ledger: Ledger[Train], *, graded: bool, most: float, steps: int = STEPS) -> list[PathStep]:
    """The efficient policies that cost at most `most`, most expensive first: at each of `steps` costs the best."""
    pairs = grid(ledger, graded=graded)
    within = np.flatnonzero(pairs.cost <= most + 1e-12)
    if not within.size:
        return []
    cost = pairs.cost[within]
    efficient = within[_efficient(pairs.accuracy[within], cost)]
    targets = np.linspace(cost.max(), pairs.cost[efficient[0]], steps)
    reached = np.searchsorted(pairs.cost[efficient], targets + 1e-12, side="right") - 1
    return [
        PathStep(pairs.thresholds(i), float(pairs.accuracy[i]), float(pairs.cost[i]))
        for i in dict.fromkeys(efficient[reached].tolist())
    ]


def _efficient(accuracy: Floats, cost: Floats) -> NDArray[np.intp]:
    """Those that are more accurate than every cheaper one, cheapest first."""
    # Costs that differ only in their last bits are equal.
    order = np.lexsort((-accuracy, np.round(cost, 9)))
    leading = np.maximum.accumulate(accuracy[order])
    return order[np.concatenate(([True], leading[1:] > leading[:-1] + 1e-12))]


def grid(ledger: Ledger[Train], *, graded: bool) -> Grid:
    """Accuracy and cost of every pair of cuts, from cumulative sums over the questions sorted by p."""
    none, few, many = ledger.ks
    weights = ledger.units.weights
    known = np.flatnonzero(np.isfinite(ledger.p))
    order = known[np.argsort(-ledger.p[known], kind="stable")]
    p = ledger.p[order]
    # A threshold can only separate different values: ties, which isotonic curves are full of, are never split.
    inner = thin_cuts(np.flatnonzero(p[:-1] - p[1:] > RESOLUTION) + 1, CUTS)
    cuts = np.concatenate(([0], inner, [len(p)]))
    taus = np.concatenate(([UNREACHABLE], 0.5 * (p[inner - 1] + p[inner]), [0.0]))
    if graded:
        first, second = np.triu_indices(len(cuts))
    else:
        first = second = np.arange(len(cuts))
    always_few = (taus[first] == UNREACHABLE) & (taus[second] == 0.0)
    always_many = taus[second] == UNREACHABLE

    def total(values: Mapping[int, Floats]) -> Floats:
        sums = {k: np.concatenate(([0.0], np.cumsum((values[k] * weights)[order])))[cuts] for k in ledger.ks}
        # Questions without a signal read the most at every cut, unless all others read few.
        unknown = {k: float((values[k] * weights).sum()) - sums[k][-1] for k in (few, many)}
        result: Floats = sums[none][first] + sums[few][second] - sums[few][first] + sums[many][-1] - sums[many][second]
        result += np.where(always_few, unknown[few], unknown[many])
        return result

    cost = total(ledger.costs)
    # Where every probability leads to the same passages, there is no probe to pay for.
    cost = np.where(always_few | always_many, cost - float(ledger.costs[none] @ weights), cost)
    return Grid(taus, first, second, total({k: ledger.fixed(k) for k in ledger.ks}), cost)


def thin_cuts(cuts: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """At most `most` of the cuts, evenly spaced."""
    if len(cuts) <= most:
        return cuts
    return np.unique(cuts[np.linspace(0, len(cuts) - 1, most).round().astype(np.intp)])
