"""How recent traffic compares with what a calibrator was fitted on, without any label.

The population stability index of a signal is sum (q - e) ln(q / e) over bins, q the shares of recent questions and e
those of train. Sampling alone moves it away from zero: with B bins, n recent questions and m fitted on, n' times the
index is about chi-square with B - 1 degrees of freedom, 1/n' = 1/n + 1/m, and non-central where the populations
differ. A fixed limit would cry wolf on few questions, so `psi_limit` grows as n' shrinks.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Below this many questions a bin of a tenth holds too few for the index to mean anything.
ENOUGH = 200
# An index up to this is commonly called no change worth acting on.
_TOLERATED = 0.1
# One-sided, in standard deviations: about one false word in 700 looks at an index of exactly `_TOLERATED`.
_SIGMAS = 3.0


@dataclass(frozen=True, slots=True)
class Bins:
    """Intervals between cuts, and the share of train in each."""

    cuts: tuple[float, ...]
    shares: tuple[float, ...]

    def place(self, value: float) -> int:
        """The number of the interval that holds the value; a cut belongs to the interval below it."""
        return bisect_left(self.cuts, value)


def bins_of(quantiles: Sequence[float]) -> Bins:
    """Bins from evenly spaced quantiles.

    A quantile that repeats marks one value with a large share of its own, of which quantiles tell the size only
    roughly. Without it the bin reaches from its neighbour below to its neighbour above, whose shares are known.
    """
    steps = len(quantiles) + 1
    kept = [(level, cut) for level, cut in enumerate(quantiles, start=1) if quantiles.count(cut) == 1]
    levels = [0, *(level for level, _ in kept), steps]
    shares = tuple((above - below) / steps for below, above in pairwise(levels))
    return Bins(tuple(cut for _, cut in kept), shares)


def psi(counts: Sequence[int], shares: Sequence[float]) -> float:
    """The index of these counts against these shares; half a question more in each bin keeps empty ones finite."""
    total = sum(counts) + 0.5 * len(counts)
    pairs = [((count + 0.5) / total, share) for count, share in zip(counts, shares, strict=True)]
    return math.fsum((q - e) * math.log(q / e) for q, e in pairs)


def psi_limit(recent: int, fitted_on: int, bins: int) -> float:
    """The index above which the populations differ by more than 0.1: what is tolerated, the bias, and the noise."""
    effective = 1.0 / (1.0 / recent + 1.0 / fitted_on)
    freedom = bins - 1
    noise = math.sqrt(2.0 * freedom + 4.0 * effective * _TOLERATED)
    return _TOLERATED + (freedom + _SIGMAS * noise) / effective


class RecentCounts:
    """How many of the last `window` values fell into each bin."""

    def __init__(self, bins: Bins, window: int) -> None:
        self.bins = bins
        self.counts = [0] * len(bins.shares)
        self._places = bytearray(window)
        self._seen = 0

    @property
    def total(self) -> int:
        """How many values are counted."""
        return min(self._seen, len(self._places))

    def add(self, value: float) -> None:
        """Count one value, and forget the one that left the window."""
        place, slot = self.bins.place(value), self._seen % len(self._places)
        if self._seen >= len(self._places):
            self.counts[self._places[slot]] -= 1
        self._places[slot] = place
        self.counts[place] += 1
        self._seen += 1


class RecentMean:
    """The mean of the last `window` values."""

    def __init__(self, window: int) -> None:
        self._values = [0.0] * window
        self._seen = 0

    def add(self, value: float) -> None:
        """Take one value in."""
        self._values[self._seen % len(self._values)] = value
        self._seen += 1

    @property
    def value(self) -> float | None:
        """The mean; None before the first value."""
        counted = min(self._seen, len(self._values))
        return math.fsum(self._values[:counted]) / counted if counted else None
