"""One policy by several means: which decides, what each is foretold to cost, and when costs speak for another."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.artifact_store import parse, serialise
from app.decision.artifact import Early, Flow, Thresholds
from app.decision.cost import Costs, Objective, Shares, always
from app.decision.forecast import Measured, Plan, Schedule, elapsed, predict
from app.decision.planning import Probe, Unasked, by_flow, measured_from
from app.decision.policy import Ask, Gate, Policy, decide, needs_probe
from app.decision.pregate import wants_embedding
from app.decision.schedule import STAY, Variants, choose
from tests.fakes.artifacts import (
    a_fit,
    a_variant,
    an_abstention,
    an_artifact,
    an_early_artifact,
    an_uncertified_fit,
    closed_book,
)
from tests.unit.decision.test_planning import SERIAL, TOKENS, a_window

EARLY = Early(unasked=0.5, exits=((1, 0.125),), exit_k=1)
WHOLE, BOTH = "whole probes", "pre-gate + early exit"
ARTIFACT = an_early_artifact(
    EARLY,
    variants={
        WHOLE: a_variant(a_fit(0.875, 0.25), abstention=an_abstention(0.5)),
        BOTH: a_variant(a_fit(thresholds=Thresholds(0.75, 0.5, EARLY))),
    },
)
# One passage is read by half of those that are probed at all; a quarter of these after half a probe.
FLOW = Flow(unasked1=0.4, unasked5=0.2, k0=0.2, k1=0.1, k5=0.1, cut=0.05, spent=0.5)
PLAIN = Flow(0.0, 0.0, k0=0.3, k1=0.2, k5=0.5)
COSTS = Costs(cb=60.0, ret1=20.0, ob1=60.0, ret5=25.0, ob5=80.0)
PROBE = Probe(ms=100.0, tokens=46.0, money=0.0, embed_ms=10.0)


def foretold(flow: Flow, costs: Costs = COSTS, probe: Probe = PROBE, *, serving: Plan = SERIAL) -> Measured:
    """What is expected of a flow at these costs."""
    found = by_flow(a_window(costs, 0.3, k1=0.2), flow, probe, serving=serving, busy=0.0, most=5)
    assert found is not None
    return found


def test_the_plan_names_what_decides() -> None:
    """By its name a variant's thresholds and abstention are in force; by none, or one that is not there, the first."""
    gate = Gate(ARTIFACT)
    assert gate.by(None) is gate
    assert gate.by("dice") is gate
    assert Gate().by(WHOLE) == Gate()
    whole = gate.by(WHOLE)
    assert (wants_embedding(Ask(), gate), wants_embedding(Ask(), whole)) == (True, False)
    assert (gate.tau_abstain(), whole.tau_abstain()) == (0.25, 0.5)
    assert decide(Ask(), gate, closed_book(0.75), watched=True).k == 0
    decision = decide(Ask(), whole, closed_book(0.75))
    assert (decision.k, decision.certified, decision.thresholds) == (1, True, Thresholds(0.875, 0.25))


def test_other_policies_know_no_variants() -> None:
    """A caller who asks for the binary policy gets it, and what is revoked or bypassed stays so."""
    artifact = replace(ARTIFACT, policies={**ARTIFACT.policies, "binary": a_fit(0.625, 0.625)})
    assert decide(Ask(policy=Policy.BINARY), Gate(artifact).by(WHOLE), closed_book(0.75)).k == 0
    for gate in (Gate(ARTIFACT, revoked=True), Gate(ARTIFACT, bypassed=True)):
        assert not needs_probe(Ask(), gate.by(WHOLE))


def test_an_uncertified_variant_decides_nothing_unless_allowed() -> None:
    """Like any policy."""
    shaky = replace(ARTIFACT, variants={WHOLE: a_variant(an_uncertified_fit())})
    assert not needs_probe(Ask(), Gate(shaky).by(WHOLE))
    assert needs_probe(Ask(), Gate(shaky, allow_uncertified=True).by(WHOLE))


def test_variants_survive_the_file() -> None:
    """Written and read they are the same; an artifact without any has the bytes that it always had."""
    assert parse(serialise(ARTIFACT), name="x") == ARTIFACT
    assert b"variants" not in serialise(an_artifact())


def test_a_variant_is_what_its_name_says() -> None:
    """A plan goes by the name alone."""
    with pytest.raises(ValueError, match="named by their means"):
        an_artifact(variants={"pre-gate": a_variant(a_fit())})
    with pytest.raises(ValueError, match="need the artifact's foresight"):
        an_artifact(variants={"pre-gate": a_variant(a_fit(thresholds=Thresholds(0.75, 0.5, Early(0.5))))})


@pytest.mark.parametrize(
    "ways",
    [
        {"k0": 0.5, "k1": 0.0, "k5": 0.0},
        {"k0": 1.5, "k1": -0.5, "k5": 0.0},
        {"k0": 0.9, "k1": 0.1, "k5": 0.0, "cut": 0.2},
        {"k0": 0.9, "k1": 0.1, "k5": 0.0, "cut": 0.1, "spent": 1.5},
    ],
)
def test_ways_that_do_not_add_up_are_refused(ways: dict[str, float]) -> None:
    """Shares of all questions, and cut probes only of those that read."""
    with pytest.raises(ValueError, match="got Flow"):
        Flow(0.0, 0.0, **ways)


def test_what_a_flow_costs_is_the_sum_of_its_ways() -> None:
    """By hand: those that are not probed, those that are after their embedding, and what a cut probe spares."""
    found = foretold(FLOW)
    unasked = 0.4 * (20.0 + 60.0) + 0.2 * (25.0 + 80.0)
    probes = 0.4 * 10.0 + 0.35 * 100.0 + 0.05 * 50.0
    # Embedded before, so that only the rest of retrieval is left.
    reading = 0.1 * (10.0 + 60.0) + 0.1 * (15.0 + 80.0)
    assert elapsed(found, SERIAL) == pytest.approx(unasked + probes + reading)
    # Of tokens every probe costs all, and an embedding none.
    tokens = 0.4 * 176.0 + 0.2 * 696.0 + 0.4 * 46.0 + 0.1 * 176.0 + 0.1 * 696.0
    assert predict(found, Objective.TOKENS, SERIAL) * always(TOKENS, 5) == pytest.approx(tokens)


@given(
    ways=st.lists(st.integers(0, 1000), min_size=5, max_size=5).filter(any),
    cut=st.floats(0.0, 1.0),
    spent=st.floats(0.0, 1.0),
)
def test_any_flow_costs_the_sum_of_its_ways(ways: list[int], cut: float, spent: float) -> None:
    """Whatever shares a split may show, none included."""
    one, five, k0, k1, k5 = (each / sum(ways) for each in ways)
    cut *= k1 + k5
    found = foretold(Flow(one, five, k0, k1, k5, cut=cut, spent=spent))
    embed = 10.0 if one + five > 0.0 else 0.0
    expected = (
        one * 80.0
        + five * 105.0
        + (k0 + k1 + k5 - cut) * (embed + 100.0)
        + cut * (embed + spent * 100.0)
        + k1 * (80.0 - embed)
        + k5 * (105.0 - embed)
    )
    assert elapsed(found, SERIAL) == pytest.approx(expected)


def test_what_is_measured_of_a_flow_is_what_was_foretold() -> None:
    """Questions that are not probed have nothing beside which anything could run, whoever says how many they are."""
    found, unasked = a_window(replace(COSTS, cb=0.4 * 100.0), 0.2, k1=0.5), Unasked(0.4, 0.2, embed_ms=10.0)
    known = measured_from(found, serving=SERIAL, busy=0.0, unasked=unasked)
    assert isinstance(known, Measured)
    expected = foretold(replace(FLOW, cut=0.0))
    for schedule in Schedule:
        assert elapsed(known, Plan(schedule)) == pytest.approx(elapsed(expected, Plan(schedule)))
    # Only what is searched for beside a probe is saved: all but the embedding, by the few that are read for after one.
    saved = elapsed(known, SERIAL) - elapsed(known, Plan(Schedule.OVERLAP))
    assert saved == pytest.approx(0.1 * (20.0 - 10.0) + 0.1 * (25.0 - 10.0))


def test_a_way_that_nobody_went_is_not_foretold() -> None:
    """What five passages cost is not known where all read one; a flow that reads none of them can be told."""
    window = a_window(COSTS, 0.3, k1=0.7, without=(5,), reference=1)

    def of(flow: Flow) -> Measured | None:
        return by_flow(window, flow, PROBE, serving=SERIAL, busy=0.0, most=1)

    assert of(FLOW) is None
    known = of(Flow(0.5, 0.0, 0.2, 0.3, 0.0))
    assert known is not None
    # One passage is then what is fetched and read ahead.
    assert (known.shares.k1, known.latency.ob5) == (0.0, COSTS.ob1)
    nobody = a_window(COSTS, 0.3, without=(0,))
    assert by_flow(nobody, PLAIN, PROBE, serving=SERIAL, busy=0.0, most=5) is None


FLOWS = {WHOLE: PLAIN, BOTH: FLOW}


def chosen(probe: Probe, *, now: str = BOTH, current: Plan | None = None, alone: bool = False) -> Plan:
    """The plan at these costs, where the policy in force is measured to cost what is foretold of it."""
    expected = {means: foretold(flow, probe=probe) for means, flow in FLOWS.items()}
    flow, own = FLOWS[now], expected[now]
    served = measured_from(a_window(COSTS, 0.3, k1=0.2), serving=SERIAL, busy=0.0)
    assert isinstance(served, Measured)
    shares = Shares(flow.k0, flow.k1 + flow.unasked1, flow.k5 + flow.unasked5)
    # What probes take on average, those that were spared included, and an embedding where nothing is read.
    read = shares.k1 * always(served.latency, 1) + shares.k5 * always(served.latency, 5)
    cb = elapsed(own, SERIAL) - read
    served = replace(served, shares=shares, latency=replace(served.latency, cb=cb))
    variants = Variants(now, {now: own} if alone else expected)
    return choose(served, Objective.LATENCY, current=current, variants=variants)


def test_costs_choose_the_means() -> None:
    """Slow probes speak for sparing them, a slow embedder for probing at once; and either way it is said."""
    slow_probe = Probe(ms=150.0, tokens=46.0, money=0.0, embed_ms=5.0)
    slow_embedder = Probe(ms=5.0, tokens=46.0, money=0.0, embed_ms=60.0)
    for now in (WHOLE, BOTH):
        assert chosen(slow_probe, now=now).means == BOTH
        assert chosen(slow_embedder, now=now).means == WHOLE
    said = chosen(slow_embedder, now=BOTH).why
    assert said.startswith(f"{chosen(slow_embedder).name.capitalize()} should take")
    assert f"with {BOTH}" in said


def test_a_little_better_is_no_reason_to_change() -> None:
    """The means in force stay while others are foretold to be better by less than a plan must be."""
    stayed = left = 0
    for ms in range(10, 160, 5):
        probe = Probe(float(ms), 46.0, 0.0, 10.0)
        for now in FLOWS:
            own = chosen(probe, now=now, alone=True)
            found = chosen(probe, now=now, current=own)
            if found.bypass or own.bypass:
                continue
            left += found.means != now
            stayed += found.means == now
            assert found.means == now or found.ratio < own.ratio - STAY
    assert stayed
    assert left


def test_another_variant_shares_the_luck_of_the_one_in_force() -> None:
    """Where questions turn out to cost a tenth more than was foretold, so will they by other means."""
    expected = {WHOLE: foretold(PLAIN), BOTH: foretold(FLOW)}
    own = expected[WHOLE]
    spent = predict(own, Objective.TOKENS, SERIAL) * always(TOKENS, 5)
    dearer = replace(own, tokens=replace(own.tokens, cb=own.tokens.cb + 0.1 * spent))
    found = choose(dearer, Objective.TOKENS, variants=Variants(WHOLE, expected))
    alone = predict(expected[BOTH], Objective.TOKENS, SERIAL)
    assert found.same(Plan(Schedule.SERIAL, means=BOTH))
    assert found.ratio == pytest.approx(1.1 * alone)


def test_what_was_lived_through_is_not_foretold() -> None:
    """Means that were in force and cost more than was foretold of them are not taken up again for the same reasons."""
    expected = {WHOLE: foretold(PLAIN), BOTH: foretold(FLOW)}
    own = expected[WHOLE]
    assert choose(own, Objective.TOKENS, variants=Variants(WHOLE, expected)).means == BOTH
    dear = replace(own, tokens=replace(own.tokens, cb=300.0))
    assert choose(own, Objective.TOKENS, variants=Variants(WHOLE, expected, {BOTH: dear})).means == WHOLE
