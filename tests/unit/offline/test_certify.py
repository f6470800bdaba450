from dataclasses import replace

import numpy as np
import pytest

from app.core.artifact import FIXED, Thresholds
from app.core.cost import Objective
from app.offline.refit.certify import Failure, certify_policy, labels_needed, lower_bound, walk
from app.offline.refit.choose import Guarantee, PathStep
from app.offline.refit.splits import Ledger, Validation, passage_costs, units
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
