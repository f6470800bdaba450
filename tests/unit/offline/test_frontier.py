"""Frontiers against brute force, and the identities that they must obey."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.core.artifact import FIXED
from app.offline.evaluate import frontier as module
from app.offline.evaluate.deploy import match
from app.offline.evaluate.frontier import (
    AXES,
    Curve,
    areas,
    binary,
    drawn_areas,
    envelope,
    graded,
    ladder,
    random_and_oracle,
)
from app.offline.refit.metrics import Draws
from app.offline.refit.splits import Ledger, Train, Units, units
from tests.offline.world import World

Floats = NDArray[np.float64]
Table = tuple[Floats, dict[int, Floats], Floats]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """A few questions with many ties, some without a signal, in groups of unequal size."""
    n = draw(st.integers(2, 9))
    p = draw(st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.9, np.nan]), min_size=n, max_size=n))
    right = {k: np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=np.float64) for k in (0, 1, 5)}
    weights = np.array(draw(st.lists(st.sampled_from([1.0, 0.5, 1 / 3]), min_size=n, max_size=n)))
    return np.array(p), right, weights / weights.sum()


def brute_force(p: Floats, right: dict[int, Floats], weights: Floats, axis: str, *, pairs: bool) -> float:
    """Every policy by hand: the best accuracy at each cost, then the trapezoid."""
    score = np.where(np.isnan(p), -1.0, p)
    taus = [*sorted(set(score.tolist())), 2.0]
    price = {"full": (0.0, 0.0, 1.0), "call": (0.0, 1.0, 1.0), "passage": (0.0, 0.2, 1.0)}[axis]
    best: dict[float, float] = {}
    for tau0 in taus:
        for tau1 in taus if pairs else [tau0]:
            if tau1 <= tau0:
                chosen = np.where(score >= tau0, 0, np.where(score >= tau1, 1, 2))
                cost = round(float(weights @ np.array(price)[chosen]), 9)
                got = float(weights @ np.choose(chosen, [right[0], right[1], right[5]]))
                best[cost] = max(best.get(cost, 0.0), got)
    x = sorted(best)
    return float(np.trapezoid(np.maximum.accumulate([best[cost] for cost in x]), x))


@given(tables())
def test_areas_equal_brute_force(table: Table) -> None:
    """On tiny tables every area is what trying all thresholds gives."""
    found = areas(*table)
    for axis in AXES:
        assert found[axis] == pytest.approx(brute_force(*table, axis, pairs=True), abs=1e-6)
    assert found["binary_enveloped"] == pytest.approx(brute_force(*table, "call", pairs=False), abs=1e-6)


@given(tables())
def test_a_signal_and_its_opposite_add_up(table: Table) -> None:
    """Areas of p and of minus p add up to the accuracies of the two ends, ties included."""
    p, right, weights = table
    p = np.nan_to_num(p, nan=0.0)
    both = binary(ladder(p, right, weights)).area + binary(ladder(-p, right, weights)).area
    assert both == pytest.approx(weights @ (right[0] + right[5]))


@given(tables(), st.floats(0.1, 5.0), st.floats(-3.0, 3.0))
def test_only_the_order_counts(table: Table, slope: float, shift: float) -> None:
    """A rising transform of the signal changes no area."""
    p, right, weights = table
    assert areas(np.exp(slope * p + shift), right, weights) == pytest.approx(areas(p, right, weights))


@given(tables())
def test_grading_never_reaches_less(table: Table) -> None:
    """At every budget the best pair of cuts is at least as accurate as the best single cut."""
    rungs = ladder(*table)
    plain = reached(envelope(binary(rungs)))
    for axis in AXES:
        assert (reached(graded(rungs, axis)) >= plain - 1e-6).all()


def reached(curve: Curve) -> np.ndarray:
    """At each of some budgets, the accuracy of the dearest point that costs no more."""
    budgets = np.linspace(0.0, 1.0, 41)
    return curve.accuracy[np.maximum(np.searchsorted(curve.x, budgets + 1e-12, side="right") - 1, 0)]


@given(tables())
def test_an_oracle_is_the_best_order(table: Table) -> None:
    """No signal's binary area is above the oracle's, nor below that of the oracle turned round."""
    p, right, weights = table
    marks, found = random_and_oracle(right, weights), areas(p, right, weights)["binary"]
    assert 2 * marks["random"] - marks["oracle"] - 1e-9 <= found <= marks["oracle"] + 1e-9


def test_many_cuts_stay_within_the_stated_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid of quantile cuts is no farther from the exact area than it says."""
    rng = np.random.default_rng(1)
    p = rng.random(3_000)
    right = {k: (rng.random(3_000) < level * p + 0.3).astype(np.float64) for k, level in ((0, 0.6), (1, 0.3), (5, 0.1))}
    weights = np.full(3_000, 1 / 3_000)
    exact = areas(p, right, weights)
    monkeypatch.setattr(module, "MAX_CUTS", 100)
    coarse = areas(p, right, weights)
    assert exact["error_bound"] == 0.0
    assert 0.0 < coarse["error_bound"] < 0.05
    assert abs(coarse["passage"] - exact["passage"]) <= coarse["error_bound"]
    assert coarse["binary"] == exact["binary"]


def test_weights_without_a_common_unit_are_rounded_within_the_bound() -> None:
    """Where no small unit measures all weights, the area is off by no more than it says."""
    rng = np.random.default_rng(2)
    p, weights = rng.random(60), rng.random(60)
    weights /= weights.sum()
    right = {k: (rng.random(60) < 0.5).astype(np.float64) for k in (0, 1, 5)}
    found = areas(p, right, weights)
    assert 0.0 < found["error_bound"] < 1e-5
    assert abs(found["passage"] - brute_force(p, right, weights, "passage", pairs=True)) <= found["error_bound"] + 1e-6


def test_draws_start_with_the_table_itself() -> None:
    """With as few values as cells, the undrawn areas are the exact ones on the axes that need no budget grid."""
    rng = np.random.default_rng(3)
    p = rng.integers(0, 20, 400) / 20
    right = {k: (rng.random(400) < 0.2 + 0.6 * p).astype(np.float64) for k in (0, 1, 5)}
    codes = np.arange(400) // 2
    draws = Draws(Units(codes, np.bincount(codes).astype(np.float64)), 20)
    exact, drawn = areas(p, right, draws.weights), drawn_areas(p, right, draws)
    for name in ("binary", "binary_enveloped", "full", "call"):
        assert drawn[name][0] == pytest.approx(exact[name])
    assert drawn["passage"][0] == pytest.approx(exact["passage"], abs=0.01)
    assert drawn["passage"].shape == (21,)


def test_the_published_rule_takes_the_cheapest_that_matches() -> None:
    """Matching keeps the accuracy asked for, costs less than always five, and falls back to it where nothing does."""
    outcomes, _ = World().draw(300, seed=4)
    costs = {k: np.full(300, price) for k, price in ((0, 0.0), (1, 0.2), (5, 1.0))}
    ledger = Ledger(Train(outcomes), outcomes.signals[0]["seq_logprob"] / 10 + 0.5, units(outcomes), costs)
    floor = ledger.mean(ledger.fixed(5))
    thresholds = match(ledger, graded=True, floor=floor)
    assert ledger.mean(ledger.right(ledger.route(thresholds))) >= floor - 1e-12
    assert ledger.mean(ledger.spent(thresholds)) < 1.0
    assert match(ledger, graded=True, floor=1.1) == FIXED[2]
