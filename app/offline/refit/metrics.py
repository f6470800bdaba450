"""Quality of probabilities and confidences, with bootstrap intervals. Each group has weight one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.certify.intervals import Interval, unknown_interval, wilson
from app.offline.refit.splits import Units
from app.offline.table import Floats, Labels

RESAMPLES = 1_000
BINS = 10
# Cells of a ranking on which a resampled AUROC or AURC is computed; the interval is centred on the exact value.
CELLS = 200
COVERAGES = (0.8, 0.9)
_CURVE = 101
_CLIP = 1e-9
# More groups than this are put into this many bundles, and bundles are drawn: a bundle of independent groups is an
# independent unit, too.
_MAX_UNITS = 10_000
_NULL_DRAWS = 200


class Draws:
    """A bootstrap over groups; all statistics use the same draws. The first draw is the table itself."""

    def __init__(self, units: Units, resamples: int) -> None:
        bundles = min(units.count, _MAX_UNITS)
        rng = np.random.default_rng(0)
        drawn = [np.bincount(rng.integers(0, bundles, bundles), minlength=bundles) for _ in range(resamples)]
        self.weights, self.count = units.weights, units.count
        self._bundle = units.codes % bundles
        # The first row is the table itself.
        self._counts = np.vstack([np.ones(bundles), *drawn])

    def sums(self, columns: Sequence[Floats], cell: NDArray[np.intp] | None = None, cells: int = 1) -> Floats:
        """Weighted sums of each column in each cell: (draws, cells, columns)."""
        place = self._bundle * cells + (0 if cell is None else cell)
        units = self._counts.shape[1]
        table = np.stack([add_up(place, self.weights * column, units * cells) for column in columns], axis=-1)
        drawn: Floats = self._counts @ table.reshape(units, -1)
        return drawn.reshape(len(self._counts), cells, len(columns))

    def mean(self, values: Floats, among: Floats | None = None) -> Floats:
        """The mean of all rows, or of those in `among`, in each draw."""
        chosen = np.ones(len(values)) if among is None else among
        sums = self.sums([np.where(chosen > 0.0, values, 0.0) * chosen, chosen])[:, 0]
        return divide(sums[:, 0], sums[:, 1])

    def interval(self, values: Floats, among: Floats | None = None) -> Interval:
        """The mean of all rows, or of those in `among`, with the middle 95 % of its draws."""
        return self.spread(self.mean(values, among))

    def spread(self, drawn: Floats) -> Interval:
        """The value of a figure, with the middle 95 % of its draws."""
        known = drawn[1:][np.isfinite(drawn[1:])]
        if not known.size or not math.isfinite(drawn[0]):
            return unknown_interval(self.count)
        low, high = np.percentile(known, [2.5, 97.5]).tolist()
        return Interval(float(drawn[0]), low, high, self.count)

    def centred(self, value: float, drawn: Floats) -> Interval:
        """A figure with the middle 95 % of its draws, shifted so that their median is the figure.

        Noise only increases an ECE and an enveloped area, so their draws are too high, and figures on cells differ
        from exact ones. The draws are only used for the spread.
        """
        known = drawn[1:][np.isfinite(drawn[1:])]
        if not math.isfinite(value):
            return unknown_interval(self.count)
        if not known.size:
            return Interval(value, None, None, self.count)
        low, middle, high = np.percentile(known, [2.5, 50.0, 97.5]).tolist()
        return Interval(value, value + low - middle, value + high - middle, self.count)

    def ece_if_calibrated(self, p: Floats, among: Floats) -> Interval:
        """The ECE that perfectly calibrated probabilities would show, because of chance: its median and middle 95 %.

        Answers of one group are right or wrong by the same luck, which is the worst case.
        """
        rng, place = np.random.default_rng(0), bin_of(p)
        units, total = self._counts.shape[1], float(self.weights @ among)

        def drawn() -> float:
            gap = add_up(place, self.weights * among * (p - (rng.random(units)[self._bundle] < p)), BINS)
            return float(np.abs(gap).sum()) / total

        low, middle, high = np.percentile([drawn() for _ in range(_NULL_DRAWS)], [2.5, 50.0, 97.5]).tolist()
        return Interval(middle, low, high, self.count)


def add_up(cell: NDArray[np.intp], values: Floats, cells: int) -> Floats:
    """The sum of the values in each cell."""
    return np.bincount(cell, values, minlength=cells).astype(np.float64)


def divide(above: Floats, below: Floats) -> Floats:
    """A ratio, NaN where the denominator is not above zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(below > 0.0, above / below, np.nan)


def auroc(score: Floats, labels: Labels, weights: Floats) -> float:
    """P(a right answer scores above a wrong one), ties count half; NaN if all are right or all are wrong."""
    cell = np.unique(score, return_inverse=True)[1]
    right, wrong = (add_up(cell, weights * kind, int(cell.max()) + 1) for kind in (labels, ~labels))
    return float(auroc_of(right[None], wrong[None])[0])


def auroc_of(right: Floats, wrong: Floats) -> Floats:
    """AUROC from the weights of right and wrong answers in cells of ascending score, over the last axis."""
    below = np.cumsum(wrong, axis=-1) - 0.5 * wrong
    return divide((right * below).sum(axis=-1), right.sum(axis=-1) * wrong.sum(axis=-1))


def cells_of(score: Floats, most: int = CELLS) -> tuple[NDArray[np.intp], int]:
    """Cells of about equal size in ascending score, and their number; ties are never split."""
    distinct, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    before = np.cumsum(counts) - counts
    cell = np.unique(before * most // len(score), return_inverse=True)[1] if len(distinct) > most else None
    return (inverse, len(distinct)) if cell is None else (cell[inverse], int(cell.max()) + 1)


def bin_of(p: Floats) -> NDArray[np.intp]:
    """The number of each p's bin, of ten equal ones; p = 1 is in the last."""
    return np.minimum((p * BINS).astype(np.intp), BINS - 1)


def losses(p: Floats, labels: Labels) -> dict[str, Floats]:
    """The Brier and the logarithmic loss of each row."""
    sure = np.clip(p, _CLIP, 1.0 - _CLIP)
    return {"brier": (p - labels) ** 2, "nll": -np.log(np.where(labels, sure, 1.0 - sure))}


def quality(p: Floats, labels: Labels, draws: Draws) -> dict[str, Interval]:
    """AUROC, ECE, Brier score and NLL of probabilities, with intervals, over the rows that have a p."""
    known = np.isfinite(p)
    if not known.any():
        return {name: unknown_interval(draws.count) for name in ("auroc", "ece", "ece_null", "brier", "nll")}
    filled = np.where(known, p, 0.0)
    among = known.astype(np.float64)
    result = {name: draws.interval(values, among) for name, values in losses(filled, labels).items()}
    binned = draws.sums([among, (filled - labels) * known], bin_of(filled), BINS)
    gaps = divide(np.abs(binned[..., 1]).sum(axis=1), binned[..., 0].sum(axis=1))
    found = draws.centred(float(gaps[0]), gaps)
    result["ece"] = replace(found, low=max(0.0, found.low or 0.0))
    result["ece_null"] = draws.ece_if_calibrated(filled, among)
    cell, cells = cells_of(np.where(known, p, -np.inf))
    ranked = draws.sums([among * labels, among * ~labels], cell, cells)
    exact = auroc(p[known], labels[known], draws.weights[known])
    result["auroc"] = draws.centred(exact, auroc_of(ranked[..., 0], ranked[..., 1]))
    return result


def ece(p: Floats, labels: Labels, weights: Floats) -> float:
    """Expected calibration error: the mean over bins of the gap between predicted and observed share."""
    known = np.isfinite(p)
    gap = add_up(bin_of(p[known]), (weights * (p - labels))[known], BINS)
    total = float(weights[known].sum())
    return float(np.abs(gap).sum() / total) if total > 0.0 else math.nan


def reliability(p: Floats, labels: Labels) -> list[dict[str, Any]]:
    """Each bin of p that has rows: its lower bound, the number of rows, the mean p, and the share right (Wilson)."""
    known = np.isfinite(p)
    place, found = bin_of(p[known]), []
    for number in range(BINS):
        held = place == number
        if held.any():
            rows = int(held.sum())
            found.append(
                {
                    "low": number / BINS,
                    "n": rows,
                    "p": float(p[known][held].mean()),
                    "accuracy": wilson(int(labels[known][held].sum()), rows),
                }
            )
    return found


@dataclass(frozen=True, eq=False, slots=True)
class Risk:
    """Coverage and the error among answered, most confident answer first; the last point answers all.

    Answers of equal confidence share their risk, so the order of rows does not matter. An answer without a confidence
    is never withheld, so it counts as the most confident.
    """

    coverage: Floats
    risk: Floats

    @property
    def aurc(self) -> float:
        """The area under risk over coverage, by the trapezoid rule."""
        return float(np.trapezoid(self.risk, self.coverage))

    def accuracy_at(self, coverage: float) -> float:
        """The share right among the most confident answers at a coverage."""
        return 1.0 - float(np.interp(coverage, self.coverage, self.risk))

    def points(self) -> list[list[float]]:
        """The curve at 101 coverages, for plotting."""
        at = np.linspace(self.coverage[0], 1.0, _CURVE)
        return [[float(c), float(np.interp(c, self.coverage, self.risk))] for c in at]


def risk_of(right: Floats, confidence: Floats, weights: Floats) -> Risk:
    """Sort by confidence, and compute the error of every prefix."""
    score = _ranked(confidence)
    _, tie = np.unique(-score, return_inverse=True)
    order = np.argsort(tie, kind="stable")
    mean_error = add_up(tie, weights * (1.0 - right), int(tie.max()) + 1) / add_up(tie, weights, int(tie.max()) + 1)
    covered = np.cumsum(weights[order])
    return Risk(covered / covered[-1], np.cumsum((weights * mean_error[tie])[order]) / covered)


def drawn_risk(right: Floats, confidence: Floats, draws: Draws) -> tuple[Floats, dict[float, Floats]]:
    """AURC and the accuracy at each coverage in every draw, on cells of confidence."""
    cell, cells = cells_of(-_ranked(confidence))
    sums = np.cumsum(draws.sums([np.ones(len(right)), 1.0 - right], cell, cells), axis=1)
    coverage = sums[..., 0] / sums[:, -1:, 0]
    risk = divide(sums[..., 1], sums[..., 0])
    # A draw may have no row of the most confident cell.
    risk = np.where(np.isfinite(risk), risk, 0.0)
    area = np.trapezoid(risk, coverage, axis=1) + coverage[:, 0] * risk[:, 0]
    at = {
        share: np.array([1.0 - np.interp(share, c, r) for c, r in zip(coverage, risk, strict=True)])
        for share in COVERAGES
    }
    return area, at


def compare_confidences(
    right: Floats, confidences: Mapping[str, Floats], draws: Draws
) -> tuple[dict[str, Any], dict[str, list[list[float]]]]:
    """AURC and accuracy at 80 % and 90 % coverage of each confidence, of random and of an oracle; and the curves."""
    weights = draws.weights
    table: dict[str, Any] = {"full_coverage": draws.interval(right)}
    curves, gains = {}, {}
    for name, confidence in {**confidences, "oracle": right}.items():
        exact = risk_of(right, confidence, weights)
        area, at = drawn_risk(right, confidence, draws)
        curves[name], gains[name] = exact.points(), (exact.aurc, area)
        table[name] = {"aurc": draws.centred(exact.aurc, area)} | {
            f"accuracy_at_{share * 100:.0f}": draws.centred(exact.accuracy_at(share), values)
            for share, values in at.items()
        }
    flat = risk_of(right, np.zeros(len(right)), weights)
    table["random"] = {"aurc": flat.aurc} | {f"accuracy_at_{c * 100:.0f}": flat.accuracy_at(c) for c in COVERAGES}
    naive, proper = gains["naive"], gains["proper"]
    table["naive_minus_proper_aurc"] = draws.centred(naive[0] - proper[0], naive[1] - proper[1])
    return table, curves


def _ranked(confidence: Floats) -> Floats:
    return np.where(np.isfinite(confidence), confidence, np.inf)


def to_json(value: object) -> object:
    """Convert to what JSON can hold: NaN and infinities become null, numpy numbers become numbers."""
    if isinstance(value, Interval):
        return {"value": to_json(value.value), "low": to_json(value.low), "high": to_json(value.high)}
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [to_json(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
