"""Risk against coverage by hand."""

import numpy as np
import pytest

from app.offline.refit.metrics import Draws, compare_confidences, risk_of
from app.offline.refit.splits import Units

EVEN = np.full(4, 0.25)
RIGHT = np.array([1.0, 1.0, 0.0, 1.0])


def test_risk_is_the_error_of_each_prefix() -> None:
    """Sorted by confidence, the errors are averaged from one answer to all."""
    found = risk_of(RIGHT, np.array([0.9, 0.8, 0.7, 0.1]), EVEN)
    assert found.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert found.risk == pytest.approx([0.0, 0.0, 1 / 3, 0.25])
    assert found.aurc == pytest.approx(0.25 * (1 / 6 + (1 / 3 + 1 / 4) / 2))
    assert found.accuracy_at(0.5) == 1.0


def test_ties_share_their_risk() -> None:
    """The order of rows decides nothing among equal confidences."""
    flat = np.zeros(4)
    order = np.array([2, 0, 3, 1])
    assert risk_of(RIGHT, flat, EVEN).risk == pytest.approx(risk_of(RIGHT[order], flat, EVEN).risk)
    assert risk_of(RIGHT, flat, EVEN).risk == pytest.approx([0.25] * 4)


def test_a_missing_confidence_is_never_withheld() -> None:
    """An answer without a confidence counts among the surest."""
    found = risk_of(np.array([1.0, 0.0]), np.array([0.99, np.nan]), np.array([0.5, 0.5]))
    assert found.risk.tolist() == [1.0, 0.5]


def test_better_confidence_has_the_smaller_area() -> None:
    """An informative confidence lies between the oracle and random, and the naive one behind it."""
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
