"""The core's choices, executed as the loop does: always an action, within its bounds, and rightly certified."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.artifact import Artifact, Thresholds
from app.core.available import Available
from app.core.effective_policy import (
    EffectivePolicy,
    Failure,
    Fixed,
    Ladder,
    OneShot,
    Sampled,
    after_failure,
    resolve,
)
from app.core.ladder import Read, Reply, Search, Stop, next_step
from app.core.policy import AskOptions, Policy, Reason, Retrieval
from app.core.replay import replay
from app.errors import ContradictoryRequest, NoPassages, UpstreamError, UpstreamUnavailable
from tests.fakes.artifacts import (
    TAU0,
    TAU1,
    TAU_ABSTAIN,
    TAU_BINARY,
    a_fit,
    a_line,
    an_abstention,
    an_artifact,
    an_uncertified_fit,
    closed_book,
)
from tests.fakes.random_walks import KS, NOTHING_FOUND, SEARCH_DOWN, policies, worlds
from tests.fakes.walks import READER_DOWN, Walk, World, walk

# The least that the signals of these artifacts hold exactly, and so do their probabilities.
BIT = 2.0**-40
CERTIFIED = an_artifact()
UNCERTIFIED = an_artifact(
    policies={"graded": an_uncertified_fit(), "binary": an_uncertified_fit(TAU_BINARY, TAU_BINARY)},
    abstention=an_abstention(certificate=None),
)


def sure(**probabilities: float) -> World:
    """A world whose answers have these probabilities: `sure(k0=0.9, k5=0.4)`."""
    return World({int(name[1:]): closed_book(p) for name, p in probabilities.items()})


def asked(ask: AskOptions, world: World, artifact: Artifact | None = CERTIFIED, **more: Any) -> Walk:
    return walk(resolve(ask, artifact, ks=KS, **more), world)


# What holds of every walk


@given(policies, worlds)
def test_every_walk_ends_and_respects_its_bounds(policy: EffectivePolicy, world: World) -> None:
    """At most one search, no answer read twice, passages before reading, and k within the bounds."""
    done = walk(policy, world)
    searches = [action for action in done.actions if isinstance(action, Search)]
    reads = [action.k for action in done.actions if isinstance(action, Read)]
    assert len(searches) <= 1
    assert len(reads) == len(set(reads))
    if policy.maximum == 0 and not policy.explored:
        assert not searches
    if isinstance(done.outcome, Reply) and not done.outcome.withheld:
        assert done.outcome.k in policy.permitted or (policy.chat and done.policy.failure)
        if done.policy.failure is None:
            assert policy.minimum <= done.outcome.k <= policy.maximum


@given(policies, worlds)
def test_certified_is_only_what_was_certified(policy: EffectivePolicy, world: World) -> None:
    """No failure, no exploration, no missing signal, no rule and no `required`."""
    done = walk(policy, world)
    if isinstance(done.outcome, Reply) and done.outcome.certified:
        assert policy.certifiable
        assert done.policy.failure is None
        assert not policy.explored
        assert not policy.required
        assert policy.thresholds is not None or isinstance(policy.kind, Ladder | OneShot)


@given(policies, worlds)
def test_a_confidence_is_that_of_the_answer_given(policy: EffectivePolicy, world: World) -> None:
    """Computed by the head of its k in the last state; what chat writes has none, and nothing out of scope has."""
    done = walk(policy, world)
    if isinstance(done.outcome, Reply) and isinstance(last := done.actions[-1], Stop):
        none = last.k is None or policy.chat or done.steps[-1].out_of_scope
        expected = None if none else policy.probability(done.available, last.k)
        assert done.outcome.confidence == (None if expected is None else pytest.approx(expected, abs=1e-8))


@given(policies, worlds)
def test_what_is_streamed_is_never_taken_back(policy: EffectivePolicy, world: World) -> None:
    """An answer that is streamed while it is read is the one that is given, whatever failed before."""
    done = walk(policy, world)
    if done.live:
        assert (done.reply.k, done.reply.text) == (done.live[-1], f"answer at {done.live[-1]}")
        assert len(done.live) == 1


@given(policies, worlds)
def test_every_walk_replays(policy: EffectivePolicy, world: World) -> None:
    """The policy and what was available in the end give the same steps and the same reply, failures included."""
    done = walk(policy, world)
    steps, reply = replay(done.policy, done.available)
    if isinstance(done.outcome, Reply):
        assert (steps, reply) == (done.steps, done.outcome)


@pytest.mark.parametrize(
    ("failure", "actions"),
    [
        (None, [Read(0), Search()]),
        (Failure(READER_DOWN, 0), [Read(0), Search(), Stop(0)]),
        (Failure(SEARCH_DOWN, 0), [Read(0), Search(), Stop(0)]),
    ],
)
def test_a_result_that_was_not_recorded(failure: Failure | None, actions: list[Search | Read | Stop]) -> None:
    """Without a failure there is no reply: this cannot be the whole record of a decision."""
    probe = World({0: closed_book(0.4)}).read(0)
    policy = replace(resolve(AskOptions(), CERTIFIED, ks=KS), failure=failure)
    steps, reply = replay(policy, Available().answered(probe))
    assert [step.action for step in steps] == actions
    assert (reply is None) == (failure is None)


def test_a_replay_that_would_have_raised_has_no_reply() -> None:
    """A question that failed leaves no record, so no record replays to an error."""
    policy = replace(resolve(AskOptions(Policy.ALWAYS), None, ks=KS), failure=Failure(SEARCH_DOWN, 0))
    assert replay(policy, Available())[1] is None


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans())
def test_more_confidence_never_reads_more(p: float, q: float, required: bool) -> None:
    """K never increases with the probability that the closed-book answer is right."""
    ask = AskOptions(Policy.GRADED, Retrieval.REQUIRED if required else Retrieval.AUTO)
    low, high = sorted((p, q))
    assert asked(ask, sure(k0=high)).reply.k <= asked(ask, sure(k0=low)).reply.k


# The policies


@pytest.mark.parametrize(
    ("policy", "p0", "k", "why"),
    [
        (Policy.GRADED, TAU0, 0, Reason.CONFIDENT),
        (Policy.GRADED, TAU0 - BIT, 1, Reason.BORDERLINE),
        (Policy.GRADED, TAU1, 1, Reason.BORDERLINE),
        (Policy.GRADED, TAU1 - BIT, 5, Reason.UNCERTAIN),
        (Policy.BINARY, TAU_BINARY, 0, Reason.CONFIDENT),
        (Policy.BINARY, TAU_BINARY - BIT, 5, Reason.UNCERTAIN),
    ],
)
def test_a_probability_equal_to_a_threshold_has_reached_it(policy: Policy, p0: float, k: int, why: Reason) -> None:
    """At the thresholds of graded and binary; all are certified."""
    done = asked(AskOptions(policy, abstain=False), sure(k0=p0))
    assert (done.reply.k, done.reply.reason, done.reply.certified) == (k, why, True)
    expected = [Read(0), Stop(0)] if k == 0 else [Read(0), Search(), Read(k), Stop(k)]
    assert done.actions == expected
    assert done.steps[-1].p == p0


@pytest.mark.parametrize(
    ("ask", "more", "k", "why"),
    [
        (AskOptions(Policy.ALWAYS), {}, 5, Reason.RETRIEVAL_REQUIRED),
        (AskOptions(), {"artifact": None}, 5, Reason.NOT_CALIBRATED),
        (AskOptions(), {"artifact": UNCERTIFIED}, 1, Reason.NOT_CERTIFIED),
        (AskOptions(), {"revoked": True}, 1, Reason.NOT_CERTIFIED),
        (AskOptions(), {"bypassed": True}, 1, Reason.BYPASSED),
        (AskOptions(), {"artifact": None, "mandatory": True}, 5, Reason.NOT_CALIBRATED),
        (AskOptions(), {"artifact": UNCERTIFIED, "mandatory": True}, 1, Reason.NOT_CERTIFIED),
    ],
)
def test_where_no_probability_may_decide_no_probe_is_read(
    ask: AskOptions, more: dict[str, Any], k: int, why: Reason
) -> None:
    """A fixed number of passages, uncertified."""
    done = asked(ask, sure(k0=0.9, k1=0.9, k5=0.9), **more)
    assert done.actions == [Search(), Read(k), Stop(k)]
    assert (done.reply.k, done.reply.reason, done.reply.certified) == (k, why, False)


@pytest.mark.parametrize(("tau0", "tau1", "k", "why"), [(2.0, 0.0, 1, Reason.BORDERLINE), (2, 2, 5, Reason.UNCERTAIN)])
def test_thresholds_that_always_lead_to_the_same_k_need_no_probe(tau0: float, tau1: float, k: int, why: Reason) -> None:
    """A certified fixed action is served without a probe, and stays certified."""
    done = asked(AskOptions(abstain=False), sure(), an_artifact(policies={"graded": a_fit(tau0, tau1)}))
    assert done.actions == [Search(), Read(k), Stop(k)]
    assert (done.reply.reason, done.reply.certified) == (why, True)
    assert done.policy.thresholds == Thresholds(tau0, tau1)


def test_uncertified_thresholds_decide_where_the_operator_allows_them() -> None:
    """The reply is not certified."""
    done = asked(AskOptions(), sure(k0=0.9), UNCERTIFIED, allow_uncertified=True)
    assert (done.reply.k, done.reply.reason, done.reply.certified) == (0, Reason.CONFIDENT, False)


def test_a_missing_signal_reads_the_most() -> None:
    """The reply is not certified."""
    done = asked(AskOptions(), World())
    assert (done.reply.k, done.reply.reason, done.reply.certified) == (5, Reason.NO_SIGNAL, False)


@pytest.mark.parametrize(
    ("ask", "p0", "k"),
    [
        (AskOptions(Policy.GRADED, Retrieval.REQUIRED), 0.9, 1),
        (AskOptions(Policy.GRADED, Retrieval.REQUIRED), 0.1, 5),
        (AskOptions(Policy.BINARY, Retrieval.REQUIRED), 0.9, 5),
    ],
)
def test_required_takes_k0_away(ask: AskOptions, p0: float, k: int) -> None:
    """Graded still probes to choose between one passage and five; binary always reads five, so it does not."""
    done = asked(ask, sure(k0=p0, k1=0.9, k5=0.9))
    assert (Read(0) in done.actions) == (ask.policy is Policy.GRADED)
    assert (done.reply.k, done.reply.reason, done.reply.certified) == (k, Reason.RETRIEVAL_REQUIRED, False)


def test_a_mandatory_rule_is_the_operators_required() -> None:
    """The same bound as the caller's; it does not apply where the caller forbids passages."""
    world = sure(k0=0.9, k1=0.9)
    assert asked(AskOptions(), world, mandatory=True) == asked(AskOptions(Policy.GRADED, Retrieval.REQUIRED), world)
    forbidden = asked(AskOptions(Policy.GRADED, Retrieval.FORBIDDEN), world, mandatory=True)
    assert (forbidden.reply.k, forbidden.reply.reason) == (0, Reason.RETRIEVAL_FORBIDDEN)


@pytest.mark.parametrize("ask", [AskOptions(Policy.NEVER), AskOptions(Policy.GRADED, Retrieval.FORBIDDEN)])
def test_forbidden_gives_the_probe(ask: AskOptions) -> None:
    """With its confidence, uncertified, and without a search."""
    done = asked(ask, sure(k0=0.375))
    assert done.actions == [Read(0), Stop(0)]
    assert (done.reply.reason, done.reply.confidence) == (Reason.RETRIEVAL_FORBIDDEN, 0.375)
    assert not done.reply.certified


@pytest.mark.parametrize(
    ("policy", "retrieval"), [(Policy.ALWAYS, Retrieval.FORBIDDEN), (Policy.NEVER, Retrieval.REQUIRED)]
)
def test_a_contradiction_is_refused(policy: Policy, retrieval: Retrieval) -> None:
    """`always` with `forbidden`, and `never` with `required`."""
    with pytest.raises(ContradictoryRequest, match="drop one of them"):
        AskOptions(policy, retrieval)


# Certificates


@pytest.mark.parametrize(
    ("ask", "artifact", "certified"),
    [
        (AskOptions(), CERTIFIED, True),
        (AskOptions(filtered=True), CERTIFIED, False),
        (AskOptions(Policy.BINARY), CERTIFIED, False),
        (AskOptions(Policy.BINARY, abstain=False), CERTIFIED, True),
        (AskOptions(), an_artifact(abstention=an_abstention(certificate=None)), True),
    ],
)
def test_what_a_certificate_covers(ask: AskOptions, artifact: Artifact, certified: bool) -> None:
    """No filter, and no abstention except the certified one, which is that of graded."""
    assert asked(ask, sure(k0=0.9), artifact).reply.certified == certified


# Abstention


@pytest.mark.parametrize(("p", "withheld"), [(TAU_ABSTAIN, False), (TAU_ABSTAIN - BIT, True)])
@pytest.mark.parametrize("k", [1, 5])
def test_an_answer_below_tau_is_withheld(k: int, p: float, withheld: bool) -> None:
    """By its own confidence, where the caller allows it; the reply still has the k that was read."""
    world = sure(k0=TAU1 if k == 1 else 0.0, **{f"k{k}": p})
    reply = asked(AskOptions(), world).reply
    assert (reply.k, reply.withheld, reply.confidence, reply.certified) == (k, withheld, p, True)
    assert (reply.text is None) == withheld
    assert (reply.reason is Reason.LOW_CONFIDENCE) == withheld
    assert not asked(AskOptions(abstain=False), world).reply.withheld


def test_a_missing_confidence_never_withholds() -> None:
    """It is unknown, which is not the same as low."""
    reply = asked(AskOptions(), sure(k0=0.0)).reply
    assert (reply.k, reply.confidence, reply.withheld) == (5, None, False)


def test_uncertified_abstention_withholds_only_where_allowed() -> None:
    """With `allow_uncertified`; a revoked calibrator withholds nothing."""
    artifact, world = an_artifact(abstention=an_abstention(certificate=None)), sure(k0=0.0, k1=0.0, k5=0.0)
    assert not asked(AskOptions(), world, artifact).reply.withheld
    assert asked(AskOptions(), world, artifact, allow_uncertified=True).reply.withheld
    assert not asked(AskOptions(), world, revoked=True).reply.withheld


# Failures


@pytest.mark.parametrize(
    ("error", "why"), [(SEARCH_DOWN, Reason.RETRIEVAL_FAILED), (NOTHING_FOUND, Reason.NO_PASSAGES)]
)
@pytest.mark.parametrize(
    ("p0", "abstain", "outcome"),
    [(0.3, True, "given"), (0.3, False, "given"), (0.1, True, "withheld"), (0.1, False, "raised")],
)
def test_without_passages_the_probe_must_pass_tau(
    error: UpstreamError | NoPassages, why: Reason, p0: float, abstain: bool, outcome: str
) -> None:
    """Given if it does, else withheld, else the failure is raised."""
    done = asked(AskOptions(abstain=abstain), replace(sure(k0=p0), search=error))
    if outcome == "raised":
        assert done.outcome is error
        return
    assert (done.reply.k, done.reply.reason, done.reply.withheld) == (0, why, outcome == "withheld")
    assert not done.reply.certified


def test_the_probe_is_read_late_where_only_a_failed_search_needs_it() -> None:
    """`always` reads without a probe; after a failed search the probe is read instead."""
    done = asked(AskOptions(Policy.ALWAYS), replace(sure(k0=0.9), search=SEARCH_DOWN))
    assert done.actions == [Search(), Read(0), Stop(0)]


def test_a_second_failure_ends_the_walk() -> None:
    """The error of the second failure is raised."""
    policy = after_failure(resolve(AskOptions(Policy.ALWAYS), CERTIFIED, ks=KS), Available(), SEARCH_DOWN)
    assert next_step(policy, Available()).action == Read(0)
    with pytest.raises(UpstreamUnavailable):
        after_failure(policy, Available(), SEARCH_DOWN)


@pytest.mark.parametrize("more", [{"artifact": None}, {"mandatory": True}])
def test_a_failed_search_is_raised_where_no_probe_may_be_given(more: dict[str, Any]) -> None:
    """Nothing is calibrated, or passages are required."""
    done = asked(AskOptions(), replace(sure(k0=0.9), search=SEARCH_DOWN), **more)
    assert done.outcome is SEARCH_DOWN


@pytest.mark.parametrize("abstain", [True, False])
def test_required_and_nothing_found(abstain: bool) -> None:
    """Abstain where that is allowed, without a confidence; else raise."""
    done = asked(AskOptions(Policy.GRADED, Retrieval.REQUIRED, abstain), replace(sure(k0=0.9), search=NOTHING_FOUND))
    if not abstain:
        assert done.outcome is NOTHING_FOUND
        return
    assert done.actions[-1] == Stop(None)
    assert (done.reply.withheld, done.reply.reason, done.reply.confidence) == (True, Reason.NO_PASSAGES, None)


def test_a_failed_read_gives_the_available_answer() -> None:
    """Uncertified, with the reason `degraded`; withheld if it is below tau."""
    done = asked(AskOptions(), replace(sure(k0=0.4), broken=frozenset({5})))
    assert done.actions == [Read(0), Search(), Read(5), Stop(0)]
    assert (done.reply.k, done.reply.reason, done.reply.certified) == (0, Reason.DEGRADED, False)
    low = asked(AskOptions(), replace(sure(k0=0.1), broken=frozenset({5})))
    assert (low.reply.withheld, low.reply.reason) == (True, Reason.LOW_CONFIDENCE)


@pytest.mark.parametrize(
    ("ask", "broken"),
    [(AskOptions(), 0), (AskOptions(Policy.ALWAYS), 5), (AskOptions(Policy.GRADED, Retrieval.REQUIRED), 5)],
)
def test_a_failed_read_is_raised_where_nothing_may_be_given(ask: AskOptions, broken: int) -> None:
    """There is no answer yet, or only one without the passages that are required."""
    assert asked(ask, replace(sure(k0=0.0), broken=frozenset({broken}))).outcome is READER_DOWN


# Exploration


@pytest.mark.parametrize(("draw", "k"), [(0.0, 0), (0.34, 1), (0.99, 5)])
def test_exploration_draws_among_the_permitted_ks(draw: float, k: int) -> None:
    """Uniformly, after the probe that shows what the policy would choose; never certified."""
    done = asked(AskOptions(), sure(k0=0.9, k1=0.9, k5=0.9), sampled=Sampled(0.1, draw))
    assert (done.reply.k, done.reply.reason, done.reply.certified) == (k, Reason.EXPLORED, False)
    assert done.steps[-1].wanted == 0
    assert done.actions[0] == Read(0)
    required = asked(AskOptions(Policy.GRADED, Retrieval.REQUIRED), sure(k0=0.9), sampled=Sampled(0.1, draw))
    assert required.reply.k == (1 if draw < 0.5 else 5)


@pytest.mark.parametrize(
    "ask", [AskOptions(Policy.ALWAYS), AskOptions(Policy.NEVER), AskOptions(Policy.GRADED, Retrieval.FORBIDDEN)]
)
def test_only_what_a_probability_decides_is_explored(ask: AskOptions) -> None:
    """The caller's choice and a fixed k are not explored, and no share is recorded."""
    policy = resolve(ask, CERTIFIED, ks=KS, sampled=Sampled(0.1, 0.99, solicit=True))
    assert isinstance(policy.kind, Fixed)
    assert policy.sampled == Sampled(solicit=True)


def test_a_mandatory_rule_is_not_explored() -> None:
    """A refit assumes that each explored question could have been answered at any k."""
    policy = resolve(AskOptions(), CERTIFIED, ks=KS, mandatory=True, sampled=Sampled(0.1, 0.99))
    assert policy.sampled == Sampled()
    assert resolve(AskOptions(Policy.GRADED, Retrieval.REQUIRED), CERTIFIED, ks=KS, sampled=Sampled(0.1, 0.99)).explored


def test_an_explored_question_whose_search_fails_falls_back_like_any_other() -> None:
    """The bound of the exploration does not prevent the fallback."""
    done = asked(AskOptions(), replace(sure(k0=0.9), search=SEARCH_DOWN), sampled=Sampled(0.1, 0.99))
    assert (done.reply.k, done.reply.reason) == (0, Reason.RETRIEVAL_FAILED)


# Other rungs


def test_the_values_of_k_are_data() -> None:
    """Graded reads the smallest k above 0 or the largest of its artifact; the settings may have others too."""
    ks = (0, 2, 8, 10)
    artifact = an_artifact(ks=ks, calibrators={k: a_line() for k in ks}, fallback_k=8)
    for p0, k in ((0.9, 0), (0.6, 2), (0.3, 10)):
        world = World({0: closed_book(p0), 2: closed_book(0.9), 10: closed_book(0.9)})
        assert walk(resolve(AskOptions(), artifact, ks=ks), world).reply.k == k
    assert walk(resolve(AskOptions(), artifact, ks=ks, revoked=True), World()).reply.k == 8
    assert walk(resolve(AskOptions(), CERTIFIED, ks=(*KS, 10)), sure(k0=0.4)).reply.k == 5
    assert walk(resolve(AskOptions(Policy.ALWAYS), CERTIFIED, ks=(*KS, 10)), World()).reply.k == 10


def test_the_state_names_what_is_available() -> None:
    """In the order of k, with the search first."""
    done = asked(AskOptions(), sure(k0=0.1, k5=0.9))
    assert [step.state for step in done.steps] == ["", "k0", "search+k0", "search+k0+k5"]
