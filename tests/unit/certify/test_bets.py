"""Betting tests: how often they reject, and their bounds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from app.certify import bets as betting


def p_value(values: np.ndarray, mean: float, delta: float) -> float:
    return betting.p_value(values.tolist(), mean, low=-1.0, high=1.0, delta=delta)


@pytest.mark.parametrize(("gain", "loss"), [(0.0, 0.02), (0.03, 0.05), (0.2, 0.22)])
def test_a_true_hypothesis_is_rejected_at_most_delta_of_the_time(gain: float, loss: float) -> None:
    """At the edge of the hypothesis, 1,500 draws of any discordance stay within the 99.9 % quantile of delta."""
    rng = np.random.default_rng(7)
    draws = rng.choice([-1.0, 0.0, 1.0], size=(1500, 250), p=[loss, 1.0 - gain - loss, gain])
    rejected = sum(p_value(d, -0.02, 0.1) <= 0.1 for d in draws)
    assert rejected <= binom.ppf(0.999, 1500, 0.1)


def test_the_capital_is_the_product_of_its_bets() -> None:
    """Computed by hand for two values: the second bet depends on the first value."""
    delta, d = 0.1, np.array([1.0, 0.0])
    y, mean = [1.0, 0.5], 0.49
    first = min(math.sqrt(2 * math.log(10) / (2 * 0.25)), 0.75 / mean)
    spread = (0.25 + (1.0 - 0.75) ** 2) / 2
    second = min(math.sqrt(2 * math.log(10) / (2 * spread)), 0.75 / mean)
    capital = [1.0 + first * (y[0] - mean)]
    capital.append(capital[0] * (1.0 + second * (y[1] - mean)))
    assert p_value(d, -0.02, delta) == pytest.approx(1.0 / max(capital))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=80), st.floats(0.01, 0.5))
def test_the_bound_is_the_test_inverted(values: list[float], delta: float) -> None:
    """Means below the bound are rejected, and means above it are not."""
    d = np.array(values)
    lower = betting.lower_bound(values, low=-1.0, high=1.0, delta=delta)
    assert -1.0 <= lower <= 1.0
    if lower > -0.99:
        assert p_value(d, lower - 1e-9, delta) <= delta * (1 + 1e-6)
    if lower < 0.99:
        assert p_value(d, min(1.0, lower + 1e-5), delta) > delta
    tested = [p_value(d, mean, delta) for mean in np.linspace(-0.99, 0.99, 9)]
    assert [p <= delta for p in tested] == sorted((p <= delta for p in tested), reverse=True)
    assert all(0.0 < p <= 1.0 for p in tested)


def test_identical_policies_certify_with_few_labels() -> None:
    """If no pair differs, 160 groups show that at most 0.02 is lost; 100 do not."""
    assert p_value(np.zeros(160), -0.02, 0.1) <= 0.1
    assert p_value(np.zeros(100), -0.02, 0.1) > 0.1


def test_the_least_mean_of_all_is_never_rejected() -> None:
    """Values at their lowest possible mean cannot be below it."""
    assert p_value(np.ones(50), -1.0, 0.1) == 1.0
