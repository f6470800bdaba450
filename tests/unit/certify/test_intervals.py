"""Intervals and tests of a share: scipy's values, and none without trials."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, binomtest

from app.certify.intervals import Interval, binomial_p, binomial_upper, wilson


@given(st.integers(1, 2000), st.data())
def test_intervals_are_wilsons(trials: int, data: st.DataObject) -> None:
    """They equal scipy's, and contain the share."""
    successes = data.draw(st.integers(0, trials))
    rate = wilson(successes, trials)
    expected = binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    assert (rate.low, rate.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert rate.low is not None
    assert rate.high is not None
    assert 0.0 <= rate.low <= successes / trials <= rate.high <= 1.0
    assert rate.n == trials


def test_no_trial_is_no_rate() -> None:
    """Without trials there is no value."""
    assert wilson(0, 0) == Interval(None, None, None, 0)


@pytest.mark.parametrize(("wrong", "answered"), [(0, 10), (3, 50), (50, 50), (20, 400)])
def test_binomial_bounds_are_clopper_and_pearsons(wrong: int, answered: int) -> None:
    """Clopper and Pearson's bound is a quantile of the beta distribution, the p-value a binomial tail."""
    expected = 1.0 if wrong == answered else beta.ppf(0.9, wrong + 1, answered - wrong)
    assert binomial_upper(wrong, answered, 0.1) == pytest.approx(expected, abs=2e-6)
    assert binomial_p(wrong, answered, 0.2) == pytest.approx(binom.cdf(wrong, answered, 0.2))


def test_nothing_answered_shows_nothing() -> None:
    """Without an answer the p-value and the bound are 1."""
    assert binomial_p(0, 0, 0.2) == 1.0
    assert binomial_upper(0, 0, 0.1) == 1.0


def test_an_impossible_share_is_rejected_and_a_certain_one_is_not() -> None:
    """The ends of the range."""
    assert binomial_p(3, 10, 1.0) == 0.0
    assert binomial_p(3, 10, 0.0) == 1.0
