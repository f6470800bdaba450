"""The ladder on synthetic tables: its states and purchases, the rule, the path of prices, and the confidence shown."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import expit

from app.core.cost import Objective, Tariff
from app.errors import DataError
from app.offline.refit.climb import (
    AHEAD,
    Climb,
    answers_of,
    choose_once,
    climb,
    graded_states,
    most_accurate,
    purchase_costs,
    purchases,
    right_of,
    states,
)
from app.offline.refit.ladder import (
    FittedHeads,
    LadderStep,
    Sample,
    choose_chat_path,
    choose_path,
    fit_confidence,
    fit_probabilities,
    predict_all,
)
from app.offline.table import Outcomes

TOKENS = {0: 60.0, 1: 140.0, 2: 200.0, 5: 430.0, 8: 700.0, 15: 1200.0}
PRICES = (0.0, 0.1, 0.3, 1.0)


def make(ks: Sequence[int], n: int = 240, seed: int = 0, *, search: bool = True) -> Sample:
    """Questions of different difficulty: more passages answer more of them, and signals tell which."""
    rng = np.random.default_rng(seed)
    easy = rng.normal(size=n)
    columns = {"search.cosine": easy + rng.normal(size=n)} if search else {}
    correct = {}
    for place, k in enumerate(ks):
        odds = 1.5 * easy + 1.2 * place - 1.0
        correct[k] = rng.random(n) < expit(odds)
        for name in ("seq_logprob", "neg_entropy", "margin"):
            columns[f"k{k}.{name}"] = 2.0 * correct[k] + rng.normal(size=n)
    costs = {"search": np.zeros(n)} | {f"k{k}": TOKENS[k] * rng.uniform(0.8, 1.2, n) for k in ks}
    return Sample.of(columns, correct, costs, [f"g{row // 2}" for row in range(n)])


@pytest.fixture(scope="module")
def sample() -> Sample:
    return make((0, 1, 5))


@pytest.fixture(scope="module")
def fitted(sample: Sample) -> FittedHeads:
    return fit_probabilities(sample)


@pytest.fixture(scope="module")
def path(sample: Sample, fitted: FittedHeads) -> tuple[LadderStep, ...]:
    return choose_path(sample, fitted, PRICES)


def follow(sample: Sample, p: dict, q: dict, t: float, start: str = "") -> Climb:
    return climb(p, q, t, prices=sample.prices, costs=sample.costs, top=sample.top, ks=sample.ks, start=start)


def once(sample: Sample, p: dict, t: float) -> Climb:
    return choose_once(p, t, prices=sample.added, costs=sample.costs, top=sample.top, ks=sample.ks)


def test_chat_pays_for_the_search_the_probe_and_what_it_writes(sample: Sample, fitted: FittedHeads) -> None:
    """Also where it writes without passages; c of the rule is only what passages add."""
    found = once(sample, fitted.out_of_fold, 0.2)
    assert len(set(found.given.tolist())) > 1
    for row in range(0, 240, 16):
        written = sample.costs[f"k{found.given[row]}"][row]
        assert found.spent[row] == sample.costs["search"][row] + sample.costs["k0"][row] + written
    assert (found.searches == 1.0).all()
    assert found.passages.tolist() == found.given.tolist()
    assert np.isnan(found.p).all()
    assert sample.added["k0"] == 0.0
    assert sample.added["k5"] == pytest.approx(sample.prices["k5"] - sample.prices["k0"])


def test_a_larger_price_never_adds_more_passages(sample: Sample, fitted: FittedHeads) -> None:
    """Row by row; without a price the most probable answer is written, and nothing is added at a large one."""
    chosen = [once(sample, fitted.out_of_fold, t).given for t in (0.0, 0.05, 0.2, 0.5, 100.0)]
    assert all((later <= before).all() for before, later in pairwise(chosen))
    best = np.stack([fitted.out_of_fold[AHEAD][k] for k in sample.ks]).argmax(axis=0)
    assert chosen[0].tolist() == np.array(sample.ks)[best].tolist()
    assert chosen[-1].max() == 0


def test_chat_without_evidence_adds_the_most(sample: Sample, fitted: FittedHeads) -> None:
    """As the gateway does."""
    unknown = {k: np.where(np.arange(240) < 10, np.nan, p) for k, p in fitted.out_of_fold[AHEAD].items()}
    assert set(once(sample, {AHEAD: unknown}, 2.0).given[:10].tolist()) == {5}


def test_the_path_of_chat_is_cheaper_at_every_step(sample: Sample, fitted: FittedHeads) -> None:
    """Below the cost of a fixed k where a saving is wanted; the cheapest stays in any case."""
    path = choose_chat_path(sample, fitted, PRICES)
    assert all(later.cost < before.cost for before, later in pairwise(path))
    for step in path:
        assert step.accuracy == pytest.approx(sample.mean(right_of(step.climb, sample.correct)))
    saving = choose_chat_path(sample, fitted, PRICES, below=5)
    assert [step.t for step in saving] == [step.t for step in path if step.cost < sample.always(5)]
    (cheapest,) = choose_chat_path(sample, fitted, PRICES, below=0)
    assert cheapest.t == path[-1].t


def test_states_of_three_rungs() -> None:
    """Every range of rungs after a search, and those of the graded policy beside them."""
    assert states((0, 1, 5)) == (
        "", "k0", "search", "search+k0", "search+k1", "search+k0+k1",
        "search+k5", "search+k1+k5", "search+k0+k1+k5",
    )  # fmt: skip
    assert graded_states((0, 1, 5)) == ("search+k0+k5",)
    assert graded_states((0, 1, 5, 15)) == ("search+k0+k5", "search+k0+k15")


@pytest.mark.parametrize("ks", [(0, 1, 5), (0, 2, 8), (0, 1, 5, 15), (0, 5)])
def test_purchases_lead_to_later_states(ks: tuple[int, ...]) -> None:
    """The search comes first, any rung is the first read, and then only the next; every state but the top leads on."""
    every = states(ks)
    for place, state in enumerate(every):
        after = purchases(state, ks)
        assert all(every.index(one) > place for one in after.values())
        assert bool(after) == (ks[-1] not in answers_of(state))
    assert purchases("", ks) == {"search": "search", "k0": "k0"}
    assert purchases("k0", ks) == {"search": "search+k0"}
    assert list(purchases("search", ks)) == [f"k{k}" for k in ks]
    assert list(purchases("search+k0", ks)) == [f"k{ks[1]}"]


def test_a_price_that_rises_never_turns_stopping_into_buying() -> None:
    """With the same heads, a larger t spends at most as much on every question."""
    sample = make((0, 1, 5))
    rng = np.random.default_rng(0)
    n = len(sample.folds)
    p = {state: {k: rng.random(n) for k in answers_of(state)} for state in states(sample.ks)}
    q = {state: {name: rng.random(n) for name in purchases(state, sample.ks)} for state in states(sample.ks)}
    # From a state with an answer there is one purchase. Before, a larger t may prefer a cheap one that leads further.
    for start in filter(answers_of, states(sample.ks)):
        found = [follow(sample, p, q, t, start) for t in (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)]
        assert all((later.state <= earlier.state).all() for earlier, later in pairwise(found))
        assert all((later.cost <= earlier.cost).all() for earlier, later in pairwise(found))


def test_each_step_of_the_path_is_cheaper_on_train(path: tuple[LadderStep, ...]) -> None:
    """Prices rise, costs fall strictly, and accuracy and cost are those of the climb."""
    assert [step.t for step in path] == sorted(step.t for step in path)
    costs = [step.cost for step in path]
    assert all(later < earlier for earlier, later in pairwise(costs))
    assert len(path) > 2
    assert path[0].t == 0.0


def test_the_budget_bounds_the_choice(path: tuple[LadderStep, ...]) -> None:
    """The most accurate step within the budget; none if every step costs more."""
    budget = path[1].cost
    chosen = most_accurate(path, budget)
    assert chosen is not None
    assert chosen.cost <= budget
    assert chosen.accuracy == max(step.accuracy for step in path if step.cost <= budget)
    assert most_accurate(path, path[-1].cost - 0.01) is None


def test_buying_pays(sample: Sample, path: tuple[LadderStep, ...]) -> None:
    """The ladder is more accurate than every fixed k, and cheaper than the most."""
    best = max(sample.mean(labels.astype(float)) for labels in sample.correct.values())
    assert any(step.accuracy > best and step.cost < 1.0 for step in path)


def test_climbing_follows_the_rule_row_by_row(
    sample: Sample, fitted: FittedHeads, path: tuple[LadderStep, ...]
) -> None:
    """A loop over single rows, written from the rule, gives the same answers and costs."""
    p, q, t = fitted.out_of_fold, path[1].values.out_of_fold, path[1].t
    found = follow(sample, p, q, t)
    for row in range(0, len(sample.folds), 7):
        state, spent = "", 0.0
        while True:
            have = max((p[state][k][row] for k in answers_of(state)), default=-np.inf)
            options = {name: q[state][name][row] - t * sample.prices[name] for name in purchases(state, sample.ks)}
            best = max(options, key=options.__getitem__, default=None)
            if best is None or have >= options[best]:
                break
            spent += sample.costs[best][row]
            state = purchases(state, sample.ks)[best]
        given = max(answers_of(state), key=lambda k: p[state][k][row])
        assert (states(sample.ks)[found.state[row]], found.given[row]) == (state, given)
        assert found.p[row] == p[state][given][row]
        assert found.cost[row] == pytest.approx(spent / sample.top)
        assert found.passages[row] == sum(answers_of(state))
        assert found.searches[row] == state.startswith("search")


def test_ties_take_the_cheaper_purchase_and_stop() -> None:
    """Of equal purchases the cheaper is made; an answer as good as the best purchase is given."""
    sample = make((0, 1, 5), 10)
    half = np.full(10, 0.5)
    p = {state: dict.fromkeys(answers_of(state), half) for state in states(sample.ks)}
    q = {state: dict.fromkeys(purchases(state, sample.ks), half) for state in states(sample.ks)}
    found = follow(sample, p, q, 0.0)
    assert {states(sample.ks)[place] for place in found.state} == {"search+k0"}
    assert (found.given == 0).all()


def test_without_required_evidence_the_most_is_read() -> None:
    """Where a probability is unknown, the largest k is bought and given, and nothing is shown for it."""
    sample = make((0, 1, 5), 10)
    known, unknown = np.full(10, 0.5), np.where(np.arange(10) < 5, np.nan, 0.9)
    p = {state: dict.fromkeys(answers_of(state), unknown) for state in states(sample.ks)}
    q = {state: dict.fromkeys(purchases(state, sample.ks), known) for state in states(sample.ks)}
    found = follow(sample, p, q, 0.1)
    assert (found.given == [5] * 5 + [0] * 5).all()
    assert np.isnan(found.p[:5]).all()
    paid = sample.costs["k0"] + sample.costs["k5"]
    np.testing.assert_allclose(found.cost[:5] * sample.top, paid[:5])


@pytest.mark.parametrize("ks", [(0, 2, 8), (0, 1, 5, 15), (0, 5)])
def test_any_rungs(ks: tuple[int, ...]) -> None:
    """Rungs are data: the same code fits other numbers of passages, and the kept heads predict for new rows."""
    sample = make(ks, 60)
    fitted = fit_probabilities(sample)
    assert set(fitted.heads) == {state for state in (*states(ks), *graded_states(ks)) if answers_of(state)}
    assert set(fitted.heads["search+k0"]) == set(ks)
    path = choose_path(sample, fitted, (0.1,))
    other = make(ks, 60, seed=1)
    p = predict_all(fitted.heads, other.columns, 60)
    q = predict_all(path[0].values.heads, other.columns, 60)
    found = climb(p, q, path[0].t, prices=sample.prices, costs=other.costs, top=sample.top, ks=ks)
    assert set(found.given) <= set(ks)
    assert right_of(found, other.correct).shape == (60,)


def test_a_table_without_evidence_still_has_a_ladder() -> None:
    """All heads are constants then: every question gets the same answer."""
    full = make((0, 1, 5), 80)
    groups = [f"g{row}" for row in range(80)]
    constant = {name: np.ones(80) for name in full.columns}
    for columns in ({}, constant):
        sample = Sample.of(columns, full.correct, full.costs, groups)
        path = choose_path(sample, fit_probabilities(sample), (0.0, 0.2))
        head = path[0].values.heads["search"]["k1"]
        assert head.features == ()
        assert head.predict(dict.fromkeys(columns, 1.0)) is not None
        # Constants differ between folds.
        assert all(len(set(path[0].climb.given[sample.folds == fold])) == 1 for fold in set(sample.folds))


def test_a_table_without_a_search_is_fitted_on_signals() -> None:
    """Published tables have no cosines: nothing of the search is required then."""
    sample = make((0, 1, 5), 100, search=False)
    fitted = fit_probabilities(sample)
    assert all("search.cosine" not in head.required for heads in fitted.heads.values() for head in heads.values())
    assert np.isfinite(fitted.out_of_fold["search+k0+k1"][1]).all()


def test_out_of_corpus_rows_train_but_do_not_count() -> None:
    """They change the heads, and are left out of accuracies and costs."""
    base = make((0, 1, 5), 80)
    outside = np.arange(80) >= 60
    correct = {k: labels & ~outside for k, labels in base.correct.items()}
    groups = [f"g{row}" for row in range(80)]
    sample = Sample.of(base.columns, correct, base.costs, groups, out_of_corpus=outside)
    assert sample.mean(correct[5].astype(float)) == pytest.approx(base.correct[5][:60].mean())
    assert sample.top == pytest.approx(base.costs["k5"][:60].mean())
    assert np.isfinite(fit_probabilities(sample).out_of_fold["k0"][0]).all()


def test_the_confidence_map_removes_overconfidence(sample: Sample) -> None:
    """Probabilities that are too sure by a factor of two in log-odds are mapped back."""
    n = len(sample.folds)
    rng = np.random.default_rng(1)
    odds = rng.normal(size=n) * 1.5
    labels = rng.random(n) < expit(odds)
    given = Climb(np.zeros(n, np.intp), np.zeros(n, np.intp), expit(2.0 * odds), *[np.zeros(n)] * 4)
    made = Sample((0,), {}, {0: labels}, sample.costs, sample.units, sample.folds, sample.counted, sample.rows)
    found = fit_confidence(made, given)
    assert found.slope == pytest.approx(0.5, abs=0.15)
    always = Sample((0,), {}, {0: labels | True}, sample.costs, sample.units, sample.folds, sample.counted, sample.rows)
    assert fit_confidence(always, given).apply(0.3) == pytest.approx(0.3)


def outcomes(n: int = 4) -> Outcomes:
    numbers = {k: np.full(n, TOKENS[k]) for k in (0, 1, 5)}
    zeros = {k: np.zeros(n) for k in (0, 1, 5)}
    return Outcomes(
        identity=None, ids=[str(row) for row in range(n)], groups=[str(row) for row in range(n)], questions=[], gold=[],
        tags=[], ks=(0, 1, 5), answers={}, correct={k: np.ones(n, bool) for k in (0, 1, 5)}, signals={},
        prompt_tokens=numbers, completion_tokens=zeros, ms={k: 10.0 * v for k, v in numbers.items()}, evidence={},
        out_of_corpus=np.zeros(n, bool), kinds=[""] * n,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("objective", "tariff", "expected"),
    [
        (Objective.TOKENS, Tariff(), {"search": 0.0, "k0": 60.0, "k1": 140.0, "k5": 430.0}),
        (Objective.CALLS, Tariff(), {"search": 1.0, "k0": 0.0, "k1": 0.0, "k5": 0.0}),
        (Objective.LATENCY, Tariff(), {"search": 0.0, "k0": 600.0, "k1": 1400.0, "k5": 4300.0}),
        (Objective.MONEY, Tariff(1.0, 0.0, 7.0, 2.0), {"search": 17.0, "k0": 60.0, "k1": 140.0, "k5": 430.0}),
    ],
)
def test_costs_of_purchases(objective: Objective, tariff: Tariff, expected: dict[str, float]) -> None:
    """The search pays for the call and all its passages, and a read for what is read."""
    found = purchase_costs(outcomes(), objective, tariff)
    assert {name: cost[0] for name, cost in found.items()} == pytest.approx(expected)


def test_an_objective_without_costs_is_refused() -> None:
    """Nothing can be saved where the most costs nothing."""
    base = make((0, 1, 5), 10)
    free = Sample.of({}, base.correct, {name: np.zeros(10) for name in base.costs}, ["g"] * 10)
    with pytest.raises(DataError, match="nothing can be saved"):
        choose_path(free, fit_probabilities(free))
