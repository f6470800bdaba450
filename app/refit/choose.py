"""Everything that is chosen on train, and on train alone: signals, methods, and one ordered path of thresholds.

A candidate is judged by its out-of-fold Brier score: proper like the log-likelihood, but bounded, so that one
question on which an isotonic curve said 0 or 1 cannot decide. Candidates within one standard error of the best
(of the paired difference, a group being one unit) count as equal, and the simplest of them is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.decision.artifact import ALWAYS_K, UNREACHABLE, Thresholds
from app.decision.calibrator import Calibrator
from app.decision.signals import NAMES, PREFIXES, prefixed
from app.errors import DataError
from app.refit.abstain import Given
from app.refit.fit import FUSIONS, Floats, Labels, Method, Weighted, fit_beside, folds, out_of_fold
from app.refit.ledger import ACTIONS, Ledger
from app.refit.split import Train, Units

# Candidates are compared on at most this many rows: beyond, they differ by less than anyone could use.
COMPARED_ROWS = 5_000
# Cuts on either side of a graded pair: all there are on a small table, quantiles of p on a large one.
CUTS = 200
STEPS = 40
# A fixed action that train itself gives fewer standard errors than this would most likely fail on validation too.
_SAFE = 2.0
# Two probabilities nearer than this are one: no threshold should depend on the last bit of an exponential.
_RESOLUTION = 1e-9
# Answering less than this is not answering.
_LEAST_COVERAGE = 0.05
_SIMPLEST: dict[Method, int] = {"logistic": 0, "temperature": 1, "isotonic": 2, "fused": 3, "curved": 4}
DEFAULT_METHODS: tuple[Method, ...] = ("logistic", "temperature", "isotonic", "fused", "curved")


@dataclass(frozen=True, eq=False, slots=True)
class Chosen:
    """The calibrator that won, and its out-of-fold probabilities on train."""

    calibrator: Calibrator
    method: Method
    names: tuple[str, ...]
    brier: float
    compared: int
    out_of_fold: Floats


@dataclass(frozen=True, slots=True)
class Step:
    """One pair of thresholds on a path, with what train says of it."""

    thresholds: Thresholds
    accuracy: float
    cost: float


def candidates(names: Sequence[str], methods: Sequence[Method]) -> list[tuple[Method, tuple[str, ...]]]:
    """Every method on every signal, and each fusion of the three signals on the whole answer and on each prefix."""
    found: list[tuple[Method, tuple[str, ...]]] = [
        (method, (name,)) for method in methods if method not in FUSIONS for name in names
    ]
    for fusion in (NAMES, *(tuple(prefixed(name, length) for name in NAMES) for length in PREFIXES)):
        present = tuple(name for name in fusion if name in names)
        if len(present) > 1:
            found += [(method, present) for method in methods if method in FUSIONS]
    return found


def choose_calibrator(
    signals: Mapping[str, Floats],
    labels: Labels,
    units: Units,
    names: Sequence[str],
    methods: Sequence[Method],
    *,
    extra: Weighted | None = None,
) -> Chosen:
    """Fit every candidate out-of-fold, take the simplest of the best, and fit that one on all rows.

    `extra` are rows of other groups that join every fit; candidates are compared on the table's own rows alone.
    """
    usable = [name for name in names if name in signals and np.isfinite(signals[name]).any()]
    pool = candidates(usable, methods)
    if not pool:
        raise DataError("no signal to fit on: collect the table with log-probabilities switched on")
    few = np.flatnonzero(units.codes < _rows_to_groups(units))
    fewer = units.take(few)
    fold, target = folds(labels[few], fewer.codes), labels[few]
    columns = {name: signals[name][few] for name in usable}
    thinned = extra.thin(COMPARED_ROWS) if extra else None
    predicted = (out_of_fold(m, s, columns, target, fold, extra=thinned) for m, s in pool)
    losses = np.stack([_brier(p, target, fewer) for p in predicted])
    means = losses.mean(axis=1)
    best = int(means.argmin())
    gap = losses - losses[best]
    tied = means - means[best] <= gap.std(axis=1) / np.sqrt(fewer.count)
    rank = [(_SIMPLEST[m], "@" in s[0], means[i], i) for i, (m, s) in enumerate(pool) if tied[i]]
    winner = min(rank)[-1]
    method, chosen = pool[winner]
    whole = out_of_fold(method, chosen, signals, labels, folds(labels, units.codes), extra=extra)
    calibrator = fit_beside(method, chosen, signals, labels, extra)
    return Chosen(calibrator, method, chosen, float(means[winner]), len(pool), whole)


def best_fixed(ledger: Ledger[Train], among: Sequence[int] = ACTIONS) -> int:
    """The fixed action with the highest accuracy on train; of equals the one that reads least."""
    return max(among, key=lambda k: (round(ledger.mean(ledger.fixed(k)), 12), -k))


def lay_path(ledger: Ledger[Train], *, graded: bool, references: Sequence[int], epsilon: float) -> tuple[Step, ...]:
    """Order threshold pairs from the safest to the cheapest, for a test that walks until its first failure.

    The path starts at the best fixed action, which needs no probability to be right, and goes on along the
    efficient frontier of train: at each cost the most accurate pair. Where train gives the fixed action itself
    little chance against the other references, and gives the best pair more, walking would end before it began:
    there the path starts at that pair, whatever it costs.
    """
    anchor = best_fixed(ledger, ACTIONS if graded else (0, 5))
    route = ledger.route(ALWAYS_K[anchor])
    start = Step(ALWAYS_K[anchor], ledger.mean(ledger.right(route)), ledger.mean(ledger.spent(route)))
    held = _standard_errors(ledger, start.thresholds, references, epsilon)
    if held < _SAFE:
        steps = frontier(ledger, graded=graded, most=np.inf)
        if steps and _standard_errors(ledger, steps[0].thresholds, references, epsilon) > held:
            return tuple(steps)
    steps = frontier(ledger, graded=graded, most=start.cost)
    return (start, *(step for step in steps if step.thresholds != start.thresholds))


def frontier(ledger: Ledger[Train], *, graded: bool, most: float, steps: int = STEPS) -> list[Step]:
    """The efficient pairs that cost at most `most`, dearest first: at each of `steps` costs the most accurate one."""
    cuts, taus, accuracy, cost = grid(ledger, graded=graded)
    rows, columns = cuts
    order = np.lexsort((-accuracy, cost))
    order = order[cost[order] <= most + 1e-12]
    if order.size == 0:
        return []
    sorted_cost = cost[order]
    leading = np.maximum.accumulate(accuracy[order])
    first = np.flatnonzero(np.concatenate(([True], leading[1:] > leading[:-1] + 1e-12)))
    targets = np.linspace(sorted_cost[-1], sorted_cost[0], steps)
    reached = np.searchsorted(sorted_cost[first], targets + 1e-12, side="right") - 1
    picked = dict.fromkeys(first[reached].tolist())
    return [
        Step(Thresholds(float(taus[rows[i]]), float(taus[columns[i]])), float(accuracy[i]), float(cost[i]))
        for i in (int(order[j]) for j in picked)
    ]


def grid(
    ledger: Ledger[Train], *, graded: bool
) -> tuple[tuple[NDArray[np.intp], NDArray[np.intp]], Floats, Floats, Floats]:
    """Accuracy and cost of every pair of cuts, by cumulative sums over the questions sorted by p.

    Returns the pairs as two indices into the thresholds, the thresholds, and each pair's accuracy and cost.
    """
    known = np.flatnonzero(np.isfinite(ledger.p))
    order = known[np.argsort(-ledger.p[known], kind="stable")]
    p, weights = ledger.p[order], ledger.units.weights
    # A threshold can part only what differs: ties, which isotonic curves are full of, are never split.
    inner = np.flatnonzero(p[:-1] - p[1:] > _RESOLUTION) + 1
    if len(inner) > CUTS:
        inner = np.unique(inner[np.linspace(0, len(inner) - 1, CUTS).round().astype(np.intp)])
    cuts = np.concatenate(([0], inner, [len(p)]))
    taus = np.concatenate(([UNREACHABLE], 0.5 * (p[inner - 1] + p[inner]), [0.0]))
    if graded:
        first, second = np.triu_indices(len(cuts))
    else:
        first = second = np.arange(len(cuts))

    always_one = (taus[first] == UNREACHABLE) & (taus[second] == 0.0)

    def total(values: Mapping[int, Floats]) -> Floats:
        sums = {k: np.concatenate(([0.0], np.cumsum((values[k] * weights)[order])))[cuts] for k in ACTIONS}
        # No signal: reads five, whatever the cut, unless all the others read one.
        fallen = {k: float((values[k] * weights).sum()) - sums[k][-1] for k in (1, 5)}
        result: Floats = sums[0][first] + sums[1][second] - sums[1][first] + sums[5][-1] - sums[5][second]
        result += np.where(always_one, fallen[1], fallen[5])
        return result

    return (first, second), taus, total({k: ledger.fixed(k) for k in ACTIONS}), total(ledger.costs)


def lay_abstention(given: Sequence[Given], units: Units, *, target: float) -> list[float]:
    """Thresholds on confidence from a strict one to zero, starting where train is surest of the target.

    The strictest of all would answer so little that nothing could be shown of it. Of several policies the one that
    train is least sure of counts.
    """
    rows = np.flatnonzero(units.codes < _rows_to_groups(units))
    fewer = units.take(rows)
    known = np.concatenate([policy.confidence[rows] for policy in given])
    known = np.sort(known[np.isfinite(known)])[::-1]
    inner = np.flatnonzero(known[:-1] - known[1:] > _RESOLUTION) + 1
    inner = inner[inner >= len(known) * _LEAST_COVERAGE]
    if len(inner) > STEPS:
        inner = np.unique(inner[np.linspace(0, len(inner) - 1, STEPS).round().astype(np.intp)])
    taus = [*(0.5 * (known[inner - 1] + known[inner])).tolist(), 0.0]
    surest = np.argmax([min(_clearance(policy.gain(tau, target)[rows], fewer) for policy in given) for tau in taus])
    return taus[int(surest) :]


def foreseen(ledger: Ledger[Train], path: Sequence[Step], references: Sequence[int], epsilon: float) -> int:
    """How many steps of the path validation might certify: those before train itself sees one fall short.

    What is claimed of the end of a walk must be shown of every end that it might have had, so that the claim needs no
    correction for the choice; ends that train all but rules out would only get in the way.
    """
    cleared = [_standard_errors(ledger, step.thresholds, references, epsilon) >= 0.0 for step in path]
    return cleared.index(False) if False in cleared else len(path)


def _standard_errors(ledger: Ledger[Train], thresholds: Thresholds, references: Sequence[int], epsilon: float) -> float:
    """By how many standard errors the policy clears reference - epsilon on train, against the hardest reference."""
    right, cleared = ledger.right(ledger.route(thresholds)), np.inf
    for k in references:
        if not ledger.is_reference(thresholds, k):
            d = ledger.units.means(right - ledger.fixed(k))
            cleared = min(cleared, (d.mean() + epsilon) * np.sqrt(len(d)) / max(float(d.std()), 1e-9))
    return float(cleared)


def _clearance(gain: Floats, units: Units) -> float:
    """By how many standard errors a mean over groups lies above zero."""
    means = units.means(gain)
    return float(means.mean() * np.sqrt(len(means)) / max(float(means.std()), 1e-9))


def _brier(p: Floats, labels: Labels, units: Units) -> Floats:
    """The squared error of each group. Where a signal is missing the base rate stands in, which costs its candidate."""
    filled = np.where(np.isfinite(p), p, labels.mean())
    return units.means((filled - labels) ** 2)


def _rows_to_groups(units: Units) -> int:
    """How many of the first groups hold about COMPARED_ROWS rows."""
    return int(np.searchsorted(np.cumsum(units.sizes), COMPARED_ROWS, side="right")) + 1
