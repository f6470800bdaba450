import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom

from app.certify import bets as betting
from app.offline.refit.certify import GivenAnswers, answers, binomial_p, binomial_upper
from app.offline.refit.splits import Units


def p_value(values: np.ndarray, mean: float, delta: float) -> float:
    return betting.p_value(values.tolist(), mean, low=-1.0, high=1.0, delta=delta)


def singles(n: int) -> Units:
    return Units(np.arange(n), np.ones(n))


@pytest.mark.parametrize(("gain", "loss"), [(0.0, 0.02), (0.03, 0.05), (0.2, 0.22)])
def test_a_true_hypothesis_is_rejected_at_most_delta_of_the_time(gain: float, loss: float) -> None:
    """At the edge of the hypothesis, 1,500 draws of any discordance stay within the 99.9 % quantile of delta."""
    rng = np.random.default_rng(7)
    draws = rng.choice([-1.0, 0.0, 1.0], size=(1500, 250), p=[loss, 1.0 - gain - loss, gain])
    rejected = sum(p_value(d, -0.02, 0.1) <= 0.1 for d in draws)
    assert rejected <= binom.ppf(0.999, 1500, 0.1)


def test_the_capital_is_the_product_of_its_bets() -> None:
    """Worked by hand for two values: the first bet knows nothing, the second the first value."""
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
    """Without a single difference, 160 groups show that at most 0.02 is lost; 100 do not."""
    assert p_value(np.zeros(160), -0.02, 0.1) <= 0.1
    assert p_value(np.zeros(100), -0.02, 0.1) > 0.1


@pytest.mark.parametrize(("wrong", "answered"), [(0, 10), (3, 50), (50, 50), (20, 400)])
def test_binomial_bounds_are_those_of_the_books(wrong: int, answered: int) -> None:
    """Clopper and Pearson's bound is a quantile of the beta distribution, the p-value a binomial tail."""
    expected = 1.0 if wrong == answered else beta.ppf(0.9, wrong + 1, answered - wrong)
    assert binomial_upper(wrong, answered, 0.1) == pytest.approx(expected)
    assert binomial_p(wrong, answered, 0.2) == pytest.approx(binom.cdf(wrong, answered, 0.2))


def test_nothing_answered_shows_nothing() -> None:
    """Without an answer the p-value and the bound are 1."""
    assert binomial_p(0, 0, 0.2) == 1.0
    assert binomial_upper(0, 0, 0.1) == 1.0


def test_a_missing_confidence_answers() -> None:
    """What was not measured is not low; what equals the threshold has reached it."""
    assert answers(np.array([0.2, 0.5, np.nan, 0.9]), 0.5).tolist() == [False, True, True, True]


def test_selective_tests_agree_on_rows_and_on_groups() -> None:
    """Grouped rows are tested by betting on group means, and the bound brackets the error that was drawn."""
    rng = np.random.default_rng(0)
    right = (rng.random(900) > 0.1).astype(float)
    policy = GivenAnswers(right, np.where(rng.random(900) < 0.7, 0.9, 0.1))
    grouped = Units(np.arange(900) // 3, np.full(300, 3.0))
    for units in (singles(900), grouped):
        assert policy.p_value(0.5, units, 0.2, 0.1) <= 0.1
        assert policy.p_value(0.5, units, 0.08, 0.1) > 0.1
        assert 0.1 < policy.upper(0.5, units, 0.1) < 0.16


def test_the_least_mean_of_all_is_never_rejected() -> None:
    """Values at their lowest possible mean cannot be below it."""
    assert p_value(np.ones(50), -1.0, 0.1) == 1.0
