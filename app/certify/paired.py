"""Tests of a policy against its references on independent groups, and how far along a path of policies they hold.

Fixed-sequence testing (Learn then Test): the steps of a path are tested in order, each at the full level delta, until
the first that fails. A false step passes only if the first false step does, so the probability of that is at most
delta, whatever the length of the path. With several references a step passes if it passes against each
(intersection-union test), which needs no correction either.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.certify import bets, exact

Floats = NDArray[np.float64]

# A bound is searched upwards from this many standard errors below the mean, in half steps, then by bisection.
_REACH = 8
_HALVINGS = 8


@dataclass(frozen=True, eq=False, slots=True)
class Differences:
    """A policy's accuracy minus a reference's in each group, in an order that does not depend on the values."""

    values: Floats
    # Every value is one row's: -1, 0 or 1. Whether it is so must not depend on the values.
    single: bool
    # The number of requests in each group, where requests count and not groups.
    requests: Floats | None = None

    @property
    def n(self) -> int:
        """The number of groups."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """The mean difference."""
        return float(np.average(self.values, weights=self.requests)) if self.n else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation between groups."""
        weights = 1.0 if self.requests is None else self.requests / self.requests.mean()
        return float(np.sqrt(np.mean((weights * (self.values - self.mean)) ** 2))) if self.n else 0.0

    def above(self, mean: float, delta: float) -> bool:
        """Whether the true mean difference is shown to be above `mean`, wrong with probability at most delta.

        The exact test where every value is one row's, up to 2,000 groups; bets otherwise.
        """
        if self.single and self.n <= exact.MAX_PAIRS:
            gains, losses = int((self.values > 0.0).sum()), int((self.values < 0.0).sum())
            return exact.above(gains, losses, self.n, mean, delta=delta)
        if self.requests is None:
            return bets.above(self.values.tolist(), mean, low=-1.0, high=1.0, delta=delta)
        # The mean over requests is above the tested one if and only if the mean of these values is above zero.
        weighted = (self.requests * (self.values - mean) / self.requests.max()).tolist()
        return bets.above(weighted, 0.0, low=-1.0 - mean, high=1.0 - mean, delta=delta)

    def lower_bound(self, delta: float) -> float:
        """A mean such that this one and every smaller one is rejected at level delta: a lower confidence bound.

        It is searched from below: a test whose bets depend on the tested mean need not reject an interval of means.
        """
        error = max(self.deviation / math.sqrt(max(self.n, 1)), 1.0 / max(self.n, 1))
        low = -1.0
        for steps in range(2 * _REACH, -1, -1):
            high = self.mean - 0.5 * steps * error
            if high > -1.0:
                if not self.above(high, delta):
                    break
                low = high
        if low > -1.0:
            for _ in range(_HALVINGS):
                middle = 0.5 * (low + high)
                low, high = (middle, high) if self.above(middle, delta) else (low, middle)
        return low


@dataclass(frozen=True, eq=False, slots=True)
class Failure:
    """The first step that failed, and the reference it failed against."""

    step: int
    against: int
    differences: Differences


def walk(path: Iterable[Mapping[int, Differences]], mean: float, delta: float) -> tuple[int, Failure | None]:
    """How many steps pass before the first that fails, and the failure; a step has its differences by reference."""
    passed = 0
    for references in path:
        for k, differences in sorted(references.items(), key=lambda one: one[1].mean):
            if not differences.above(mean, delta):
                return passed, Failure(passed, k, differences)
        passed += 1
    return passed, None
