"""The ladder: buy while it is worth its price, then stop; bounds, scope and failures apply as to every policy."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.artifact import Artifact, ConfidenceMap
from app.core.available import Available
from app.core.effective_policy import EffectivePolicy, Ladder, Sampled, resolve
from app.core.evidence import NEARNESS
from app.core.ladder import Option, Read, Reply, Search, Stop, next_step
from app.core.policy import AskOptions, Policy, Reason, Retrieval
from app.core.replay import replay
from app.core.scope import Scope
from tests.fakes.artifacts import a_constant, a_ladder, a_ladder_artifact, an_abstention, closed_book
from tests.fakes.random_walks import ASKS, KS, NOTHING_FOUND, SEARCH_DOWN, worlds
from tests.fakes.walks import READER_DOWN, Walk, World, walk

ARTIFACT = a_ladder_artifact()
SCOPE = Scope(0.02, {NEARNESS: 0.5, "search.cosine": 0.25}, 0.75, ("LATIN",), "questions like those collected")


def sure(**probabilities: float) -> World:
    return World({int(name[1:]): closed_book(p) for name, p in probabilities.items()})


def asked(world: World, ask: AskOptions | None = None, artifact: Artifact = ARTIFACT, **more: Any) -> Walk:
    return walk(resolve(ask or AskOptions(), artifact, ks=KS, **more), world)


@pytest.mark.parametrize(
    ("world", "actions", "why"),
    [
        (sure(k0=0.75), [Search(), Read(0), Stop(0)], Reason.CONFIDENT),
        (sure(k0=0.5, k1=0.625), [Search(), Read(0), Read(1), Stop(1)], Reason.CONFIDENT),
        (sure(k0=0.5, k1=0.375, k5=0.75), [Search(), Read(0), Read(1), Read(5), Stop(5)], Reason.UNCERTAIN),
        # The most probable of all available answers is given.
        (sure(k0=0.5, k1=0.375, k5=0.25), [Search(), Read(0), Read(1), Read(5), Stop(0)], Reason.UNCERTAIN),
    ],
)
def test_it_buys_while_that_is_worth_its_price(world: World, actions: list[object], why: Reason) -> None:
    """Then it gives the most probable answer, certified."""
    done = asked(world)
    assert done.actions == actions
    assert (done.reply.reason, done.reply.certified) == (why, True)
    assert done.reply.confidence == pytest.approx(done.policy.probability(done.available, done.reply.k))


def test_a_step_shows_what_it_weighed() -> None:
    """The best answer at hand, and each purchase with its value and price."""
    step = asked(sure(k0=0.5, k1=0.9)).steps[2]
    assert step.state == "search+k0"
    assert step.options[0] == Option(Stop(0), 0.5)
    assert step.options[1] == Option(Read(1), pytest.approx(0.75), pytest.approx(0.03))
    assert (step.p, step.wanted) == (0.5, None)


def test_of_equal_options_the_cheaper() -> None:
    """Stopping costs nothing, so it wins a tie; of two purchases the cheaper one."""
    free = a_ladder_artifact(ladder=a_ladder(t=0.0, values={"": {"search": a_constant(0.5), "k0": a_constant(0.5)}}))
    assert next_step(resolve(AskOptions(), free, ks=KS), Available()).action == Search()
    tie = a_ladder(t=0.0, values=a_ladder().values | {"search+k0": {"k1": a_constant(0.5)}})
    assert asked(sure(k0=0.5), artifact=a_ladder_artifact(ladder=tie)).reply.k == 0


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 2.0), st.floats(0.0, 2.0))
def test_a_larger_price_never_turns_stop_into_buy(k0: float, k1: float, one: float, other: float) -> None:
    """With the same heads, at every state on the way."""
    low, high = sorted((one, other))
    for step in asked(sure(k0=k0, k1=k1, k5=0.5), artifact=a_ladder_artifact(ladder=a_ladder(t=low))).steps:
        if isinstance(step.action, Stop):
            available = asked(sure(k0=k0, k1=k1, k5=0.5), artifact=a_ladder_artifact(ladder=a_ladder(t=low))).available
            dear = resolve(AskOptions(), a_ladder_artifact(ladder=a_ladder(t=high)), ks=KS)
            assert isinstance(next_step(dear, available).action, Stop)


def test_required_does_not_probe() -> None:
    """The answer comes from passages, and is not that of the certified policy."""
    done = asked(sure(k1=0.75), AskOptions(retrieval=Retrieval.REQUIRED))
    assert done.actions == [Search(), Read(1), Stop(1)]
    assert (done.reply.reason, done.reply.certified) == (Reason.RETRIEVAL_REQUIRED, False)


def test_forbidden_is_judged_by_the_probe_alone() -> None:
    """Without a search."""
    done = asked(sure(k0=0.75), AskOptions(retrieval=Retrieval.FORBIDDEN))
    assert done.actions == [Read(0), Stop(0)]
    assert (done.reply.confidence, done.reply.certified) == (0.75, False)


def test_missing_evidence_reads_the_most() -> None:
    """No probability is invented; where nothing can be read, the answer has no confidence."""
    done = asked(World({0: {}, 5: closed_book(0.75)}))
    assert done.actions == [Search(), Read(0), Read(5), Stop(5)]
    assert (done.reply.reason, done.reply.certified) == (Reason.NO_SIGNAL, False)
    bare = a_ladder_artifact(ladder=a_ladder(values={}))
    assert asked(sure(k5=0.75), artifact=bare).actions == [Search(), Read(5), Stop(5)]


def test_a_larger_read_that_fails_leaves_the_best_answer() -> None:
    """Uncertified, with its own probability."""
    fit = a_ladder(confidence=ConfidenceMap(0.5, 1.0))
    world = World({0: closed_book(0.5), 1: closed_book(0.375)}, None, frozenset({5}))
    done = asked(world, artifact=a_ladder_artifact(ladder=fit))
    assert done.actions[-2:] == [Read(5), Stop(0)]
    assert (done.reply.reason, done.reply.confidence, done.reply.certified) == (Reason.DEGRADED, 0.5, False)


def test_a_search_that_fails_leaves_the_probe() -> None:
    """It is given if its confidence passes tau, else withheld."""
    done = asked(World({0: closed_book(0.75)}, SEARCH_DOWN))
    assert done.actions == [Search(), Read(0), Stop(0)]
    assert (done.reply.k, done.reply.reason) == (0, Reason.RETRIEVAL_FAILED)
    assert asked(World({0: closed_book(0.125)}, NOTHING_FOUND)).reply.withheld


def test_the_confidence_of_the_ladder_has_one_more_step() -> None:
    """Of what the ladder gives, not of what the caller or an exploration forced."""
    artifact = a_ladder_artifact(ladder=a_ladder(confidence=ConfidenceMap(2.0, 0.0)), abstention=an_abstention(0.0))
    assert asked(sure(k0=0.75), artifact=artifact).reply.confidence == pytest.approx(0.9)
    forced = asked(sure(k1=0.75), AskOptions(retrieval=Retrieval.REQUIRED), artifact)
    assert forced.reply.confidence == 0.75


@pytest.mark.parametrize(("draw", "k"), [(0.0, 0), (0.34, 1), (0.99, 5)])
def test_exploration_searches_first_and_reads_what_was_drawn(draw: float, k: int) -> None:
    """So that its state is one of the ladder's own."""
    done = asked(sure(k0=0.9, k1=0.9, k5=0.9), sampled=Sampled(0.1, draw))
    assert done.actions == [Search(), Read(k), Stop(k)]
    assert (done.reply.reason, done.reply.certified) == (Reason.EXPLORED, False)
    probing = a_ladder_artifact(ladder=a_ladder(values={"": {"k0": a_constant(0.5), "search": a_constant(0.4)}}))
    first = asked(sure(k0=0.9, k1=0.9, k5=0.9), artifact=probing, sampled=Sampled(0.1, draw)).actions[0]
    assert first == (Read(0) if k == 0 else Search())


# Scope


def near(nearness: float | None, *, cosine: float = 0.5, text: str = "who?") -> Available:
    available = Available.at_first(text, ARTIFACT_STATS)
    found = {} if nearness is None else {NEARNESS: nearness}
    return replace(available, passages=(), evidence={**available.evidence, **found, "search.cosine": cosine})


ARTIFACT_STATS = Available().asked.stats
SCOPED = a_ladder_artifact(scope=SCOPE)


@pytest.mark.parametrize("available", [near(0.4), near(0.6, cosine=0.2), near(0.6, text="кто?")])
def test_out_of_scope_stops_before_anything_is_bought(available: Available) -> None:
    """Withheld where abstaining is allowed, else the most is read."""
    policy = resolve(AskOptions(), SCOPED, ks=KS)
    assert next_step(policy, available).action == Stop(None)
    assert next_step(policy, available).why is Reason.OUT_OF_SCOPE
    told = replace(policy, abstain=False)
    assert next_step(told, available).action == Read(5)
    answered = available.answered(World({5: closed_book(0.9)}).read(5))
    reply = conclude_at(told, answered)
    assert (reply.confidence, reply.certified, reply.in_scope) == (None, False, False)
    assert reply.reason is Reason.OUT_OF_SCOPE


def conclude_at(policy: EffectivePolicy, available: Available) -> Reply:
    from app.core.ladder import conclude

    return conclude(policy, available, next_step(policy, available))


def test_without_a_vector_nothing_is_certified() -> None:
    """The test is incomplete, so the question may be out of scope."""
    policy = resolve(AskOptions(), SCOPED, ks=KS)
    available = near(None).answered(World({0: closed_book(0.9)}).read(0))
    reply = conclude_at(policy, available)
    assert (reply.certified, reply.in_scope, reply.confidence) == (False, False, pytest.approx(0.9))
    whole = near(0.6).answered(World({0: closed_book(0.9)}).read(0))
    assert conclude_at(policy, whole).certified


def test_forbidden_gives_nearness_the_whole_rate() -> None:
    """Search evidence cannot be had, so the floor of nearness is higher."""
    policy = resolve(AskOptions(retrieval=Retrieval.FORBIDDEN), SCOPED, ks=KS)
    available = Available().at_first("who?", ARTIFACT_STATS)
    assert next_step(policy, replace(available, evidence={NEARNESS: 0.7})).why is Reason.OUT_OF_SCOPE
    assert next_step(policy, replace(available, evidence={NEARNESS: 0.8})).action == Read(0)
    assert not policy.complete(available)
    alone = a_ladder_artifact(scope=replace(SCOPE, nearness_alone=None))
    other = resolve(AskOptions(retrieval=Retrieval.FORBIDDEN), alone, ks=KS)
    assert next_step(other, replace(available, evidence={NEARNESS: 0.4})).why is Reason.OUT_OF_SCOPE


# What holds of every climb


ladders = st.builds(
    lambda ask, t, scope, sampled, **flags: resolve(
        ask, a_ladder_artifact(ladder=a_ladder(t=t), scope=scope), ks=KS, sampled=sampled, **flags
    ),
    st.sampled_from([ask for ask in ASKS if ask.policy is Policy.LADDER]),
    st.floats(0.0, 1.0),
    st.sampled_from([None, SCOPE, replace(SCOPE, scripts=())]),
    st.builds(Sampled, st.just(0.1), st.none() | st.floats(0.0, 1.0, exclude_max=True)),
    revoked=st.booleans(),
    bypassed=st.booleans(),
    mandatory=st.booleans(),
)


@given(ladders, worlds)
def test_every_climb_ends_within_its_bounds_and_replays(policy: EffectivePolicy, world: World) -> None:
    """At most one search; required never gives k=0; the record gives the same steps and reply again."""
    done = walk(policy, world)
    assert sum(isinstance(action, Search) for action in done.actions) <= 1
    if isinstance(done.outcome, Reply):
        assert replay(done.policy, done.available) == (done.steps, done.outcome)
        assert done.outcome.withheld or done.outcome.k in policy.permitted
        if done.outcome.certified:
            assert isinstance(policy.kind, Ladder)
            assert done.policy.failure is None
            assert policy.complete(done.available)
            assert policy.alarm(done.available) is None
    assert not done.live or not isinstance(policy.kind, Ladder) or policy.explored or policy.alarm(done.available)


def test_a_reader_that_fails_at_once_fails_the_question() -> None:
    """There is nothing to give."""
    done = asked(World({}, None, frozenset({0})))
    assert done.outcome is READER_DOWN
