"""The accuracy that a signal reaches at each retrieval budget, and the area under that curve.

Questions are sorted by p. A policy is a cut (binary: no passage above it, many below) or a pair of cuts (graded: few
between them). A threshold cannot split ties, so cuts are only where p differs. Questions without a p come last: they
retrieve at every threshold, except at the cheap end, where nothing is read. The axes are the share of questions that
read many (full) or retrieve (call), and the passages read as a share of always reading many (passage).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.offline.refit.metrics import Draws, cells_of
from app.offline.table import Floats

AXES = ("full", "call", "passage")
# The passage axis tries every pair of cuts up to this many; beyond it, pairs of this many quantile cuts.
MAX_CUTS = 4_000
# Cells and budgets on which a resampled frontier is computed; the interval is centred on the exact value.
CELLS = 48
_BUDGETS = 200
# Costs are counted in whole units of the smallest weight, or in this many parts if the weights have no common unit.
_PARTS = 1_600_000
_MAX_DENOMINATOR = 60


@dataclass(frozen=True, eq=False, slots=True)
class Ladder:
    """Weight and right answers of the questions above each cut, most confident first; leading axes are draws.

    `weight` rises from 0 to 1. The others are the accuracy that the questions above a cut contribute if they read no
    passage, few or many.
    """

    weight: Floats
    none: Floats
    few: Floats
    many: Floats
    passages: tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """Accuracy against cost, cheapest first, and a bound on the error of its area."""

    x: Floats
    accuracy: Floats
    error_bound: float = 0.0

    @property
    def area(self) -> Floats:
        """The trapezoid over the whole axis."""
        result: Floats = np.asarray(np.trapezoid(self.accuracy, self.x, axis=-1))
        return result


def ladder(p: Floats, right: Mapping[int, Floats], weights: Floats) -> Ladder:
    """Sort the questions by p, and sum up to each cut."""
    score = np.where(np.isfinite(p), p, -np.inf)
    order = np.argsort(-score, kind="stable")
    ends = np.append(np.flatnonzero(score[order][:-1] != score[order][1:]) + 1, len(p))
    share = weights / weights.sum()

    def sums(values: Floats) -> Floats:
        return np.append(0.0, np.cumsum((share * values)[order])[ends - 1])

    return _rungs(sums(np.ones(len(p))), {k: sums(values) for k, values in right.items()})


def _rungs(weight: Floats, right: Mapping[int, Floats]) -> Ladder:
    # A policy with two numbers of passages has the same few and many.
    none, few, many = (sorted(right)[at] for at in (0, 1, -1))
    return Ladder(weight, right[none], right[few], right[many], (few, many))


def binary(rungs: Ladder) -> Curve:
    """Every cut: no passage above it, many below."""
    accuracy = rungs.none + rungs.many[..., -1:] - rungs.many
    return _ascending(rungs.weight, accuracy)


def envelope(curve: Curve) -> Curve:
    """At each cost the best accuracy at that cost or less."""
    return Curve(curve.x, np.maximum.accumulate(curve.accuracy, axis=-1), curve.error_bound)


def graded(rungs: Ladder, axis: str) -> Curve:
    """The envelope over every pair of cuts. On the full and the call axis one cut fixes the cost, the other is free."""
    skip, compact = rungs.none - rungs.few, rungs.few - rungs.many
    everything = rungs.many[..., -1:]
    if axis == "full":
        return envelope(_ascending(rungs.weight, np.maximum.accumulate(skip, axis=-1) + compact + everything))
    if axis == "call":
        best = np.maximum.accumulate(compact[..., ::-1], axis=-1)[..., ::-1]
        return envelope(_ascending(rungs.weight, skip + best + everything))
    return _by_passages(rungs.weight, skip, compact, float(everything[-1]), rungs.passages)


def _ascending(weight: Floats, accuracy: Floats) -> Curve:
    return Curve((weight[..., -1:] - weight)[..., ::-1], accuracy[..., ::-1])


def _by_passages(weight: Floats, skip: Floats, compact: Floats, everything: float, passages: tuple[int, int]) -> Curve:
    """All pairs at once, on a lattice of costs counted in passages.

    With more than MOST_CUTS cuts, only cuts at most h apart in weight are kept. Rounding both cuts of a pair to the
    next kept one on the cheap side moves at most h from many to few and h from few to none: this never costs more, and
    loses at most 2h. Costs of neighbouring pairs are at most h apart, and accuracy rises by at most one, so a trapezoid
    differs from the steps below it by at most h. In total the area is at most 3h too low, and at most h too high.
    """
    few, many = passages
    bound = 0.0
    if len(weight) > MAX_CUTS + 1:
        near = np.searchsorted(weight, np.linspace(0.0, weight[-1], MAX_CUTS + 1))
        kept = np.unique(np.clip(np.append(near, [0, len(weight) - 1]), 0, len(weight) - 1))
        weight, skip, compact = weight[kept], skip[kept], compact[kept]
        bound = 3.0 * float(np.diff(weight).max())
    parts, coarse = _parts(weight)
    if coarse:
        parts, kept = np.unique(parts, return_index=True)
        skip, compact = skip[kept], compact[kept]
        # Both cuts move by a part at most, and so does every cost.
        bound += 4.0 / _PARTS
    total = int(parts[-1])
    best = np.full(many * total + 1, -np.inf)
    for second, at in enumerate(parts.tolist()):
        place = many * total - (many - few) * at - few * parts[: second + 1]
        # For one second cut all first cuts have different costs, so no place occurs twice.
        best[place] = np.maximum(best[place], skip[: second + 1] + compact[second])
    reached = np.flatnonzero(np.isfinite(best))
    return envelope(Curve(reached / float(many * total), best[reached] + everything, bound))


def _parts(weight: Floats) -> tuple[NDArray[np.intp], bool]:
    """Cumulative weights as whole numbers: exact if they have a small common unit, else rounded."""
    scaled = weight / float(np.diff(weight).min())
    for unit in range(1, _MAX_DENOMINATOR + 1):
        whole = np.rint(scaled * unit)
        if whole[-1] > 2 * _PARTS:
            break
        if np.abs(scaled * unit - whole).max() < 1e-6:
            return whole.astype(np.intp), False
    return np.rint(weight * (_PARTS / weight[-1])).astype(np.intp), True


def areas(p: Floats, right: Mapping[int, Floats], weights: Floats) -> dict[str, float]:
    """The area under each frontier of a signal, and the bound on the error of the passage axis."""
    rungs = ladder(p, right, weights)
    passage = graded(rungs, "passage")
    found = {axis: float(area) for axis, area in _areas(rungs).items()}
    return found | {"passage": float(passage.area), "error_bound": passage.error_bound}


def _areas(rungs: Ladder) -> dict[str, Floats]:
    """All areas except the passage axis, which has another algorithm for many draws than for one table."""
    plain = binary(rungs)
    return {
        "binary": plain.area,
        "binary_enveloped": envelope(plain).area,
        "full": graded(rungs, "full").area,
        "call": graded(rungs, "call").area,
    }


def random_and_oracle(right: Mapping[int, Floats], weights: Floats) -> dict[str, float]:
    """The binary area of random skipping, and of an oracle that knows where retrieval helps."""
    share = weights / weights.sum()
    none, many = right[min(right)], right[max(right)]
    random = float(share @ (none + many)) / 2.0
    return {"random": random, "oracle": float(binary(ladder(none - many, right, weights)).area)}


def drawn_areas(p: Floats, right: Mapping[int, Floats], draws: Draws) -> dict[str, Floats]:
    """The areas in every draw of a bootstrap, on CELLS cells of p; the table itself first."""
    cell, cells = cells_of(-np.where(np.isfinite(p), p, -np.inf), CELLS)
    ks = sorted(right)
    sums = draws.sums([np.ones(len(p)), *(right[k] for k in ks)], cell, cells)
    sums = np.concatenate([np.zeros((len(sums), 1, sums.shape[2])), np.cumsum(sums, axis=1)], axis=1)
    sums /= sums[:, -1:, :1]
    rungs = _rungs(sums[..., 0], {k: sums[..., number + 1] for number, k in enumerate(ks)})
    return _areas(rungs) | {"passage": _drawn_passage(rungs)}


def _drawn_passage(rungs: Ladder) -> Floats:
    """The area on the passage axis of every draw: the best pair within each budget."""
    first, second = np.triu_indices(rungs.weight.shape[-1])
    few, many = rungs.passages
    cost = 1.0 - rungs.weight[:, first] * (few / many) - rungs.weight[:, second] * (1.0 - few / many)
    skip, compact = rungs.none - rungs.few, rungs.few - rungs.many
    accuracy = skip[:, first] + compact[:, second] + rungs.many[:, -1:]
    budget = np.clip(np.ceil(cost * _BUDGETS - 1e-9), 0, _BUDGETS).astype(np.intp)
    best = np.full((len(cost), _BUDGETS + 1), -np.inf)
    np.maximum.at(best.reshape(-1), (np.arange(len(cost))[:, None] * (_BUDGETS + 1) + budget).ravel(), accuracy.ravel())
    return np.trapezoid(np.maximum.accumulate(best, axis=-1), dx=1.0 / _BUDGETS, axis=-1)
