"""Betting tests: how often they reject, and how fast."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from app.certify import bets as betting


def above(values: np.ndarray, mean: float, delta: float) -> bool:
    return betting.above(values.tolist(), mean, low=-1.0, high=1.0, delta=delta)


@pytest.mark.parametrize(("gain", "loss"), [(0.0, 0.02), (0.03, 0.05), (0.2, 0.22)])
def test_a_true_hypothesis_is_rejected_at_most_delta_of_the_time(gain: float, loss: float) -> None:
    """At the edge of the hypothesis, 1,500 draws of any discordance stay within the 99.9 % quantile of delta."""
    rng = np.random.default_rng(7)
    draws = rng.choice([-1.0, 0.0, 1.0], size=(1500, 250), p=[loss, 1.0 - gain - loss, gain])
    assert sum(above(d, -0.02, 0.1) for d in draws) <= binom.ppf(0.999, 1500, 0.1)


def test_the_capital_is_the_product_of_its_bets() -> None:
    """Computed by hand for two values: the second bet depends on the first value, the capital and what is left."""
    y, mean = [0.52, 0.5], 0.49
    values = np.array([2.0 * one - 1.0 for one in y])
    for delta in (0.9, 0.95, 0.97):
        first = min(math.sqrt(2 * math.log(1 / delta) / (0.25 * 2)), 0.75 / mean)
        capital = 1.0 + first * (y[0] - mean)
        if capital < 1.0 / delta:
            spread = (0.25 + (y[0] - (0.5 + y[0]) / 2) ** 2) / 2
            second = min(math.sqrt(2 * math.log(1 / (delta * capital)) / spread), 0.75 / mean)
            capital *= 1.0 + second * (y[1] - mean)
        assert above(values, -0.02, delta) == (capital >= 1.0 / delta)


@pytest.mark.parametrize(("n", "mean", "differing"), [(245, 0.02, 0.05), (740, 0.02, 0.2), (1450, 0.0, 0.1)])
def test_their_power_is_the_one_that_is_planned_with(n: int, mean: float, differing: float) -> None:
    """More than .8 at no more than 1.3 times the size of the exact test, most of it where little differs."""
    rng = np.random.default_rng(0)
    chances = [(differing - mean) / 2, 1 - differing, (differing + mean) / 2]
    draws = rng.choice([-1.0, 0.0, 1.0], size=(300, n), p=chances)
    assert np.mean([above(d, -0.02, 0.1) for d in draws]) > 0.8


def test_identical_policies_certify_with_few_labels() -> None:
    """If no pair differs, 160 groups show that at most 0.02 is lost; 100 do not."""
    assert above(np.zeros(160), -0.02, 0.1)
    assert not above(np.zeros(100), -0.02, 0.1)


def test_the_least_mean_of_all_is_never_rejected() -> None:
    """Values at their lowest possible mean cannot be below it."""
    assert not above(np.ones(50), -1.0, 0.1)
