"""Laying a path on train: policies ordered from the safest to the cheapest, for a test that walks until it fails."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.core.artifact import UNREACHABLE, Thresholds
from app.offline.refit.ledger import Ledger, fixed_thresholds
from app.offline.refit.split import Train
from app.offline.table import Floats

# Cuts on either side of a graded pair: all there are on a small table, quantiles of p on a large one.
CUTS = 200
STEPS = 40
# A fixed action that train itself gives fewer standard errors than this would most likely fail on validation too.
_SAFE = 2.0
# Two probabilities nearer than this are one: no threshold should depend on the last bit of an exponential.
RESOLUTION = 1e-9


@dataclass(frozen=True, slots=True)
class PathStep:
    """One set of thresholds on a path, with what train says of it."""

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
        """The pair as a policy has it."""
        return Thresholds(float(self.taus[self.first[pair]]), float(self.taus[self.second[pair]]))


def best_fixed(ledger: Ledger[Train], among: Sequence[int]) -> int:
    """The fixed action with the highest accuracy on train; of equals the one that reads least."""
    return max(among, key=lambda k: (round(ledger.mean(ledger.fixed(k)), 12), -k))


def lay_path(ledger: Ledger[Train], *, graded: bool, references: Sequence[int], epsilon: float) -> tuple[PathStep, ...]:
    """Order policies from the safest to the cheapest, for a test that walks until its first failure.

    The path starts at the best fixed action, which needs no probability to be right, and goes on along the
    efficient frontier of train: at each cost the most accurate policy. Where train gives the fixed action itself
    little chance against the other references, and gives the best policy more, walking would end before it began:
    there the path starts at that policy, whatever it costs.
    """
    none, _, many = ledger.ks
    best = best_fixed(ledger, ledger.ks if graded else (none, many))
    start = _step(ledger, fixed_thresholds(best, ledger.ks))
    held = _standard_errors(ledger, start.thresholds, references, epsilon)
    if held < _SAFE:
        steps = frontier(ledger, graded=graded, most=np.inf)
        if steps and _standard_errors(ledger, steps[0].thresholds, references, epsilon) > held:
            return tuple(steps)
    steps = frontier(ledger, graded=graded, most=start.cost)
    return (start, *(step for step in steps if step.thresholds != start.thresholds))


def frontier(ledger: Ledger[Train], *, graded: bool, most: float, steps: int = STEPS) -> list[PathStep]:
    """The efficient policies that cost at most `most`, dearest first: at each of `steps` costs the most accurate."""
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


def grid(ledger: Ledger[Train], *, graded: bool) -> Grid:
    """Accuracy and cost of every pair of cuts, by cumulative sums over the questions sorted by p."""
    none, few, many = ledger.ks
    weights = ledger.units.weights
    known = np.flatnonzero(np.isfinite(ledger.p))
    order = known[np.argsort(-ledger.p[known], kind="stable")]
    p = ledger.p[order]
    # A threshold can part only what differs: ties, which isotonic curves are full of, are never split.
    inner = np.flatnonzero(p[:-1] - p[1:] > RESOLUTION) + 1
    if len(inner) > CUTS:
        inner = np.unique(inner[np.linspace(0, len(inner) - 1, CUTS).round().astype(np.intp)])
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
        # No signal: reads the most, whatever the cut, unless all the others read few.
        fallen = {k: float((values[k] * weights).sum()) - sums[k][-1] for k in (few, many)}
        result: Floats = sums[none][first] + sums[few][second] - sums[few][first] + sums[many][-1] - sums[many][second]
        result += np.where(always_few, fallen[few], fallen[many])
        return result

    cost = total(ledger.costs)
    # Where every probability leads to the same passages, no probe is paid for.
    cost = np.where(always_few | always_many, cost - float(ledger.costs[none] @ weights), cost)
    return Grid(taus, first, second, total({k: ledger.fixed(k) for k in ledger.ks}), cost)


def foreseen(ledger: Ledger[Train], path: Sequence[PathStep], references: Sequence[int], epsilon: float) -> int:
    """How many steps of the path validation might certify: those before train itself sees one fall short.

    What is claimed of the end of a walk must be shown of every end that it might have had, so that the claim needs no
    correction for the choice; ends that train all but rules out would only get in the way.
    """
    cleared = [_standard_errors(ledger, step.thresholds, references, epsilon) >= 0.0 for step in path]
    return cleared.index(False) if False in cleared else len(path)


def _step(ledger: Ledger[Train], thresholds: Thresholds) -> PathStep:
    right = ledger.right(ledger.route(thresholds))
    return PathStep(thresholds, ledger.mean(right), ledger.mean(ledger.spent(thresholds)))


def _efficient(accuracy: Floats, cost: Floats) -> NDArray[np.intp]:
    """Those that no cheaper one matches, cheapest first."""
    # Costs that differ in their last bits alone are equal.
    order = np.lexsort((-accuracy, np.round(cost, 9)))
    leading = np.maximum.accumulate(accuracy[order])
    return order[np.concatenate(([True], leading[1:] > leading[:-1] + 1e-12))]


def _standard_errors(ledger: Ledger[Train], thresholds: Thresholds, references: Sequence[int], epsilon: float) -> float:
    """By how many standard errors the policy clears reference - epsilon on train, against the hardest reference."""
    right = ledger.right(ledger.route(thresholds))
    others = (k for k in references if not ledger.is_reference(thresholds, k))
    return min((ledger.units.clearance(right - ledger.fixed(k) + epsilon) for k in others), default=np.inf)
