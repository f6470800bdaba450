"""The exact test of a paired difference, against brute force, published power and simulations at the boundary."""

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binom, multinomial

from app.certify.exact import above, score

MEANS = (-0.3, -0.1, -0.02, 0.0, 0.05, 0.2)


def outcomes(n: int) -> list[tuple[int, int]]:
    return [(gains, losses) for gains in range(n + 1) for losses in range(n + 1 - gains)]


def likeliest_loss(gains: int, losses: int, n: int, mean: float) -> float:
    """The restricted estimate by numerical optimisation."""

    def loss(q: float) -> float:
        return -float(multinomial.logpmf([gains, losses, n - gains - losses], n, [q + mean, q, 1.0 - 2.0 * q - mean]))

    found = minimize_scalar(loss, bounds=(max(0.0, -mean) + 1e-9, (1.0 - mean) / 2.0 - 1e-9), method="bounded")
    return float(found.x)


def brute_force(gains: int, losses: int, n: int, mean: float) -> float:
    """The p-value by summing over all outcomes, the supremum over a grid of the whole hypothesis."""
    every = np.array(outcomes(n))
    observed = score(np.array([gains]), np.array([losses]), n, mean)[0]
    extreme = every[score(every[:, 0], every[:, 1], n, mean) >= observed - 1e-9]
    q, p = np.meshgrid(np.linspace(0.0, 1.0, 161), np.linspace(0.0, 1.0, 161))
    inside = (p + q <= 1.0) & (p - q <= mean + 1e-12)
    # The grid of losses may miss the edge of the hypothesis, where the supremum is.
    edge = np.linspace(max(0.0, -mean), (1.0 - mean) / 2.0, 400)
    p, q = np.r_[p[inside], edge + mean], np.r_[q[inside], edge]
    total = sum(
        comb(n, a) * comb(n - a, b) * p**a * q**b * np.clip(1.0 - p - q, 0.0, 1.0) ** (n - a - b) for a, b in extreme
    )
    return float(np.max(total))


@pytest.mark.parametrize("n", [5, 12])
@pytest.mark.parametrize("mean", [-0.3, -0.02, 0.0, 0.2])
def test_the_decision_is_that_of_brute_force(n: int, mean: float) -> None:
    """Every fourth outcome is rejected just above its p-value, and not just below it."""
    for gains, losses in outcomes(n)[::4]:
        p = brute_force(gains, losses, n, mean)
        if gains - losses > n * mean and p < 0.9:
            assert above(gains, losses, n, mean, delta=1.01 * p + 1e-4), (gains, losses, p)
            assert not above(gains, losses, n, mean, delta=0.99 * p - 1e-4), (gains, losses, p)


@pytest.mark.parametrize("mean", MEANS)
def test_the_score_is_monotone_and_its_estimate_is_the_likeliest(mean: float) -> None:
    """More gains or fewer losses raise it; the variance is that of the likeliest chances under the hypothesis."""
    n = 40
    for gains, losses in outcomes(n):
        here = score(np.array([gains]), np.array([losses]), n, mean)[0]
        if gains + losses < n:
            assert score(np.array([gains + 1]), np.array([losses]), n, mean)[0] > here
            assert score(np.array([gains]), np.array([losses + 1]), n, mean)[0] < here
    for gains, losses in ((3, 2), (10, 1), (8, 20)):
        loss = likeliest_loss(gains, losses, n, mean)
        expected = (gains - losses - n * mean) / np.sqrt(n * (2.0 * loss + mean - mean**2))
        assert score(np.array([gains]), np.array([losses]), n, mean)[0] == pytest.approx(expected, rel=1e-4)


def test_ties_alone_are_a_binomial_test() -> None:
    """Without any difference the likeliest hypothesis has no gains, and losses at epsilon: 114 ties show -.02."""
    for n, shown in ((113, False), (114, True)):
        assert (binom.cdf(0, n, 0.02) <= 0.1) == shown
        assert above(0, 0, n, -0.02, delta=0.1) == shown


def test_nothing_is_shown_by_nothing() -> None:
    """No pairs, or a mean that is not above the tested one, show nothing."""
    assert not above(0, 0, 0, -0.5, delta=0.1)
    assert not above(10, 12, 100, -0.02, delta=0.9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 80), st.floats(-0.2, 0.2))
def test_more_gains_and_fewer_losses_never_undo_a_result(gains: int, losses: int, ties: int, mean: float) -> None:
    """The same for a larger delta."""
    n = gains + losses + ties
    if n and above(gains, losses, n, mean, delta=0.1):
        assert above(gains, losses, n, mean, delta=0.2)
        assert not ties or above(gains + 1, losses, n, mean, delta=0.1)
        assert not losses or above(gains, losses - 1, n, mean, delta=0.1)


@pytest.mark.parametrize("differing", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("n", [40, 200])
def test_at_the_boundary_it_fails_at_most_delta_of_the_time(n: int, differing: float) -> None:
    """The exact probability of a false result, over all outcomes that are not next to impossible."""
    gain, loss = (differing - 0.02) / 2.0, (differing + 0.02) / 2.0
    wrong = 0.0
    for d in range(int(binom.ppf(1e-5, n, differing)), int(binom.ppf(1.0 - 1e-5, n, differing)) + 1):
        # The fewest gains that are enough, by bisection: more gains never undo a result.
        low, high = 0, d + 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if above(middle, d - middle, n, -0.02, delta=0.1) else (middle + 1, high)
        wrong += binom.pmf(d, n, differing) * binom.sf(low - 1, d, gain / (gain + loss))
    assert wrong <= 0.1


@pytest.mark.parametrize(("n", "mean", "differing"), [(155, 0.02, 0.05), (581, 0.02, 0.2), (1148, 0.0, 0.1)])
def test_its_power_is_the_one_that_was_planned_with(n: int, mean: float, differing: float) -> None:
    """About .8 at the sizes of the method, where bets of a fixed plan need 245, 893 and 1,769 groups."""
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(n, [(differing + mean) / 2, (differing - mean) / 2, 1 - differing], size=100)
    assert 0.7 < np.mean([above(int(a), int(b), n, -0.02, delta=0.1) for a, b, _ in drawn]) < 0.9
