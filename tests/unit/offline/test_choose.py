import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.artifact import FIXED
from app.core.cost import Objective, Tariff
from app.core.effective_policy import Graded
from app.errors import DataError
from app.offline.refit.choose import (
    Guarantee,
    best_fixed,
    build_path,
    frontier,
    grid,
    plausible_steps,
)
from app.offline.refit.splits import Ledger, Train, gate_costs, passage_costs, read_costs, units
from app.offline.table import Outcomes
from tests.offline.world import World

GUARANTEE = Guarantee((0, 1, 5), 0.02, 0.1)


def ledger(table: Outcomes, p: np.ndarray) -> Ledger[Train]:
    return Ledger(Train(table), p, units(table), passage_costs(table))


@given(st.integers(0, 10_000), st.booleans(), st.booleans())
def test_the_grid_is_what_routing_each_question_gives(seed: int, probe_costs: bool, graded: bool) -> None:
    """Cumulative sums agree with deciding every question by itself, with ties, gaps and phrasings."""
    rng = np.random.default_rng(seed)
    table, _ = World(phrasings=2).draw(15, seed)
    p = rng.random(30).round(1)
    p[rng.random(30) < 0.1] = np.nan
    book = ledger(table, p)
    if probe_costs:
        book = replace(book, costs={k: cost + 0.1 for k, cost in book.costs.items()})
    pairs = grid(book, graded=graded)
    distinct, found = len(set(p[np.isfinite(p)].tolist())) + 1, len(pairs.first)
    assert len(pairs.taus) == distinct
    assert found == (distinct * (distinct + 1) // 2 if graded else distinct)
    for i in {*rng.integers(0, found, 10).tolist(), 0, distinct - 1, found - 1}:
        thresholds = pairs.thresholds(i)
        chosen = book.route(thresholds)
        graded = Graded(thresholds, 1, 5)
        missing = (0, 1, 5)[thresholds.constant or 2]
        served = [missing if np.isnan(value) else graded.choose(float(value))[0] for value in p]
        assert chosen.tolist() == served
        assert pairs.accuracy[i] == pytest.approx(book.mean(book.right(chosen)))
        assert pairs.cost[i] == pytest.approx(book.mean(book.spent(thresholds)))


def test_the_frontier_is_exact_on_a_small_table() -> None:
    """At each cost the frontier holds the best accuracy of any pair that costs as little."""
    table, _ = World().draw(40, seed=3)
    book = ledger(table, np.random.default_rng(0).random(40))
    pairs = grid(book, graded=True)
    for step in frontier(book, graded=True, most=1.0, steps=200):
        assert step.accuracy == pytest.approx(pairs.accuracy[pairs.cost <= step.cost + 1e-9].max())


def test_a_path_starts_at_the_best_fixed_action_and_gets_cheaper() -> None:
    """First the fixed action, then ever cheaper steps, never one that costs more."""
    table, _ = World().draw(2000, seed=1)
    s = table.signals[0]["seq_logprob"]
    book = ledger(table, 1 / (1 + np.exp(-s)))
    for graded in (True, False):
        path = build_path(book, GUARANTEE, graded=graded)
        assert path[0].thresholds == FIXED[2]
        costs = [step.cost for step in path]
        assert all(a > b for a, b in itertools.pairwise(costs))
        assert len(path) <= 41
        if not graded:
            assert all(step.thresholds.tau0 == step.thresholds.tau1 for step in path)


def test_a_path_starts_at_a_mixture_if_the_fixed_k_would_fail() -> None:
    """If two fixed k are equally good and seldom agree, the first test at a fixed k would fail."""
    rng = np.random.default_rng(0)
    table, _ = World().draw(600, seed=1)
    p = rng.permutation(600) / 600
    correct = {0: p >= 0.5, 1: rng.random(600) < 0.4, 5: p < 0.5}
    path = build_path(ledger(replace(table, correct=correct), p), GUARANTEE, graded=True)
    assert path[0].thresholds not in FIXED
    assert path[0].accuracy > 0.95


def test_where_nothing_beats_the_cheapest_action_the_path_is_that_action() -> None:
    """If closed-book is best there is nowhere cheaper to go."""
    table, _ = World().draw(300, seed=1)
    correct = {0: np.ones(300, dtype=bool), 1: np.zeros(300, dtype=bool), 5: np.zeros(300, dtype=bool)}
    book = ledger(replace(table, correct=correct), np.random.default_rng(0).random(300))
    assert best_fixed(book, (0, 1, 5)) == 0
    assert [step.thresholds for step in build_path(book, GUARANTEE, graded=True)] == [FIXED[0]]


def test_of_equal_actions_the_one_that_reads_least_is_best() -> None:
    """A tie goes to fewer passages."""
    table, _ = World().draw(50, seed=1)
    same = {k: np.ones(50, dtype=bool) for k in (0, 1, 5)}
    book = ledger(replace(table, correct=same), np.zeros(50))
    assert best_fixed(book, (0, 1, 5)) == 0
    assert best_fixed(book, (1, 5)) == 1


def test_plausible_steps_end_before_the_first_that_fails_on_train() -> None:
    """The steps before the first that is too inaccurate on train."""
    table, _ = World().draw(1500, seed=1)
    book = ledger(table, 1 / (1 + np.exp(-table.signals[0]["seq_logprob"])))
    path = build_path(book, GUARANTEE, graded=True)
    plausible = plausible_steps(book, path, GUARANTEE)
    best = max(book.mean(book.fixed(k)) for k in (0, 1, 5))
    assert 0 < plausible < len(path)
    assert all(step.accuracy >= best - 0.02 - 1e-9 for step in path[:plausible])
    assert path[plausible].accuracy < best - 0.02


def test_costs_by_objective() -> None:
    """The gate pays its probe where that counts, fixed actions pay no probe, and missing columns are named."""
    table, _ = World().draw(4, seed=1)
    with pytest.raises(DataError, match=r"latency needs k0\.ms"):
        gate_costs(table, Objective.LATENCY, Tariff())
    with pytest.raises(DataError, match="needs prices"):
        gate_costs(table, Objective.MONEY, Tariff())
    ms = {k: np.array([10.0, 20.0, np.nan, 30.0]) + k for k in (0, 1, 5)}
    tokens = {k: np.full(4, 10.0 * (k + 1)) for k in (0, 1, 5)}
    full = replace(table, ms=ms, prompt_tokens=tokens, completion_tokens={k: np.full(4, 2.0) for k in (0, 1, 5)})
    assert gate_costs(full, Objective.LATENCY, Tariff())[5].tolist() == [25.0, 45.0, 45.0, 65.0]
    assert read_costs(full, Objective.LATENCY, Tariff())[5].tolist() == [15.0, 25.0, 25.0, 35.0]
    assert gate_costs(full, Objective.TOKENS, Tariff())[1].tolist() == [34.0] * 4
    tariff = Tariff(prompt_token=1.0, completion_token=10.0, call=100.0, passage=1000.0)
    money = gate_costs(full, Objective.MONEY, tariff)
    assert money[0].tolist() == [30.0] * 4
    assert money[5].tolist() == [30.0 + 60.0 + 20.0 + 100.0 + 5000.0] * 4
    assert read_costs(table, Objective.CALLS, Tariff())[1].tolist() == [1.0] * 4
    assert {k: cost[0] for k, cost in passage_costs(table).items()} == {0: 0.0, 1: 0.2, 5: 1.0}
