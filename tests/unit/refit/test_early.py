"""Early thresholds on a table: counted as the gateway decides, costed as it spends, and laid into a path."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.decision.artifact import ALWAYS_K, UNREACHABLE, Early, Thresholds
from app.decision.calibrator import Isotonic
from app.decision.cost import Tariff
from app.decision.exits import exit_now, watched_lengths
from app.decision.foresight import SCORE, Foresight, Scorer
from app.decision.policy import Ask, Gate, decide, foregone, needs_probe
from app.decision.pregate import consider
from app.refit.early import exit_candidates, unasked_candidates, undisguised
from app.refit.foretell import Foretellers, of_artifact, without_foresight
from app.refit.ledger import Advances, Foretold, Ledger, advances, gate_costs
from app.refit.paths import grid, lay_path
from app.refit.refit import Plan, _probed_whole
from app.refit.split import Train, units
from app.refit.table import Asked, Outcomes
from tests.fakes.artifacts import a_fit, an_artifact
from tests.refit.world import World

LINE = Isotonic("seq_logprob", (0.0, 1.0), (0.0, 1.0))
PREFIXES = (1, 4)
FORESIGHT = Foresight(
    "embedder",
    2,
    (),
    Scorer((1.0, 0.0), 0.0, Isotonic(SCORE, (0.0, 1.0), (0.0, 1.0))),
    Scorer((0.0, 1.0), 0.0, Isotonic(SCORE, (0.0, 1.0), (0.0, 1.0))),
)
EXITS = {length: Isotonic(f"seq_logprob@{length}", (0.0, 1.0), (0.0, 1.0)) for length in PREFIXES}
FORETELLERS = Foretellers(FORESIGHT, EXITS)


def a_table(n: int, seed: int) -> Outcomes:
    """Signals, prefixes and questions that say anything, some of them nothing, and costs to tell them by."""
    rng = np.random.default_rng(seed)
    table, _ = World().draw(n, seed)
    whole = np.where(rng.random(n) < 0.1, np.nan, rng.random(n).round(2))
    prefixes = {f"seq_logprob@{length}": rng.random(n).round(2) for length in PREFIXES}
    short = rng.random(n) < 0.2
    signals = {"seq_logprob": whole} | {name: np.where(short, whole, p) for name, p in prefixes.items()}
    tokens = {k: rng.integers(5, 20, n).astype(float) for k in (0, 1, 5)}
    return replace(
        table,
        signals=table.signals | {0: signals},
        ms={k: (k + 1) * 100.0 + 10.0 * tokens[0] for k in (0, 1, 5)},
        prompt_tokens=tokens,
        completion_tokens=tokens,
        asked=Asked("embedder", 2, (), rng.random((n, 2)).round(2), embed_ms=3.0),
    )


def a_ledger(table: Outcomes, objective: str = "latency") -> Ledger[Train]:
    return Ledger(
        Train(table),
        table.signals[0]["seq_logprob"],
        units(table),
        gate_costs(table, objective, Tariff()),  # type: ignore[arg-type]
        FORETELLERS.apply(table),
        advances(table, objective, Tariff(), PREFIXES),  # type: ignore[arg-type]
    )


def test_quantiles_are_of_probes_that_ran_to_their_end() -> None:
    """What the gateway will see of the signals is what early thresholds leave of them."""
    table = a_table(400, 3)
    ledger = a_ledger(table)
    planned = cast("Plan", SimpleNamespace(ledger=ledger))
    assert _probed_whole(planned, Thresholds(0.75, 0.5)) is table.signals[0]
    early = Early(0.5, 0.5, ((4, 0.25),))
    whole = _probed_whole(planned, Thresholds(0.75, 0.5, early))
    kept = ledger.settled(early) < 0
    assert 0 < kept.sum() < 400
    assert {name: len(values) for name, values in whole.items()} == dict.fromkeys(table.signals[0], kept.sum())
    assert table.asked is not None
    assert (table.asked.features[kept, 0] >= 0.5).all()


TAUS = st.one_of(st.sampled_from([0.0, 1.0, UNREACHABLE]), st.floats(0.0, 1.0))
EARLIES = st.builds(
    Early,
    unasked=TAUS,
    compact=TAUS,
    exits=st.one_of(st.just(()), st.tuples(st.tuples(st.just(4), TAUS)), TAUS.map(lambda t: ((1, t), (4, t / 2)))),
    exit_k=st.sampled_from([1, 5]),
)


@given(st.integers(0, 10_000), TAUS, TAUS, EARLIES)
@settings(max_examples=60, deadline=None)
def test_the_ledger_follows_early_thresholds_as_the_gateway_does(
    seed: int, one: float, other: float, early: Early
) -> None:
    """Row by row: no probe, one cut short, or a whole one, and then the same k; each is paid as far as it ran."""
    table = a_table(40, seed)
    thresholds = Thresholds(max(one, other), min(one, other), early)
    gate = Gate(
        an_artifact(identity=None, policies={"graded": a_fit(thresholds=thresholds)}, foresight=FORESIGHT, exits=EXITS)
    )
    gate = replace(gate, artifact=replace(gate.artifact, calibrators=replace(gate.artifact.calibrators, p0=LINE)))  # type: ignore[union-attr]
    ledger = a_ledger(table)
    chosen, paid = ledger.route(thresholds), ledger.spent(thresholds)
    assert table.asked is not None
    signals, ask = table.signals[0], Ask()
    for row in range(40):
        heard = {name: float(values[row]) for name, values in signals.items() if np.isfinite(values[row])}
        decision = consider(ask, gate, "", table.asked.features[row].tolist())
        probe = 0.0
        if decision is None and needs_probe(ask, gate):
            probe = table.ms[0][row]
            for length in watched_lengths(ask, gate):
                goes_on = heard.get(f"seq_logprob@{length}") != heard.get("seq_logprob")
                if decision is None and goes_on:
                    decision = exit_now(ask, gate, length, heard)
                    if decision is not None:
                        probe = ledger.advances.cut[length][row]
        decision = decision or decide(ask, gate, heard, watched=True)
        assert decision.certified or decision.reason.value == "no_signal"
        assert chosen[row] == decision.k
        embedding = 3.0 if early.unasked > 0.0 and decision.k == 0 else 0.0
        assert paid[row] == pytest.approx(probe + embedding + (table.ms[decision.k][row] if decision.k else 0.0))


@given(st.integers(0, 10_000), st.booleans(), TAUS, TAUS, st.sampled_from(["latency", "tokens", "passage"]))
@settings(max_examples=40, deadline=None)
def test_the_grid_is_what_routing_gives_under_early_thresholds_too(
    seed: int, graded: bool, unasked: float, compact: float, objective: str
) -> None:
    """Cumulative sums over the questions that are probed, and the rest as a constant, for accuracy and for cost."""
    ledger = a_ledger(a_table(30, seed), objective)
    for early in (None, Early(unasked, compact)):
        (first, second), taus, accuracy, cost = grid(ledger, graded=graded, early=early)
        for i in {*np.random.default_rng(seed).integers(0, len(first), 8).tolist(), 0, len(first) - 1}:
            thresholds = Thresholds(float(taus[first[i]]), float(taus[second[i]]), early)
            assert accuracy[i] == pytest.approx(ledger.mean(ledger.right(ledger.route(thresholds))))
            assert cost[i] == pytest.approx(ledger.mean(ledger.spent(thresholds)))


def test_a_fixed_action_pays_for_no_probe() -> None:
    """Where every probability leads to the same passages nobody is probed, as in the gateway."""
    table = a_table(50, 0)
    ledger = a_ledger(table)
    for k in (1, 5):
        assert ledger.spent(ALWAYS_K[k]) == pytest.approx(table.ms[k])
    known = np.isfinite(ledger.p)
    assert ledger.spent(ALWAYS_K[0])[known] == pytest.approx(table.ms[0][known])


def test_what_a_cut_probe_costs_by_axis() -> None:
    """Its prompt, its tokens and the one that told that it goes on; nothing where the axis does not count probes."""
    table = a_table(200, 1)
    tokens = table.completion_tokens[0]
    assert advances(table, "latency", Tariff(), (4,)).cut[4] == pytest.approx(100.0 + 10.0 * np.minimum(tokens, 5.0))
    assert advances(table, "tokens", Tariff(), (4,)).cut[4] == pytest.approx(tokens + np.minimum(tokens, 5.0))
    assert advances(table, "passage", Tariff(), (4,)).cut[4].tolist() == [0.0] * 200
    paid = advances(table, "money", Tariff(prompt_token=1.0, completion_token=3.0), (1,))
    assert paid.cut[1] == pytest.approx(tokens + 3.0 * np.minimum(tokens, 2.0))
    assert paid.embedding == 0.0
    assert advances(table, "latency", Tariff(), ()).embedding == 3.0
    unknown = replace(table, completion_tokens=table.completion_tokens | {0: np.full(200, np.nan)})
    assert advances(unknown, "latency", Tariff(), (4,)).cut[4] == pytest.approx(table.ms[0])


def test_candidates_need_something_to_compare() -> None:
    """Without foresight nothing but no threshold, without prefixes no exits, and a binary policy never reads one."""
    ledger = a_ledger(a_table(100, 2))
    blind = replace(ledger, foretold=Foretold(), advances=Advances())
    assert list(unasked_candidates(blind, graded=True)) == [None]
    assert list(exit_candidates(blind, Thresholds(0.5, 0.25), graded=True)) == []
    assert list(exit_candidates(ledger, ALWAYS_K[1], graded=True)) == []
    binary = [each for each in unasked_candidates(ledger, graded=False) if each is not None]
    assert {each.compact for each in binary} == {UNREACHABLE}
    assert {
        each.early.exit_k for each in exit_candidates(ledger, Thresholds(0.5, 0.5), graded=False) if each.early
    } == {5}
    p0_alone = replace(ledger, foretold=replace(ledger.foretold, p1=None))
    assert {each.compact for each in unasked_candidates(p0_alone, graded=True) if each} == {0.0, UNREACHABLE}


def test_a_fixed_action_is_never_disguised_as_an_early_one() -> None:
    """Reading one passage for every question, foreseen or not, is always-k1; five likewise; a mixture is neither."""
    for k, compact in ((1, 0.0), (5, UNREACHABLE)):
        assert undisguised(replace(ALWAYS_K[k], early=Early(0.5, compact))) == ALWAYS_K[k]
        assert undisguised(ALWAYS_K[k]) == ALWAYS_K[k]
    for mixed in (replace(ALWAYS_K[1], early=Early(0.5, 0.25)), Thresholds(0.5, 0.0, Early(0.5, 0.0))):
        assert undisguised(mixed) == mixed


def test_exits_cost_no_more_skips_than_they_may() -> None:
    """At each length the share of skipped questions that would be cut is at most what the candidate allows."""
    ledger = a_ledger(a_table(400, 3))
    whole = Thresholds(0.5, 0.25)
    skipped = ledger.route(whole) == 0
    found = list(exit_candidates(ledger, whole, graded=True))
    assert found
    for each in found:
        assert each.early is not None
        for length, tau in each.early.exits:
            p = ledger.foretold.prefixes[length]
            assert (p[skipped & np.isfinite(p)] < tau).mean() <= 0.05


def test_a_path_decides_early_where_that_saves() -> None:
    """Where question and first token tell much, steps get cheaper without probes; where nothing does, none is early."""
    table, _ = World(question_noise=0.3, first_token_noise=0.1).draw(1500, seed=1)
    assert table.asked is not None
    p = 1.0 / (1.0 + np.exp(-table.signals[0]["seq_logprob"]))
    foretold = Foretold(
        1.0 / (1.0 + np.exp(-table.asked.features[:, 0])),
        None,
        {1: 1.0 / (1.0 + np.exp(-table.signals[0]["seq_logprob@1"]))},
    )
    costs = gate_costs(table, "latency", Tariff())
    ledger = Ledger(Train(table), p, units(table), costs, foretold, advances(table, "latency", Tariff(), (1,)))
    path = lay_path(ledger, graded=True, references=(0, 1, 5), epsilon=0.02)
    assert path[0].thresholds == ALWAYS_K[5]
    assert all(a.cost > b.cost for a, b in itertools.pairwise(path))
    early = [step.thresholds.early for step in path if step.thresholds.early is not None]
    assert any(each.unasked > 0.0 for each in early)
    assert any(each.exits for each in early)
    assert min(step.accuracy for step in path) >= path[0].accuracy - 0.04
    bare = lay_path(replace(ledger, foretold=Foretold()), graded=True, references=(0, 1, 5), epsilon=0.02)
    assert all(step.thresholds.early is None for step in bare)
    reached = {
        name: min(step.cost for step in steps if step.accuracy >= path[0].accuracy - 0.02)
        for name, steps in (("early", path), ("bare", bare))
    }
    assert reached["early"] < 0.95 * reached["bare"]


def test_without_embeddings_every_question_is_probed() -> None:
    """Thresholds on the question fall away, exits stay; and an artifact keeps only what its thresholds compare."""
    early = Early(0.5, 0.25, ((4, 0.125),))
    assert without_foresight(Thresholds(0.5, 0.25)) == Thresholds(0.5, 0.25)
    assert without_foresight(Thresholds(0.5, 0.25, Early(0.5))) == Thresholds(0.5, 0.25)
    assert without_foresight(Thresholds(0.5, 0.25, early)).early == replace(early, unasked=0.0)
    used = FORETELLERS.used_by([a_fit(thresholds=Thresholds(0.5, 0.25, Early(exits=((4, 0.5),))))])
    assert used.foresight is None
    assert set(used.exits) == {4}
    assert FORETELLERS.used_by([a_fit()]).exits == {}
    artifact = an_artifact(identity=None, foresight=FORESIGHT, exits=EXITS)
    assert of_artifact(artifact).foresight is FORESIGHT
    table = replace(a_table(10, 0), asked=None)
    assert of_artifact(artifact).apply(table).p0 is None
    assert foregone(Thresholds(UNREACHABLE, 0.0, early)) == 1
