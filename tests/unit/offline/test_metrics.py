"""Metrics against scikit-learn and by hand; the bootstrap against what is known of means."""

import json
import math

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from app.offline.refit.metrics import (
    Draws,
    auroc,
    cells_of,
    compare_confidences,
    ece,
    quality,
    reliability,
    risk_of,
    to_json,
)
from app.offline.refit.splits import Units

EVEN = np.full(4, 0.25)
RIGHT = np.array([1.0, 1.0, 0.0, 1.0])


def grouped(rows: int, size: int = 1) -> Units:
    codes = np.arange(rows) // size
    return Units(codes, np.bincount(codes).astype(np.float64))


def test_metrics_agree_with_scikit_learn() -> None:
    """AUROC with ties, Brier score and NLL are scikit-learn's."""
    rng = np.random.default_rng(0)
    p = rng.integers(1, 20, 500) / 20
    labels = rng.random(500) < p
    found = quality(p, labels, Draws(grouped(500), 50))
    assert found["auroc"].value == pytest.approx(roc_auc_score(labels, p))
    assert found["brier"].value == pytest.approx(brier_score_loss(labels, p))
    assert found["nll"].value == pytest.approx(log_loss(labels, p))
    assert found["ece"].value == pytest.approx(ece(p, labels, np.full(500, 1 / 500)))


def test_auroc_uses_weights() -> None:
    """A row of weight two counts as two rows."""
    score, labels = np.array([0.1, 0.4, 0.3, 0.9]), np.array([False, True, False, True])
    weights = np.array([1.0, 2.0, 1.0, 1.0])
    twice = np.array([0, 1, 1, 2, 3])
    assert auroc(score, labels, weights) == pytest.approx(roc_auc_score(labels[twice], score[twice]))
    assert math.isnan(auroc(score, np.ones(4, dtype=bool), weights))


def test_certain_probabilities_count() -> None:
    """The top bin is closed: p = 1 and wrong is an error of one."""
    assert ece(np.array([1.0, 1.0]), np.array([False, False]), np.array([0.5, 0.5])) == 1.0


def test_rows_without_a_probability_do_not_count() -> None:
    """A NaN is left out of every metric."""
    p, labels = np.array([0.2, np.nan, 0.7, 0.6]), np.array([False, True, True, False])
    found = quality(p, labels, Draws(grouped(4), 30))
    assert found["brier"].value == pytest.approx((0.04 + 0.09 + 0.36) / 3)
    assert found["auroc"].value == 1.0
    assert quality(np.full(4, np.nan), labels, Draws(grouped(4), 30))["ece"].value is None


def test_bootstrap_spread_is_the_standard_error_of_groups() -> None:
    """The interval of a mean is as wide as the normal one over groups, not over rows."""
    rng = np.random.default_rng(1)
    values = np.repeat(rng.random(200), 3)
    found = Draws(grouped(600, 3), 2_000).interval(values)
    half = 1.96 * values.std() / math.sqrt(200)
    assert found.value == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)


def test_many_groups_are_drawn_in_bundles() -> None:
    """Beyond ten thousand groups the interval still has its width."""
    values = np.random.default_rng(2).random(25_000)
    found = Draws(grouped(25_000), 200).interval(values)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * values.std() / math.sqrt(25_000), rel=0.25)


def test_a_conditional_mean_counts_only_its_rows() -> None:
    """Rows outside of a condition change neither the value nor, where there are none inside, make one up."""
    values, among = np.array([1.0, 0.0, np.nan, 1.0]), np.array([1.0, 1.0, 0.0, 0.0])
    draws = Draws(grouped(4), 50)
    assert draws.interval(values, among).value == 0.5
    assert draws.interval(values, np.zeros(4)).value is None


def test_reliability_counts_every_row_once() -> None:
    """Bins hold all rows with a probability, and name their bounds."""
    p = np.array([0.05, 0.05, 0.95, 1.0, np.nan])
    bins = reliability(p, np.array([False, True, True, True, True]))
    assert [(b["low"], b["n"], b["accuracy"].value) for b in bins] == [(0.0, 2, 0.5), (0.9, 2, 1.0)]


def test_cells_never_split_ties() -> None:
    """Equal scores share a cell, and cells rise with the score."""
    score = np.repeat(np.arange(100.0), 5)
    cell, count = cells_of(score, 10)
    assert count == 10
    assert all(len(set(cell[score == value])) == 1 for value in score)
    assert (np.diff(cell) >= 0).all()


def test_plain_is_json() -> None:
    """Numpy numbers become numbers and what is no number becomes null."""
    value = {"a": np.float64("nan"), 1: [np.int64(3), float("inf")], "b": (True, np.bool_(False), "x", None)}
    assert json.dumps(to_json(value), allow_nan=False) == '{"a": null, "1": [3, null], "b": [true, false, "x", null]}'


def test_risk_is_the_error_of_each_prefix() -> None:
    """Sorted by confidence, the errors are averaged from one answer to all."""
    found = risk_of(RIGHT, np.array([0.9, 0.8, 0.7, 0.1]), EVEN)
    assert found.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert found.risk == pytest.approx([0.0, 0.0, 1 / 3, 0.25])
    assert found.aurc == pytest.approx(0.25 * (1 / 6 + (1 / 3 + 1 / 4) / 2))
    assert found.accuracy_at(0.5) == 1.0


def test_ties_share_their_risk() -> None:
    """The order of rows with equal confidence does not matter."""
    flat = np.zeros(4)
    order = np.array([2, 0, 3, 1])
    assert risk_of(RIGHT, flat, EVEN).risk == pytest.approx(risk_of(RIGHT[order], flat, EVEN).risk)
    assert risk_of(RIGHT, flat, EVEN).risk == pytest.approx([0.25] * 4)


def test_a_missing_confidence_is_never_withheld() -> None:
    """An answer without a confidence counts as the most confident."""
    found = risk_of(np.array([1.0, 0.0]), np.array([0.99, np.nan]), np.array([0.5, 0.5]))
    assert found.risk.tolist() == [1.0, 0.5]


def test_better_confidence_has_the_smaller_area() -> None:
    """An informative confidence is between the oracle and random, and better than the naive one."""
    rng = np.random.default_rng(0)
    p = rng.random(800)
    right = (rng.random(800) < p).astype(np.float64)
    codes = np.arange(800)
    draws = Draws(Units(codes, np.ones(800)), 100)
    found, curves = compare_confidences(right, {"proper": p, "naive": p + rng.normal(size=800)}, draws)
    order = [found[name]["aurc"] for name in ("oracle", "proper", "naive")]
    assert order[0].value < order[1].low < order[1].value < order[2].value < found["random"]["aurc"] + 0.02
    assert found["naive_minus_proper_aurc"].low > 0.0
    assert found["proper"]["accuracy_at_80"].value > found["full_coverage"].value
    assert found["random"]["accuracy_at_80"] == pytest.approx(found["full_coverage"].value)
    assert set(curves) == {"proper", "naive", "oracle"}
    assert curves["proper"][-1] == pytest.approx([1.0, 1.0 - right.mean()])


def test_the_ece_of_perfect_probabilities_is_within_its_null() -> None:
    """And that of overconfident ones is above it; groups that stand or fall together have a larger one."""
    rng = np.random.default_rng(0)
    p = rng.random(400)
    singles, fours = np.arange(400), np.arange(400) // 4
    draws = Draws(Units(singles, np.ones(400)), 100)
    perfect = quality(p, rng.random(400) < p, draws)
    null = perfect["ece_null"]
    assert null.low is not None
    assert null.high is not None
    assert 0.0 < null.low < (null.value or 0.0) < null.high < 0.15
    assert (perfect["ece"].value or 0.0) < 1.3 * null.high
    assert (quality(p, rng.random(400) < 0.5 * p, draws)["ece"].value or 0.0) > null.high
    grouped = quality(p, rng.random(400) < p, Draws(Units(fours, np.full(100, 4.0)), 100))["ece_null"]
    assert (grouped.value or 0.0) > (null.value or 0.0)
