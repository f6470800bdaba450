"""Compares recent traffic with the data that a calibrator was fitted on; needs no labels.

The population stability index of a signal is sum (q - e) ln(q / e) over bins, q the shares of recent questions and e
those of train. Sampling alone moves it away from zero: with B bins, n recent questions and m fitted on, n' times the
index is about chi-square with B - 1 degrees of freedom, 1/n' = 1/n + 1/m, and non-central where the populations
differ. A fixed limit would raise false alarms for few questions, so `psi_limit` grows as n' shrinks.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# With fewer questions, a bin of a tenth has too few for the index to be meaningful.
ENOUGH = 200
# Up to this index, a change is commonly considered too small to act on.
_TOLERATED = 0.1
# One-sided, in standard deviations: about one false alarm in 700 for an index of exactly `_TOLERATED`.
_SIGMAS = 3.0


@dataclass(frozen=True, slots=True)
class Bins:
    """Intervals between cuts, and the share of train in each."""

    cuts: tuple[float, ...]
    shares: tuple[float, ...]

    def place(self, value: float) -> int:
        """The index of the value's interval; a cut belongs to the interval below it."""
        return bisect_left(self.cuts, value)


def bins_of(quantiles: Sequence[float]) -> Bins:
    """Bins from evenly spaced quantiles.

    A repeated quantile is a single value with a large share, which quantiles give only roughly. It is dropped, so that
    the bin reaches from the quantile below to the one above, whose shares are known.
    """
    steps = len(quantiles) + 1
    kept = [(level, cut) for level, cut in enumerate(quantiles, start=1) if quantiles.count(cut) == 1]
    levels = [0, *(level for level, _ in kept), steps]
    shares = tuple((above - below) / steps for below, above in pairwise(levels))
    return Bins(tuple(cut for _, cut in kept), shares)


def psi(counts: Sequence[int], shares: Sequence[float]) -> float:
    """The index of these counts against these shares; half a question is added to each bin to keep it finite."""
    total = sum(counts) + 0.5 * len(counts)
    pairs = [((count + 0.5) / total, share) for count, share in zip(counts, shares, strict=True)]
    return math.fsum((q - e) * math.log(q / e) for q, e in pairs)


def psi_limit(recent: int, fitted_on: int, bins: int) -> float:
    """The index above which the populations differ by more than 0.1: the tolerance, the bias, and the noise."""
    effective = 1.0 / (1.0 / recent + 1.0 / fitted_on)
    freedom = bins - 1
    noise = math.sqrt(2.0 * freedom + 4.0 * effective * _TOLERATED)
    return _TOLERATED + (freedom + _SIGMAS * noise) / effective


class RecentCounts:
    """The number of the last `window` values in each bin."""

    def __init__(self, bins: Bins, window: int) -> None:
        self.bins = bins
        self.counts = [0] * len(bins.shares)
        self._places = bytearray(window)
        self._seen = 0

    @property
    def total(self) -> int:
        """The number of values."""
        return min(self._seen, len(self._places))

    def add(self, value: float) -> None:
        """Add one value, and remove the one that leaves the window."""
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
        """Add one value."""
        self._values[self._seen % len(self._values)] = value
        self._seen += 1

    @property
    def value(self) -> float | None:
        """The mean; None before the first value."""
        counted = min(self._seen, len(self._values))
        return math.fsum(self._values[:counted]) / counted if counted else None
