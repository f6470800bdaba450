"""Laying a path on train: policies ordered from the safest to the cheapest, for a test that walks until it fails."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.decision.artifact import ALWAYS_K, UNREACHABLE, Early, Thresholds
from app.refit.early import exit_candidates, unasked_candidates, undisguised
from app.refit.ledger import ACTIONS, Floats, Ledger
from app.refit.split import Train

# Cuts on either side of a graded pair: all there are on a small table, quantiles of p on a large one.
CUTS = 200
STEPS = 40
# A fixed action that train itself gives fewer standard errors than this would most likely fail on validation too.
_SAFE = 2.0
# The least share of its cost that exits must save a policy.
_WORTH = 0.01
# Two probabilities nearer than this are one: no threshold should depend on the last bit of an exponential.
RESOLUTION = 1e-9


@dataclass(frozen=True, slots=True)
class Step:
    """One set of thresholds on a path, with what train says of it."""

    thresholds: Thresholds
    accuracy: float
    cost: float


def best_fixed(ledger: Ledger[Train], among: Sequence[int] = ACTIONS) -> int:
    """The fixed action with the highest accuracy on train; of equals the one that reads least."""
    return max(among, key=lambda k: (round(ledger.mean(ledger.fixed(k)), 12), -k))


def lay_path(ledger: Ledger[Train], *, graded: bool, references: Sequence[int], epsilon: float) -> tuple[Step, ...]:
    """Order policies from the safest to the cheapest, for a test that walks until its first failure.

    The path starts at the best fixed action, which needs no probability to be right, and goes on along the
    efficient frontier of train: at each cost the most accurate policy. Where train gives the fixed action itself
    little chance against the other references, and gives the best policy more, walking would end before it began:
    there the path starts at that policy, whatever it costs.

    With early thresholds there are so many policies that some always do well on validation by luck. None is on the path
    that train itself sees more than epsilon below the best reference, unless all are: what is served has passed both.
    """
    start = _step(ledger, ALWAYS_K[best_fixed(ledger, ACTIONS if graded else (0, 5))])
    held = _standard_errors(ledger, start.thresholds, references, epsilon)
    floor = -np.inf
    if ledger.foretold.p0 is not None or ledger.foretold.prefixes:
        floor = max(ledger.mean(ledger.fixed(k)) for k in references) - epsilon
    if held < _SAFE:
        steps = frontier(ledger, graded=graded, most=np.inf, floor=floor)
        if steps and _standard_errors(ledger, steps[0].thresholds, references, epsilon) > held:
            return tuple(steps)
    steps = frontier(ledger, graded=graded, most=start.cost, floor=floor)
    return (start, *(step for step in steps if step.thresholds != start.thresholds))


def frontier(
    ledger: Ledger[Train], *, graded: bool, most: float, steps: int = STEPS, floor: float = -np.inf
) -> list[Step]:
    """The efficient policies that cost at most `most`, dearest first: at each of `steps` costs the most accurate one.

    Early thresholds are among them where the ledger has something to compare them with. None is less accurate on
    train than `floor`, unless all are.
    """
    found: list[Step] = []
    dearest = -np.inf
    for early in unasked_candidates(ledger, graded=graded):
        (rows, columns), taus, accuracy, cost = grid(ledger, graded=graded, early=early)
        within = np.flatnonzero(cost <= most + 1e-12)
        dearest = max(dearest, cost[within].max(initial=-np.inf))
        for i in within[_efficient(accuracy[within], cost[within])]:
            thresholds = undisguised(Thresholds(float(taus[rows[i]]), float(taus[columns[i]]), early))
            found.append(Step(thresholds, float(accuracy[i]), float(cost[i])))
    kept = _thin(found, dearest, steps, floor)
    # A probe cut short must be worth the trouble of watching every one.
    cut = [
        exiting
        for whole in kept
        for exiting in (_step(ledger, each) for each in exit_candidates(ledger, whole.thresholds, graded=graded))
        if exiting.cost <= whole.cost * (1.0 - _WORTH) and exiting.cost <= most
    ]
    return _thin([*found, *cut], dearest, steps, floor) if cut else kept


def grid(
    ledger: Ledger[Train], *, graded: bool, early: Early | None = None
) -> tuple[tuple[NDArray[np.intp], NDArray[np.intp]], Floats, Floats, Floats]:
    """Accuracy and cost of every pair of cuts, by cumulative sums over the questions sorted by p.

    Returns the pairs as two indices into the thresholds, the thresholds, and each pair's accuracy and cost. What
    `early` settles by the question alone is the same for every pair.
    """
    settled = np.full(len(ledger.p), -1, dtype=np.int8) if early is None else ledger.settled(early)
    weights = np.where(settled < 0, ledger.units.weights, 0.0)
    known = np.flatnonzero(np.isfinite(ledger.p) & (settled < 0))
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

    always_one = (taus[first] == UNREACHABLE) & (taus[second] == 0.0)
    always_five = taus[second] == UNREACHABLE

    def total(values: Mapping[int, Floats]) -> Floats:
        sums = {k: np.concatenate(([0.0], np.cumsum((values[k] * weights)[order])))[cuts] for k in ACTIONS}
        # No signal: reads five, whatever the cut, unless all the others read one.
        fallen = {k: float((values[k] * weights).sum()) - sums[k][-1] for k in (1, 5)}
        result: Floats = sums[0][first] + sums[1][second] - sums[1][first] + sums[5][-1] - sums[5][second]
        result += np.where(always_one, fallen[1], fallen[5])
        return result

    accuracy, costs = total({k: ledger.fixed(k) for k in ACTIONS}), dict(ledger.costs)
    if early is not None:
        costs[0] = costs[0] + (ledger.advances.embedding if early.unasked > 0.0 else 0.0)
        accuracy = accuracy + ledger.mean(np.where(settled < 0, 0.0, ledger.right(settled)))
    cost = total(costs)
    # Where every probability leads to the same passages, no probe is paid for.
    cost = np.where(always_one | always_five, cost - float(ledger.costs[0] @ weights), cost)
    if early is not None:
        cost = cost + ledger.mean(np.where(settled < 0, 0.0, ledger.reading(settled)))
    return (first, second), taus, accuracy, cost


def foreseen(ledger: Ledger[Train], path: Sequence[Step], references: Sequence[int], epsilon: float) -> int:
    """How many steps of the path validation might certify: those before train itself sees one fall short.

    What is claimed of the end of a walk must be shown of every end that it might have had, so that the claim needs no
    correction for the choice; ends that train all but rules out would only get in the way.
    """
    cleared = [_standard_errors(ledger, step.thresholds, references, epsilon) >= 0.0 for step in path]
    return cleared.index(False) if False in cleared else len(path)


def _step(ledger: Ledger[Train], thresholds: Thresholds) -> Step:
    right = ledger.right(ledger.route(thresholds))
    return Step(thresholds, ledger.mean(right), ledger.mean(ledger.spent(thresholds)))


def _efficient(accuracy: Floats, cost: Floats) -> NDArray[np.intp]:
    """Those that no cheaper one matches, cheapest first."""
    order = np.lexsort((-accuracy, cost))
    leading = np.maximum.accumulate(accuracy[order])
    return order[np.concatenate(([True], leading[1:] > leading[:-1] + 1e-12))] if order.size else order


def _thin(found: Sequence[Step], dearest: float, steps: int, floor: float) -> list[Step]:
    """At each of so many costs, from the dearest down, the most accurate that costs as little."""
    if not found:
        return []
    accuracy, cost = np.array([step.accuracy for step in found]), np.array([step.cost for step in found])
    efficient = _efficient(accuracy, cost)
    if (accuracy[efficient] >= floor).any():
        efficient = efficient[accuracy[efficient] >= floor]
    targets = np.linspace(dearest, cost[efficient[0]], steps)
    reached = np.searchsorted(cost[efficient], targets + 1e-12, side="right") - 1
    return [found[i] for i in dict.fromkeys(efficient[reached].tolist())]


def _standard_errors(ledger: Ledger[Train], thresholds: Thresholds, references: Sequence[int], epsilon: float) -> float:
    """By how many standard errors the policy clears reference - epsilon on train, against the hardest reference."""
    right, cleared = ledger.right(ledger.route(thresholds)), np.inf
    for k in references:
        if not ledger.is_reference(thresholds, k):
            d = ledger.units.means(right - ledger.fixed(k))
            cleared = min(cleared, (d.mean() + epsilon) * np.sqrt(len(d)) / max(float(d.std()), 1e-9))
    return float(cleared)
