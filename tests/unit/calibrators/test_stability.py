"""The stability index: below its limit for the same population, above it for another, whatever the size."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.calibrators.stability import ENOUGH, Bins, RecentCounts, RecentMean, bins_of, psi, psi_limit

DECILES = tuple(number / 10 for number in range(1, 10))


def fitted(chance: random.Random, rows: int) -> Bins:
    """Bins from the deciles of a sample of the standard normal."""
    sample = sorted(chance.gauss(0, 1) for _ in range(rows))
    return bins_of([sample[rows * level // 10] for level in range(1, 10)])


def index(chance: random.Random, bins: Bins, *, n: int, shift: float = 0.0) -> float:
    """The index of n values of the normal, shifted."""
    recent = RecentCounts(bins, n)
    for _ in range(n):
        recent.add(chance.gauss(shift, 1))
    return psi(recent.counts, bins.shares)


def test_bins_of_deciles_hold_a_tenth_each() -> None:
    """Nine cuts make ten bins; a value on a cut is below it."""
    bins = bins_of(DECILES)
    assert bins.shares == pytest.approx([0.1] * 10)
    assert [bins.place(value) for value in (-5.0, 0.1, 0.1001, 0.9, 0.95, 7.0)] == [0, 0, 1, 8, 9, 9]


def test_a_repeated_cut_joins_its_neighbours() -> None:
    """Where a value has a large share of its own, its bin reaches to the nearest cuts whose shares are known."""
    bins = bins_of([1.0, 2.0, 3.0, 3.0, 3.0, 6.0, 7.0, 8.0, 9.0])
    assert bins.cuts == (1.0, 2.0, 6.0, 7.0, 8.0, 9.0)
    assert bins.shares == pytest.approx([0.1, 0.1, 0.4, 0.1, 0.1, 0.1, 0.1])
    assert bins_of([3.0, 3.0]).shares == (1.0,)
    assert bins_of([]).shares == (1.0,)


def test_known_values() -> None:
    """Equal shares are 0; half against a quarter and three quarters is ln 3 / 2."""
    assert psi([10, 10], [0.5, 0.5]) == 0.0
    assert psi([250_000, 750_000], [0.5, 0.5]) == pytest.approx(0.25 * 1.0986122887 * 1.0, rel=1e-4)
    assert 0.0 < psi([0, 20], [0.5, 0.5]) < 10.0


@pytest.mark.parametrize("n", [ENOUGH, 500, 2000])
def test_the_same_population_stays_below_the_limit(n: int) -> None:
    """Drawn from what it was fitted on, the index exceeds its limit in no more than one run of a hundred."""
    chance = random.Random(30)
    bins = [fitted(chance, 800) for _ in range(10)]
    limit = psi_limit(n, 800, 10)
    assert sum(index(chance, bins[run % 10], n=n) > limit for run in range(100)) <= 2


@pytest.mark.parametrize(("shift", "n"), [(1.0, ENOUGH), (0.8, 500), (0.7, 2000)])
def test_another_population_exceeds_it(shift: float, n: int) -> None:
    """A shift by most of a standard deviation is seen with few questions, a smaller one with more."""
    chance = random.Random(31)
    bins = fitted(chance, 800)
    limit = psi_limit(n, 800, 10)
    assert sum(index(chance, bins, n=n, shift=shift) > limit for _ in range(100)) >= 95


def test_a_fixed_limit_would_cry_wolf() -> None:
    """Where only 60 were fitted on, an index of 0.2 is ordinary: the limit allows it, the rule of thumb does not."""
    chance = random.Random(32)
    found = [index(chance, fitted(chance, 60), n=ENOUGH) for _ in range(200)]
    assert sum(value > 0.2 for value in found) >= 40
    assert sum(value > psi_limit(ENOUGH, 60, 10) for value in found) <= 4


def test_the_limit_falls_with_the_sample() -> None:
    """More questions on either side, a lower limit; it never falls below the tolerance."""
    limits = [psi_limit(n, 800, 10) for n in (200, 500, 1000, 2000, 10**9)]
    assert limits == sorted(limits, reverse=True)
    assert psi_limit(1000, 8000, 10) < psi_limit(1000, 800, 10)
    assert psi_limit(10**9, 10**9, 10) == pytest.approx(0.1, abs=1e-3)


@given(st.lists(st.floats(-10.0, 10.0), max_size=80), st.integers(1, 20))
def test_counts_are_those_of_the_last_values(values: list[float], window: int) -> None:
    """Sliding counts equal a recount of the window, and so does the sliding mean."""
    bins = bins_of([-1.0, 0.0, 1.0])
    counts, mean = RecentCounts(bins, window), RecentMean(window)
    last: deque[float] = deque(maxlen=window)
    assert mean.value is None
    for value in values:
        counts.add(value)
        mean.add(value)
        last.append(value)
        assert counts.counts == [sum(bins.place(each) == place for each in last) for place in range(4)]
        assert counts.total == len(last)
        assert mean.value == pytest.approx(sum(last) / len(last), abs=1e-9)
