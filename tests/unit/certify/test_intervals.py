"""Wilson's interval: scipy's values, and none without trials."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from app.certify.intervals import Interval, wilson


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
