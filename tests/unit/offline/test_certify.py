from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta, binom

from app.core.artifact import FIXED, Thresholds
from app.core.cost import Objective
from app.offline.refit.certify import (
    Failure,
    GivenAnswers,
    answers,
    binomial_p,
    binomial_upper,
    certify_abstention,
    certify_policy,
    labels_needed,
    lower_bound,
    walk,
)
from app.offline.refit.choose import Guarantee, PathStep
from app.offline.refit.splits import Ledger, Units, Validation, passage_costs, units
from tests.offline.world import World

N = 1000
CALLS = Objective.CALLS
# Of a thousand questions those with p >= 0.5 are right closed-book, and all are right with five passages.
P = np.arange(N) / N
EVERY = Guarantee((0, 1, 5), 0.02, 0.1)


def ledger(k0: np.ndarray, k1: np.ndarray, k5: np.ndarray) -> Ledger[Validation]:
    table = replace(World().draw(N, seed=0)[0], correct={0: k0, 1: k1, 5: k5})
    return Ledger(Validation(table), P, units(table, salt="order"), passage_costs(table))


def steps(*taus: float) -> list[PathStep]:
    return [PathStep(Thresholds(tau, tau), 0.0, 0.0) for tau in taus]


ALL, NONE = np.ones(N, dtype=bool), np.zeros(N, dtype=bool)


def test_the_walk_ends_before_the_first_step_that_loses() -> None:
    """Skipping known answers loses nothing; skipping a tenth of unknown ones does, and no later step is tested."""
    book = ledger(P >= 0.5, NONE, ALL)
    walked = walk(book, steps(2.0, 0.9, 0.5, 0.4, 0.5), EVERY)
    assert walked.certified == 2
    assert walked.failure is not None
    assert (walked.failure.step, walked.failure.against) == (3, 5)
    assert walked.failure.mean == pytest.approx(-0.1)
    assert walked.empirical == 2
    assert -0.02 <= lower_bound(book, Thresholds(0.5, 0.5), EVERY) <= 0.0


def test_every_reference_must_be_met() -> None:
    """A policy that matches always-k5 is refused where always-k1 is far better, and certified without it."""
    book = ledger(NONE, ALL, P >= 0.5)
    fit = certify_policy(book, steps(2.0), EVERY, CALLS)
    assert fit.certificate is None
    assert fit.uncertified_reason is not None
    assert "always-k1" in fit.uncertified_reason
    assert "no number of labels" in fit.uncertified_reason
    assert fit.labels_needed is None
    fit = certify_policy(book, steps(2.0), Guarantee((5,), 0.02, 0.1), CALLS)
    assert fit.certificate is not None
    assert fit.certificate.bound == 0.0
    assert fit.certificate.reference == "always-k5"


def test_too_few_labels_are_counted() -> None:
    """A difference of zero with a large variance gives an estimate of the labels needed, also in the reason."""
    rng = np.random.default_rng(0)
    book = ledger(rng.random(N) < 0.5, NONE, rng.random(N) < 0.5)
    fit = certify_policy(book, steps(0.0), Guarantee((5,), 0.03, 0.1), CALLS)
    walked = walk(book, steps(0.0), Guarantee((5,), 0.03, 0.1))
    assert fit.thresholds == FIXED[0]
    if walked.certified is None and walked.failure is not None and walked.failure.mean > -0.03:
        assert fit.labels_needed is not None
        assert str(fit.labels_needed) in (fit.uncertified_reason or "")


def test_a_certified_fixed_k_has_an_estimate_of_labels() -> None:
    """If only the fixed k is certified, the fit has both its certificate and an estimate of the labels needed."""
    rng = np.random.default_rng(1)
    noisy = np.where(rng.random(N) < 0.3, rng.random(N) < 0.5, ALL)
    book = ledger(noisy, NONE, np.where(rng.random(N) < 0.3, rng.random(N) < 0.5, ALL))
    fit = certify_policy(book, steps(2.0, 0.0), Guarantee((5,), 0.02, 0.001), CALLS)
    walked = walk(book, steps(2.0, 0.0), Guarantee((5,), 0.02, 0.001))
    assert walked.certified == 0
    assert fit.certificate is not None
    assert walked.failure is not None
    assert (fit.labels_needed is None) == (walked.failure.mean <= -0.02)


def test_labels_needed_follow_the_gap() -> None:
    """Half the gap needs about four times the labels; no gap, no number."""

    def needed(mean: float, deviation: float, epsilon: float) -> int | None:
        return labels_needed(Failure(0, 5, mean, deviation), replace(EVERY, epsilon=epsilon))

    near, far = needed(0.0, 0.3, 0.01), needed(0.0, 0.3, 0.02)
    assert near is not None
    assert far is not None
    assert near == pytest.approx(4 * far, rel=0.01)
    assert 700 < (needed(0.0, 0.15, 0.02) or 0) < 1700
    assert needed(-0.03, 0.3, 0.02) is None
    assert needed(-0.02 + 1e-9, 0.3, 0.02) is None


def test_references_have_names() -> None:
    """One reference is named by its action, several are every fixed action."""
    assert Guarantee((5,), 0.02, 0.1).reference == "always-k5"
    assert EVERY.reference == "every fixed action"


def test_abstention_walks_to_the_most_it_may_answer() -> None:
    """Where confidence is accuracy, the walk stops a little before the error among answered reaches the target."""
    rng = np.random.default_rng(0)
    confidence = rng.random(4000)
    right = (rng.random(4000) < confidence).astype(float)
    grouping = units(World().draw(4000, seed=0)[0])
    path = [0.8, 0.7, 0.65, 0.62, 0.6, 0.5, 0.0]
    given = GivenAnswers(right, confidence)
    fit = certify_abstention(given, [given], grouping, path, target=0.2, delta=0.1)
    assert fit.certificate is not None
    assert fit.tau in (0.62, 0.65)
    assert fit.certificate.bound <= 0.2
    stricter = certify_abstention(given, [given], grouping, path, target=0.2, delta=1e-6)
    assert stricter.tau >= fit.tau


def test_abstention_must_hold_for_every_policy_that_may_be_served() -> None:
    """A possible policy with more errors raises the threshold; one that train did not predict is not certified."""
    rng = np.random.default_rng(0)
    confidence = rng.random(4000)
    grouping = units(World().draw(4000, seed=0)[0])
    given = GivenAnswers((rng.random(4000) < confidence).astype(float), confidence)
    worse = GivenAnswers((rng.random(4000) < confidence - 0.05).astype(float), confidence)
    path = [0.8, 0.7, 0.65, 0.62, 0.6, 0.5, 0.0]
    alone = certify_abstention(given, [given], grouping, path, target=0.2, delta=0.1)
    both = certify_abstention(given, [given, worse], grouping, path, target=0.2, delta=0.1)
    assert both.certificate is not None
    assert both.tau > alone.tau
    unpredicted = certify_abstention(given, [worse], grouping, path, target=0.2, delta=0.1)
    assert unpredicted.certificate is None
    assert "predicted" in (unpredicted.uncertified_reason or "")


def test_abstention_that_cannot_be_certified_says_why() -> None:
    """For answers that are mostly wrong no number of labels is enough; for nearly good ones there is an estimate."""
    grouping = units(World().draw(100, seed=0)[0])
    wrong = GivenAnswers(np.zeros(100), np.full(100, 0.5))
    fit = certify_abstention(wrong, [wrong], grouping, [0.4, 0.0], target=0.2, delta=0.1)
    assert fit.certificate is None
    assert fit.labels_needed is None
    assert "no number of labels" in (fit.uncertified_reason or "")
    nearly = GivenAnswers((np.arange(100) % 6 > 0).astype(float), np.full(100, 0.5))
    fit = certify_abstention(nearly, [nearly], grouping, [0.4, 0.0], target=0.2, delta=0.1)
    assert fit.certificate is None
    assert fit.labels_needed is not None
    assert fit.labels_needed > 250
    assert fit.tau == 0.0


def singles(n: int) -> Units:
    return Units(np.arange(n), np.ones(n))


@pytest.mark.parametrize(("wrong", "answered"), [(0, 10), (3, 50), (50, 50), (20, 400)])
def test_binomial_bounds_are_clopper_and_pearsons(wrong: int, answered: int) -> None:
    """Clopper and Pearson's bound is a quantile of the beta distribution, the p-value a binomial tail."""
    expected = 1.0 if wrong == answered else beta.ppf(0.9, wrong + 1, answered - wrong)
    assert binomial_upper(wrong, answered, 0.1) == pytest.approx(expected)
    assert binomial_p(wrong, answered, 0.2) == pytest.approx(binom.cdf(wrong, answered, 0.2))


def test_nothing_answered_shows_nothing() -> None:
    """Without an answer the p-value and the bound are 1."""
    assert binomial_p(0, 0, 0.2) == 1.0
    assert binomial_upper(0, 0, 0.1) == 1.0


def test_a_missing_confidence_answers() -> None:
    """An unknown confidence is not low; a confidence equal to the threshold has reached it."""
    assert answers(np.array([0.2, 0.5, np.nan, 0.9]), 0.5).tolist() == [False, True, True, True]


def test_selective_tests_agree_on_rows_and_on_groups() -> None:
    """Grouped rows are tested by betting on group means, and the bound brackets the error that was drawn."""
    rng = np.random.default_rng(0)
    right = (rng.random(900) > 0.1).astype(float)
    policy = GivenAnswers(right, np.where(rng.random(900) < 0.7, 0.9, 0.1))
    grouped = Units(np.arange(900) // 3, np.full(300, 3.0))
    for unit in (singles(900), grouped):
        assert policy.p_value(0.5, unit, 0.2, 0.1) <= 0.1
        assert policy.p_value(0.5, unit, 0.08, 0.1) > 0.1
        assert 0.1 < policy.upper(0.5, unit, 0.1) < 0.16
