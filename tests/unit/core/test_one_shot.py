"""Chat: one search, one probe, one choice of k among answers that are not bought; then the answer is written."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.artifact import Artifact
from app.core.effective_policy import OneShot, Sampled, resolve
from app.core.evidence import NEARNESS
from app.core.ladder import Option, Read, Reply, Search, Stop
from app.core.policy import AskOptions, Policy, Reason, Retrieval
from app.core.replay import replay
from app.core.scope import Scope
from tests.fakes.artifacts import a_chat, a_chat_artifact, a_constant, a_ladder_artifact, closed_book
from tests.fakes.random_walks import ASKS, KS, NOTHING_FOUND, SEARCH_DOWN, worlds
from tests.fakes.walks import Walk, World, walk

ARTIFACT = a_chat_artifact()
SURE, UNSURE, LOST = (World({0: closed_book(p)}) for p in (0.875, 0.625, 0.25))
REQUIRED = AskOptions(retrieval=Retrieval.REQUIRED)


def asked(world: World, ask: AskOptions | None = None, artifact: Artifact | None = ARTIFACT, **more: Any) -> Walk:
    return walk(resolve(ask or AskOptions(), artifact, ks=KS, chat=True, **more), world)


@pytest.mark.parametrize(
    ("world", "k", "why"),
    [(SURE, 0, Reason.CONFIDENT), (UNSURE, 1, Reason.BORDERLINE), (LOST, 5, Reason.UNCERTAIN)],
)
def test_it_searches_probes_and_chooses_once(world: World, k: int, why: Reason) -> None:
    """The reply has a k, and neither a text nor a confidence: the answer is not written yet."""
    done = asked(world)
    assert done.actions == [Search(), Read(0), Stop(k)]
    assert done.reply == Reply(k, None, None, why, withheld=False, certified=True)
    assert done.live == ()


def test_the_choice_shows_what_it_weighed() -> None:
    """The probability of each answer that could be written, and the price of its passages."""
    step = asked(UNSURE).steps[-1]
    assert step.state == "search+k0"
    assert step.options == (
        Option(Stop(0), 0.625, 0.0),
        Option(Stop(1), 0.6875, 0.03125),
        Option(Stop(5), pytest.approx(0.75), 0.125),
    )
    assert (step.p, step.wanted) == (0.625, 1)


def test_of_equal_answers_the_cheaper() -> None:
    """Also where accuracy has no price, and of two that cost the same the one from fewer passages."""
    ahead = {k: a_constant(0.5) for k in KS}
    alike = a_chat_artifact(heads={**ARTIFACT.heads, "search+k0": ahead}, chat=a_chat(t=0.0))
    assert asked(SURE, artifact=alike).reply.k == 0
    flat = a_chat(t=0.0, costs=dict.fromkeys(("k0", "k1", "k5"), 0.25))
    assert asked(SURE, artifact=replace(alike, chat=flat)).reply.k == 0


@pytest.mark.parametrize(
    ("ask", "more", "actions", "why"),
    [
        (REQUIRED, {}, [Search(), Read(0), Stop(1)], Reason.RETRIEVAL_REQUIRED),
        (AskOptions(), {"mandatory": True}, [Search(), Read(0), Stop(1)], Reason.RETRIEVAL_REQUIRED),
        (AskOptions(retrieval=Retrieval.FORBIDDEN), {}, [Stop(0)], Reason.RETRIEVAL_FORBIDDEN),
        (AskOptions(Policy.ALWAYS), {}, [Search(), Stop(5)], Reason.RETRIEVAL_REQUIRED),
        (AskOptions(Policy.GRADED), {}, [Read(0), Stop(0)], Reason.CONFIDENT),
        (AskOptions(), {"revoked": True}, [Search(), Stop(1)], Reason.NOT_CERTIFIED),
        (AskOptions(), {"bypassed": True}, [Search(), Stop(1)], Reason.BYPASSED),
        (AskOptions(), {"artifact": None}, [Search(), Stop(5)], Reason.NOT_CALIBRATED),
        (AskOptions(), {"artifact": a_ladder_artifact()}, [Search(), Stop(1)], Reason.NOT_CERTIFIED),
        (AskOptions(filtered=True), {}, [Search(), Read(0), Stop(0)], Reason.CONFIDENT),
    ],
)
def test_bounds_and_other_policies_hold_in_chat(
    ask: AskOptions, more: dict[str, Any], actions: list[object], why: Reason
) -> None:
    """Each as for a short answer, but nothing is read before it is written; none of them is certified."""
    done = asked(SURE, ask, **more)
    assert done.actions == actions
    assert (done.reply.reason, done.reply.text, done.reply.certified) == (why, None, False)


def test_an_uncertified_rule_serves_only_where_that_is_allowed() -> None:
    """Otherwise the fallback; the certificate of the ladder does not cover chat."""
    uncertified = a_chat_artifact(chat=a_chat(certificate=None))
    assert asked(LOST, artifact=uncertified).actions == [Search(), Stop(1)]
    allowed = asked(LOST, artifact=uncertified, allow_uncertified=True)
    assert (allowed.reply.k, allowed.reply.certified) == (5, False)


def test_missing_evidence_adds_the_most() -> None:
    """No probability is invented."""
    done = asked(World({0: {}}))
    assert done.actions == [Search(), Read(0), Stop(5)]
    assert (done.reply.reason, done.reply.certified) == (Reason.NO_SIGNAL, False)


@pytest.mark.parametrize(("draw", "k"), [(0.0, 0), (0.34, 1), (0.99, 5)])
def test_exploration_keeps_what_would_have_been_chosen(draw: float, k: int) -> None:
    """With the same evidence, so that the log knows the chance of every k."""
    done = asked(UNSURE, sampled=Sampled(0.1, draw))
    assert done.actions == [Search(), Read(0), Stop(k)]
    assert (done.steps[-1].wanted, done.reply.reason, done.reply.certified) == (1, Reason.EXPLORED, False)
    lost = asked(World({0: {}}), sampled=Sampled(0.1, draw))
    assert (lost.reply.k, lost.reply.reason) == (k, Reason.EXPLORED)


@pytest.mark.parametrize("retrieval", [Retrieval.AUTO, Retrieval.REQUIRED])
@pytest.mark.parametrize(
    ("error", "why"), [(SEARCH_DOWN, Reason.RETRIEVAL_FAILED), (NOTHING_FOUND, Reason.NO_PASSAGES)]
)
def test_without_passages_it_is_written_without_or_withheld(error: Any, why: Reason, retrieval: Retrieval) -> None:
    """Withheld where abstaining is allowed; nothing is probed for, since there is nothing left to choose."""
    done = asked(World({0: closed_book(0.5)}, error), AskOptions(retrieval=retrieval))
    assert done.actions == [Search(), Stop(0)]
    assert (done.reply.reason, done.reply.withheld, done.reply.certified) == (why, True, False)
    written = asked(World({0: closed_book(0.5)}, error), AskOptions(retrieval=retrieval, abstain=False))
    assert (written.reply.k, written.reply.reason, written.reply.withheld) == (0, why, False)


def test_a_probe_that_fails_adds_the_most() -> None:
    """The passages are there, so the answer can be written from all of them."""
    done = asked(World({}, None, frozenset({0})))
    assert done.actions == [Search(), Read(0), Stop(5)]
    assert (done.reply.reason, done.reply.certified) == (Reason.DEGRADED, False)


def test_out_of_scope_is_withheld_or_written_without_passages() -> None:
    """Judged as soon as the evidence is there; never certified. Where passages are required, the fewest are added."""
    scope = Scope(0.02, {"search.cosine": 0.5}, None, ("LATIN",), "questions like those collected")
    outside = a_chat_artifact(scope=scope)
    assert asked(SURE, artifact=outside).actions == [Search(), Stop(None)]
    done = asked(SURE, AskOptions(abstain=False), outside)
    assert done.actions == [Search(), Stop(0)]
    told = AskOptions(retrieval=Retrieval.REQUIRED, abstain=False)
    assert asked(SURE, told, outside).actions == [Search(), Stop(1)]
    assert (done.reply.reason, done.reply.in_scope, done.reply.certified) == (Reason.OUT_OF_SCOPE, False, False)
    unknown = a_chat_artifact(scope=replace(scope, floors={NEARNESS: 0.5}))
    assert not asked(SURE, artifact=unknown).reply.certified


@given(
    st.floats(0.0, 1.0), st.floats(0.0, 2.0), st.floats(0.0, 2.0), st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2)
)
def test_a_larger_price_never_adds_more_passages(p: float, one: float, other: float, steps: list[float]) -> None:
    """With the same heads and costs that rise with k."""
    costs = {"k0": 0.0, "k1": steps[0], "k5": steps[0] + steps[1]}
    chosen = [
        asked(World({0: closed_book(p)}), artifact=a_chat_artifact(chat=a_chat(t=t, costs=costs))).reply.k
        for t in sorted((one, other))
    ]
    assert chosen[1] <= chosen[0]


turns = st.builds(
    lambda ask, t, scope, sampled, **flags: resolve(
        ask, a_chat_artifact(chat=a_chat(t=t), scope=scope), ks=KS, chat=True, sampled=sampled, **flags
    ),
    st.sampled_from(ASKS),
    st.floats(0.0, 1.0),
    st.sampled_from([None, Scope(0.02, {NEARNESS: 0.5, "search.cosine": 0.25}, 0.75, ("LATIN",), "all")]),
    st.builds(Sampled, st.just(0.1), st.none() | st.floats(0.0, 1.0, exclude_max=True)),
    revoked=st.booleans(),
    mandatory=st.booleans(),
)


@given(turns, worlds)
def test_every_turn_ends_within_its_bounds_and_replays(policy: Any, world: World) -> None:
    """At most one search and one probe; no answer from passages is bought; nothing is certified but the rule itself."""
    done = walk(policy, world)
    assert [*map(str, done.actions)].count("search") <= 1
    assert all(not isinstance(action, Read) or action.k == 0 for action in done.actions)
    if isinstance(done.outcome, Reply):
        assert replay(done.policy, done.available) == (done.steps, done.outcome)
        assert (done.outcome.text, done.outcome.confidence) == (None, None)
        assert done.outcome.withheld or done.policy.failure or done.outcome.k in policy.permitted
        if done.outcome.certified:
            assert isinstance(policy.kind, OneShot)
            assert done.policy.failure is None
            assert policy.alarm(done.available) is None


def test_an_artifact_needs_a_head_for_every_k() -> None:
    """A rule without its heads would always fall back."""
    with pytest.raises(ValueError, match="chat needs a probability of the answer at every k"):
        a_chat_artifact(heads=a_ladder_artifact().heads)
