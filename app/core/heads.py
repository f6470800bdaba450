"""Heads turn evidence into a number in [0, 1], as plain arithmetic on an artifact's numbers.

A head blends a logistic model and small boosted trees. Fitting is in `app.offline.refit.heads`; tests compare `predict`
with the libraries' own predictions to 1e-9.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from app.core.calibrator import Calibrator, sigmoid

# A part's own log-odds are clipped here, at a probability of 1e-4: no part alone makes an answer certain.
MAX_LOGIT = 9.21


# A node as (feature, threshold, whether a missing value goes left, left, right, value); a leaf has feature -1.
Node = tuple[int, float, bool, Any, Any, float]


@dataclass(frozen=True)
class Trees:
    """Boosted trees as arrays over all nodes. A leaf has feature -1; `value` of an inner node is the mean below it.

    A row goes left where its value is at most the threshold, and where a missing value was sent when the tree was
    fitted. Children come after their parents.
    """

    roots: tuple[int, ...] = ()
    feature: tuple[int, ...] = ()
    threshold: tuple[float, ...] = ()
    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    missing_left: tuple[bool, ...] = ()
    value: tuple[float, ...] = ()

    @cached_property
    def _nodes(self) -> list[Node]:
        """The roots as nested tuples: following them takes half the time of arrays."""
        made: list[Any] = [None] * len(self.feature)
        for at in reversed(range(len(made))):
            inner = self.feature[at] >= 0
            children = (made[self.left[at]], made[self.right[at]]) if inner else (None, None)
            made[at] = (self.feature[at], self.threshold[at], self.missing_left[at], *children, self.value[at])
        return [made[root] for root in self.roots]

    def score(self, row: list[float]) -> float:
        """The sum of the leaves that a row falls into: log-odds. NaN is a missing value."""
        total = 0.0
        for root in self._nodes:
            at, threshold, missing_left, left, right, value = root
            while at >= 0:
                x = row[at]
                # Only NaN differs from itself.
                node = left if x <= threshold or (missing_left and x != x) else right  # noqa: PLR0124
                at, threshold, missing_left, left, right, value = node
            total += value
        return total

    def moved(self, row: list[float], by: list[float]) -> None:
        """Add to each feature's entry how far it moved the score: the change of the mean at each split on the way."""
        for root in self._nodes:
            at, threshold, missing_left, left, right, value = root
            while at >= 0:
                x, split, before = row[at], at, value
                node = left if x <= threshold or (missing_left and x != x) else right  # noqa: PLR0124
                at, threshold, missing_left, left, right, value = node
                by[split] += value - before


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
