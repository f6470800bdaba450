"""Which calibrator is chosen on train: the signals that it reads, and the method.

A candidate is judged by its out-of-fold Brier score: proper like the log-likelihood, but bounded, so that one
question on which an isotonic curve said 0 or 1 cannot decide. Candidates within one standard error of the best
(of the paired difference, a group being one unit) count as equal, and the simplest of them is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.core.calibrator import Calibrator
from app.core.signals import ALL_NAMES, FIRST_TOKEN_NAMES, NAMES
from app.errors import DataError
from app.offline.refit.fit import FUSIONS, Method, Weighted, fit_beside, folds, out_of_fold
from app.offline.refit.split import COMPARED_ROWS, Units
from app.offline.table import Floats, Labels, Outcomes

# Methods that may be served, the simplest first.
CANDIDATES: tuple[Method, ...] = ("logistic", "temperature", "isotonic", "fused", "curved")


@dataclass(frozen=True, eq=False, slots=True)
class ChosenCalibrator:
    """The calibrator that won, and its out-of-fold probabilities on train."""

    calibrator: Calibrator
    method: Method
    names: tuple[str, ...]
    brier: float
    compared: int
    out_of_fold: Floats


def candidate_signals(outcomes: Outcomes, wished: tuple[str, ...] | None) -> tuple[str, ...]:
    """The signals that may be fitted on; of a table that will be served, those that the gateway can compute."""
    collected = {name for named in outcomes.signals.values() for name in named}
    servable = collected if outcomes.identity is None else collected & set(ALL_NAMES)
    if wished is None:
        return tuple(sorted(servable))
    for name in wished:
        if name not in collected:
            raise DataError(f"no signal {name!r} in the table: choose among {', '.join(sorted(collected)) or 'none'}")
        if name not in servable:
            raise DataError(f"the gateway cannot compute {name!r}: choose among {', '.join(sorted(servable))}")
    return wished


def candidates(names: Sequence[str]) -> list[tuple[Method, tuple[str, ...]]]:
    """Every method on every signal, and each fusion of the three signals on the whole answer and on its first token."""
    found: list[tuple[Method, tuple[str, ...]]] = [
        (method, (name,)) for method in CANDIDATES if method not in FUSIONS for name in names
    ]
    for fusion in (NAMES, FIRST_TOKEN_NAMES):
        present = tuple(name for name in fusion if name in names)
        if len(present) > 1:
            found += [(method, present) for method in CANDIDATES if method in FUSIONS]
    return found


def choose_calibrator(
    signals: Mapping[str, Floats],
    labels: Labels,
    units: Units,
    names: Sequence[str],
    *,
    extra: Weighted | None = None,
) -> ChosenCalibrator:
    """Fit every candidate out-of-fold, take the simplest of the best, and fit that one on all rows.

    `extra` are rows of other groups that join every fit; candidates are compared on the table's own rows alone.
    """
    usable = [name for name in names if name in signals and np.isfinite(signals[name]).any()]
    pool = candidates(usable)
    if not pool:
        raise DataError("no signal to fit on: collect the table with log-probabilities switched on")
    few = units.first_groups()
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
    rank = [(CANDIDATES.index(m), "@" in s[0], means[i], i) for i, (m, s) in enumerate(pool) if tied[i]]
    winner = min(rank)[-1]
    method, chosen = pool[winner]
    whole = out_of_fold(method, chosen, signals, labels, folds(labels, units.codes), extra=extra)
    calibrator = fit_beside(method, chosen, signals, labels, extra)
    return ChosenCalibrator(calibrator, method, chosen, float(means[winner]), len(pool), whole)


def _brier(p: Floats, labels: Labels, units: Units) -> Floats:
    """The squared error of each group. Where a signal is missing the base rate stands in, which costs its candidate."""
    filled = np.where(np.isfinite(p), p, labels.mean())
    return units.means((filled - labels) ** 2)
