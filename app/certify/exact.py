"""An exact test of a paired difference: each of n independent pairs is a gain (+1), a tie (0) or a loss (-1).

The hypothesis is that the mean difference is at most a given one. Outcomes are ordered by the score statistic, whose
variance is estimated under the hypothesis (Tango 1998). The p-value is the largest probability, over the whole
hypothesis, of an outcome that is at least as extreme: so the test is valid for every n, and needs no assumption about
how often pairs differ (an unconditional test, as Barnard's).

Outcomes are counted by d, the number of pairs that differ, and a, the number of gains among them. The region of
outcomes to sum over contains with every outcome those with one gain more, or with one loss less. So its probability
rises with the chance of a gain and falls with that of a loss. This is used twice: the largest probability lies where
the mean equals the tested one, and between two points of a grid it is at most that of the corner with more gains and
fewer losses.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.intp]

# Beyond this many pairs the sums take long, and bets are about as sharp.
MAX_PAIRS = 2_000
# The first grid, how finely an undecided interval of it is divided, and how often: to about a millionth.
_INTERVALS = 64
_PARTS = 4
_ROUNDS = 8
# Statistics that differ only in their last bits are equal.
_TIE = 1e-9


def score(gains: Counts, losses: Counts, n: int, mean: float) -> Floats:
    """How many standard errors the observed mean is above the tested one; monotone in gains and losses."""
    loss = _restricted(gains, losses, n, mean)
    variance = n * (2.0 * loss + mean - mean * mean)
    above = gains - losses - n * mean
    return np.where(variance > 1e-12, above / np.sqrt(np.maximum(variance, 1e-12)), 0.0)


def _restricted(gains: Counts, losses: Counts, n: int, mean: float) -> Floats:
    """The most likely chance of a loss if the mean is the tested one: the larger root of a quadratic equation."""
    half = ((gains + losses) * (1.0 - mean) - 2.0 * mean * (n - gains)) / (4.0 * n)
    rest = -losses * mean * (1.0 - mean) / (2.0 * n)
    root = half + np.sqrt(np.maximum(half * half - rest, 0.0))
    return np.clip(root, max(0.0, -mean), (1.0 - mean) / 2.0)


def above(gains: int, losses: int, n: int, mean: float, *, delta: float) -> bool:
    """Whether the mean difference is shown to be above `mean`, wrong with probability at most delta."""
    if n == 0 or gains - losses <= n * mean:
        return False
    region = _region(gains, losses, n, mean)
    low, high = max(0.0, -mean), (1.0 - mean) / 2.0
    # The standard error grows with the root of the share that differs, so the grid is even on that scale.
    grid = low + (high - low) * np.linspace(0.0, 1.0, _INTERVALS + 1) ** 2
    left, right = grid[:-1], grid[1:]
    for _ in range(_ROUNDS):
        if (_probability(region, left + mean, left) > delta).any():
            return False
        unsure = _probability(region, right + mean, left) > delta
        if not unsure.any():
            return True
        edges = np.linspace(left[unsure], right[unsure], _PARTS + 1)
        left, right = edges[:-1].ravel(), edges[1:].ravel()
    return False


def _region(gains: int, losses: int, n: int, mean: float) -> Counts:
    """For each d the fewest gains of an outcome that is at least as extreme; d + 1 if none is."""
    every = np.arange(n + 1)
    least = float(score(np.array([gains]), np.array([losses]), n, mean)[0]) - _TIE
    low, high = np.zeros(n + 1, np.intp), every + 1
    while (low < high).any():
        middle = (low + high) // 2
        inside = (middle <= every) & (score(middle, every - middle, n, mean) >= least)
        done = low >= high
        high = np.where(inside & ~done, middle, high)
        low = np.where(inside | done, low, middle + 1)
    # The score is monotone, up to rounding; the two passes make the region so in any case, and never smaller.
    fewest = np.minimum.accumulate(high - every) + every
    return np.minimum.accumulate(fewest[::-1])[::-1]


def _probability(region: Counts, gain: Floats, loss: Floats) -> Floats:
    """The probability of the region at each pair of chances."""
    n = len(region) - 1
    differs = np.clip(gain + loss, 1e-300, 1.0 - 1e-16)
    share = np.clip(gain / differs, 1e-300, 1.0 - 1e-16)
    d, fewest = np.arange(n), region[:-1]
    # From d to d + 1 either the fewest gains stay, and one more gain enters, or they rise, and one more loss leaves.
    rises = region[1:] > fewest
    at = np.where(rises, fewest, fewest - 1)
    possible = (at >= 0) & (at <= d)
    at = np.where(possible, at, 0)
    log = _log_factorials(n)
    chance = np.exp(
        (log[d] - log[at] - log[d - at])[:, None] + at[:, None] * np.log(share) + (d - at)[:, None] * np.log1p(-share)
    )
    change = np.where(possible, 1.0, 0.0)[:, None] * chance * np.where(rises[:, None], share - 1.0, share)
    tail = (region[0] == 0) + np.vstack([np.zeros(len(share)), np.cumsum(change, axis=0)])
    every = np.arange(n + 1)
    weight = np.exp(
        (log[n] - log[every] - log[n - every])[:, None]
        + every[:, None] * np.log(differs)
        + (n - every)[:, None] * np.log1p(-differs)
    )
    total: Floats = (weight * np.clip(tail, 0.0, 1.0)).sum(axis=0)
    return total


@cache
def _log_factorials(n: int) -> Floats:
    return np.array([math.lgamma(k + 1.0) for k in range(n + 1)])
