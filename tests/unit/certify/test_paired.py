"""Paired tests on groups: which test is used, the bound, and how far a path holds."""

import numpy as np
import pytest
from scipy.stats import binom

from app.certify import bets, exact
from app.certify.paired import Differences, walk


def drawn(n: int, gain: float, loss: float, *, seed: int = 0, single: bool = True) -> Differences:
    rng = np.random.default_rng(seed)
    return Differences(rng.choice([1.0, 0.0, -1.0], size=n, p=[gain, 1.0 - gain - loss, loss]), single=single)


def test_single_rows_are_tested_exactly_and_groups_by_bets() -> None:
    """The same values, two tests; beyond the limit of the exact one bets take over."""
    for n in (80, 120, 160, exact.MAX_PAIRS + 1):
        values = np.zeros(n)
        assert Differences(values, single=False).above(-0.02, 0.1) == bets.above(
            values.tolist(), -0.02, low=-1.0, high=1.0, delta=0.1
        )
    assert Differences(np.zeros(120), single=True).above(-0.02, 0.1)
    assert not Differences(np.zeros(120), single=False).above(-0.02, 0.1)
    assert Differences(np.zeros(exact.MAX_PAIRS + 1), single=True).above(-0.02, 0.1)


@pytest.mark.parametrize("single", [True, False])
def test_the_bound_is_the_test_inverted(*, single: bool) -> None:
    """It and smaller means are rejected; a little above it one is not, though a larger one may be."""
    for seed in range(5):
        one = drawn(300, 0.1, 0.05, seed=seed, single=single)
        bound = one.lower_bound(0.1)
        assert bound < one.mean
        assert all(one.above(bound - less, 0.1) for less in (0.0, 0.01, 0.05))
        assert not all(one.above(bound + more, 0.1) for more in np.linspace(0.0, 0.0005, 6).tolist())


def test_a_bound_that_nothing_supports_is_the_least() -> None:
    """A handful of groups, or none, show nothing at a strict level."""
    assert Differences(np.zeros(2), single=True).lower_bound(1e-9) == -1.0
    assert Differences(np.zeros(0), single=True).lower_bound(0.1) == -1.0
    assert Differences(np.zeros(0), single=False).mean == 0.0


def test_a_bound_holds_as_often_as_it_says() -> None:
    """Over 200 draws the true mean is below the bound at most delta of the time."""
    bounds = [drawn(120, 0.1, 0.07, seed=seed).lower_bound(0.1) for seed in range(200)]
    assert sum(bound > 0.03 for bound in bounds) <= binom.ppf(0.999, 200, 0.1)


def test_requests_weigh_groups_by_their_traffic() -> None:
    """A policy that gains in rare questions and loses in common ones gains per group and loses per request."""
    values, requests = np.tile([0.2, 0.2, 0.2, -0.2], 200), np.tile([1.0, 1.0, 1.0, 9.0], 200)
    by_group, by_request = Differences(values, single=False), Differences(values, single=False, requests=requests)
    assert (by_group.mean, by_request.mean) == pytest.approx((0.1, -0.1))
    assert by_group.above(0.0, 0.1)
    assert not by_request.above(0.0, 0.1)
    assert by_request.above(-0.2, 0.1)
    assert -0.2 < by_request.lower_bound(0.1) < -0.1


def test_a_walk_ends_at_the_first_failure_whatever_comes_later() -> None:
    """The failure names the reference with the smallest difference; without one every step passed."""
    good, bad = drawn(400, 0.1, 0.02), drawn(400, 0.02, 0.2)
    passed, failure = walk([{5: good}, {1: good, 5: good}, {1: bad, 5: good}, {5: good}], -0.02, 0.1)
    assert passed == 2
    assert failure is not None
    assert (failure.step, failure.against, failure.differences) == (2, 1, bad)
    assert walk([{}, {5: good}], -0.02, 0.1) == (2, None)
