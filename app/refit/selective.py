"""How the error falls when the least sure answers are withheld: risk against coverage, and the area under it.

The confidence that counts is that of the answer really returned: p0 where nothing was read, conf_k where k passages
were. Answers of equal confidence share their risk, so that the order of rows decides nothing; an answer without a
confidence is never withheld, and so counts as the surest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.refit.metrics import Draws, Interval, add_up, cells_of, divide, interval

Floats = NDArray[np.float64]
COVERAGES = (0.8, 0.9)
_CURVE = 101


@dataclass(frozen=True, eq=False, slots=True)
class Risk:
    """Coverage and the error among answered, surest answer first; the last point answers all."""

    coverage: Floats
    risk: Floats

    @property
    def aurc(self) -> float:
        """The trapezoid of risk over coverage, from one answer to all."""
        return float(np.trapezoid(self.risk, self.coverage))

    def accuracy_at(self, coverage: float) -> float:
        """The share right among the surest answers that make up a coverage."""
        return 1.0 - float(np.interp(coverage, self.coverage, self.risk))

    def points(self) -> list[list[float]]:
        """The curve at a hundred coverages, for drawing."""
        at = np.linspace(self.coverage[0], 1.0, _CURVE)
        return [[float(c), float(np.interp(c, self.coverage, self.risk))] for c in at]


def risk_of(right: Floats, confidence: Floats, weights: Floats) -> Risk:
    """Sort by confidence, and take the error of every prefix."""
    score = _sure(confidence)
    _, tie = np.unique(-score, return_inverse=True)
    order = np.argsort(tie, kind="stable")
    mean_error = add_up(tie, weights * (1.0 - right), int(tie.max()) + 1) / add_up(tie, weights, int(tie.max()) + 1)
    covered = np.cumsum(weights[order])
    return Risk(covered / covered[-1], np.cumsum((weights * mean_error[tie])[order]) / covered)


def drawn(right: Floats, confidence: Floats, draws: Draws) -> tuple[Floats, dict[float, Floats]]:
    """AURC and the accuracy at each coverage in every draw, on cells of confidence; the undrawn table first."""
    cell, cells = cells_of(-_sure(confidence))
    sums = np.cumsum(draws.sums([np.ones(len(right)), 1.0 - right], cell, cells), axis=1)
    coverage = sums[..., 0] / sums[:, -1:, 0]
    risk = divide(sums[..., 1], sums[..., 0])
    # A draw may hold none of the surest cell.
    risk = np.where(np.isfinite(risk), risk, 0.0)
    area = np.trapezoid(risk, coverage, axis=1) + coverage[:, 0] * risk[:, 0]
    at = {
        share: np.array([1.0 - np.interp(share, c, r) for c, r in zip(coverage, risk, strict=True)])
        for share in COVERAGES
    }
    return area, at


def compare(
    right: Floats, confidences: Mapping[str, Floats], draws: Draws
) -> tuple[dict[str, Any], dict[str, list[list[float]]]]:
    """AURC and accuracy at 80 % and 90 % coverage of each confidence, beside random and oracle; and the curves."""
    weights = draws.weights
    table: dict[str, Any] = {"full_coverage": draws.interval(right)}
    curves, gains = {}, {}
    for name, confidence in {**confidences, "oracle": right}.items():
        exact = risk_of(right, confidence, weights)
        area, at = drawn(right, confidence, draws)
        curves[name], gains[name] = exact.points(), (exact.aurc, area)
        table[name] = {"aurc": interval(exact.aurc, area)} | {
            f"accuracy_at_{share * 100:.0f}": interval(exact.accuracy_at(share), values) for share, values in at.items()
        }
    flat = risk_of(right, np.zeros(len(right)), weights)
    table["random"] = {"aurc": flat.aurc} | {f"accuracy_at_{c * 100:.0f}": flat.accuracy_at(c) for c in COVERAGES}
    table["naive_minus_proper_aurc"] = _difference(gains["naive"], gains["proper"])
    return table, curves


def _difference(one: tuple[float, Floats], other: tuple[float, Floats]) -> Interval:
    return interval(one[0] - other[0], one[1] - other[1])


def _sure(confidence: Floats) -> Floats:
    return np.where(np.isfinite(confidence), confidence, np.inf)
