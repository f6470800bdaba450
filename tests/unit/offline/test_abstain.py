"""Thresholds of abstention: the path on train, and the tests on validation."""

import itertools
from dataclasses import replace

import numpy as np

from app.core.artifact import Certificate
from app.offline.refit.abstain import (
    WITHHELD,
    GivenAnswers,
    abstention_path,
    answers,
    certify_abstention,
)
from app.offline.refit.splits import Units, units
from tests.offline.world import World

PROMISE = Certificate(0.2, 0.1, "error among answered", 0, 1.0, spent=0.1)


def test_a_path_of_abstention_ends_at_zero() -> None:
    """Thresholds fall to zero, starting where train is clearest; without confidences there is only zero."""
    rng = np.random.default_rng(0)
    confidence = rng.random(1000)
    right = (rng.random(1000) < confidence).astype(float)
    grouping = units(World().draw(1000, seed=0)[0])
    path = abstention_path(GivenAnswers(right, confidence), grouping, target=0.2)
    assert path[-1] == 0.0
    assert all(a > b for a, b in itertools.pairwise(path))
    assert 0.5 < path[0] < 0.95
    assert abstention_path(GivenAnswers(right, np.full(1000, np.nan)), grouping, target=0.2) == [0.0]


def test_questions_out_of_scope_never_set_a_threshold() -> None:
    """They are below every threshold, so no threshold lies between them and the others."""
    confidence = np.where(np.arange(200) % 10 == 0, WITHHELD, 0.9)
    grouping = units(World().draw(200, seed=0)[0])
    path = abstention_path(GivenAnswers(np.ones(200), confidence), grouping, target=0.2)
    assert path == [0.0]
    found = certify_abstention(GivenAnswers(np.zeros(200), confidence), grouping, path, target=0.2, promise=PROMISE)
    assert found.certificate is None
    assert found.tau == 0.0
    assert "90%" in (found.uncertified_reason or "")


def test_abstention_walks_to_the_most_it_may_answer() -> None:
    """Where confidence is accuracy, the walk stops a little before the error among answered reaches the target."""
    rng = np.random.default_rng(0)
    confidence = rng.random(4000)
    right = (rng.random(4000) < confidence).astype(float)
    grouping = units(World().draw(4000, seed=0)[0])
    path = [0.8, 0.7, 0.65, 0.62, 0.6, 0.5, 0.0]
    given = GivenAnswers(right, confidence)
    fit = certify_abstention(given, grouping, path, target=0.2, promise=PROMISE)
    assert fit.certificate is not None
    assert fit.tau in (0.62, 0.65)
    assert fit.certificate.bound <= 0.2
    stricter = certify_abstention(given, grouping, path, target=0.2, promise=replace(PROMISE, spent=1e-6))
    assert stricter.tau >= fit.tau


def test_abstention_that_cannot_be_certified_says_why() -> None:
    """For answers that are mostly wrong no number of labels is enough; for nearly good ones there is an estimate."""
    grouping = units(World().draw(100, seed=0)[0])
    wrong = GivenAnswers(np.zeros(100), np.full(100, 0.5))
    fit = certify_abstention(wrong, grouping, [0.4, 0.0], target=0.2, promise=PROMISE)
    assert fit.certificate is None
    assert fit.labels_needed is None
    assert "larger --risk-target" in (fit.uncertified_reason or "")
    nearly = GivenAnswers((np.arange(100) % 6 > 0).astype(float), np.full(100, 0.5))
    fit = certify_abstention(nearly, grouping, [0.4, 0.0], target=0.2, promise=PROMISE)
    assert fit.certificate is None
    assert fit.labels_needed is not None
    assert fit.labels_needed.value is not None
    assert 150 < fit.labels_needed.low < fit.labels_needed.value
    assert fit.labels_needed.text in (fit.uncertified_reason or "")
    assert fit.tau == 0.0


def singles(n: int) -> Units:
    return Units(np.arange(n), np.ones(n))


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
        assert policy.below(0.5, unit, 0.2, 0.1)
        assert not policy.below(0.5, unit, 0.08, 0.1)
        assert 0.1 < policy.upper(0.5, unit, 0.1) < 0.16
