"""Heads turn evidence into a number in [0, 1], as plain arithmetic on an artifact's numbers.

A head blends a logistic model and small boosted trees. Fitting is in `app.offline.refit.heads`; tests compare `predict`
with the libraries' own predictions to 1e-9.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from app.core.calibrator import Calibrator, sigmoid

# A part's own log-odds are clipped here, at a probability of 1e-4: no part alone makes an answer certain.
MAX_LOGIT = 9.21


@dataclass(frozen=True, slots=True)
class Trees:
    """Boosted trees as arrays over all nodes. A leaf has feature -1; `value` of an inner node is the mean below it.

    A row goes left where its value is at most the threshold, and where a missing value was sent when the tree was
    fitted.
    """

    roots: tuple[int, ...] = ()
    feature: tuple[int, ...] = ()
    threshold: tuple[float, ...] = ()
    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    missing_left: tuple[bool, ...] = ()
    value: tuple[float, ...] = ()

    def score(self, row: list[float]) -> float:
        """The sum of the leaves that a row falls into: log-odds. NaN is a missing value."""
        feature, threshold, left, right = self.feature, self.threshold, self.left, self.right
        total = 0.0
        for node in self.roots:
            while (at := feature[node]) >= 0:
                x = row[at]
                goes_left = x <= threshold[node] if x == x else self.missing_left[node]  # noqa: PLR0124 - NaN differs from itself
                node = left[node] if goes_left else right[node]  # noqa: PLW2901
            total += self.value[node]
        return total

    def moved(self, row: list[float], by: list[float]) -> None:
        """Add to each feature's entry how far it moved the score: the change of the mean at each split on the way."""
        for node in self.roots:
            while (at := self.feature[node]) >= 0:
                x = row[at]
                goes_left = x <= self.threshold[node] if x == x else self.missing_left[node]  # noqa: PLR0124
                child = self.left[node] if goes_left else self.right[node]
                by[at] += self.value[child] - self.value[node]
                node = child  # noqa: PLW2901


@dataclass(frozen=True, slots=True)
class Blend:
    """sigma(bias + linear_share * linear + tree_share * trees), of named evidence.

    The linear part standardises. A missing value counts as the mean, plus `absent` if it is missing.
    """

    features: tuple[str, ...]
    # Without one of these there is no prediction.
    required: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[float, ...]
    absent: tuple[float, ...]
    intercept: float
    trees: Trees
    bias: float
    linear_share: float
    tree_share: float
    method: Literal["blend"] = "blend"

    def __post_init__(self) -> None:
        parts = (self.means, self.scales, self.weights, self.absent)
        if any(len(part) != len(self.features) for part in parts):
            raise ValueError("a blend needs one mean, scale, weight and absent weight per feature")
        if self.scales and min(self.scales) <= 0.0:
            raise ValueError("scales must be positive")
        if min(self.linear_share, self.tree_share) < 0.0:
            raise ValueError("the shares of a blend must not be negative")

    def predict(self, evidence: Mapping[str, float]) -> float | None:
        """The prediction, or None if required evidence is missing."""
        if any(name not in evidence for name in self.required):
            return None
        row = [evidence.get(name, math.nan) for name in self.features]
        linear = self.intercept
        for x, mean, scale, weight, absent in zip(row, self.means, self.scales, self.weights, self.absent, strict=True):
            linear += weight * (x - mean) / scale if x == x else absent  # noqa: PLR0124
        return sigmoid(self.bias + self.linear_share * _clip(linear) + self.tree_share * _clip(self.trees.score(row)))

    def explain(self, evidence: Mapping[str, float], most: int = 3) -> tuple[tuple[str, float], ...]:
        """The features that moved the log-odds most, with how far; those that did not move it are left out."""
        row = [evidence.get(name, math.nan) for name in self.features]
        by = [0.0] * len(row)
        self.trees.moved(row, by)
        moved = [
            self.tree_share * trees + self.linear_share * (weight * (x - mean) / scale if x == x else absent)  # noqa: PLR0124
            for trees, x, mean, scale, weight, absent in zip(
                by, row, self.means, self.scales, self.weights, self.absent, strict=True
            )
        ]
        order = sorted(range(len(row)), key=lambda at: -abs(moved[at]))[:most]
        return tuple((self.features[at], moved[at]) for at in order if moved[at])


def _clip(logit: float) -> float:
    return max(-MAX_LOGIT, min(MAX_LOGIT, logit))


# A calibrator is the paper's head: one answer's own signals.
Head = Blend | Calibrator
# Heads by state, then by k or action.
Heads = Mapping[str, Mapping[int, Head]]
