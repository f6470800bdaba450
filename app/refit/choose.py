"""What is chosen on train by how well it foretells: signals, methods, and the path of abstention.

A candidate is judged by its out-of-fold Brier score: proper like the log-likelihood, but bounded, so that one
question on which an isotonic curve said 0 or 1 cannot decide. Candidates within one standard error of the best
(of the paired difference, a group being one unit) count as equal, and the simplest of them is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.decision.calibrator import Calibrator
from app.decision.signals import NAMES, PREFIXES, prefixed
from app.errors import DataError
from app.refit.abstain import Given
from app.refit.fit import FUSIONS, Floats, Labels, Method, Weighted, fit_beside, folds, out_of_fold
from app.refit.paths import RESOLUTION, STEPS
from app.refit.split import Units

# Candidates are compared on at most this many rows: beyond, they differ by less than anyone could use.
COMPARED_ROWS = 5_000
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


def lay_abstention(given: Sequence[Given], units: Units, *, target: float) -> list[float]:
    """Thresholds on confidence from a strict one to zero, starting where train is surest of the target.

    The strictest of all would answer so little that nothing could be shown of it. Of several policies the one that
    train is least sure of counts.
    """
    rows = np.flatnonzero(units.codes < _rows_to_groups(units))
    fewer = units.take(rows)
    known = np.concatenate([policy.confidence[rows] for policy in given])
    known = np.sort(known[np.isfinite(known)])[::-1]
    inner = np.flatnonzero(known[:-1] - known[1:] > RESOLUTION) + 1
    inner = inner[inner >= len(known) * _LEAST_COVERAGE]
    if len(inner) > STEPS:
        inner = np.unique(inner[np.linspace(0, len(inner) - 1, STEPS).round().astype(np.intp)])
    taus = [*(0.5 * (known[inner - 1] + known[inner])).tolist(), 0.0]
    surest = np.argmax([min(_clearance(policy.gain(tau, target)[rows], fewer) for policy in given) for tau in taus])
    return taus[int(surest) :]


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
