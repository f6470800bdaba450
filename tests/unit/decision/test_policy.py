"""The policy: total, monotone, documented at its boundaries, and never sure of what it was not told."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.decision.artifact import FIXED, Artifact, Thresholds
from app.decision.policy import (
    Ask,
    Decision,
    Fallback,
    Gate,
    Policy,
    Reason,
    Retrieval,
    confidence_of,
    decide,
    decide_mandatory,
    mandatory_applies,
    needs_probe,
    route,
    settle,
    without_passages,
)
from app.errors import ContradictoryRequest
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

KS = (0, 1, 5)
GRADED, BINARY = Ask(Policy.GRADED), Ask(Policy.BINARY)
ASKS = [
    Ask(policy, retrieval, abstain, filtered)
    for policy, retrieval, abstain, filtered in itertools.product(Policy, Retrieval, (True, False), (True, False))
    if (policy, retrieval) not in {(Policy.ALWAYS, Retrieval.FORBIDDEN), (Policy.NEVER, Retrieval.REQUIRED)}
]
UNCERTIFIED = an_artifact(
    policies={"graded": an_uncertified_fit(), "binary": an_uncertified_fit(TAU_BINARY, TAU_BINARY)},
    abstention=an_abstention(certificate=None),
)

probability = st.floats(0.0, 1.0)
closed_book_signals: st.SearchStrategy[dict[str, float]] = st.one_of(
    probability.map(closed_book), st.just({}), st.just({"seq_logprob": math.nan}), st.just({"margin": 1.0})
)


@st.composite
def artifacts(draw: st.DrawFn) -> Artifact:
    """Artifacts of every kind: with and without each calibrator, policy and certificate."""
    tau1, tau0 = sorted((draw(st.floats(0.0, 2.0)), draw(st.floats(0.0, 2.0))))
    tau = draw(st.floats(0.0, 2.0))
    fits = {
        "graded": draw(st.sampled_from([None, a_fit(tau0, tau1), an_uncertified_fit(tau0, tau1)])),
        "binary": draw(st.sampled_from([None, a_fit(tau, tau), an_uncertified_fit(tau, tau)])),
    }
    optional = draw(st.sets(st.sampled_from([1, 5])))
    return an_artifact(
        calibrators={0: a_line(), **dict.fromkeys(optional, a_line(0.25, 0.75))},
        policies={name: fit for name, fit in fits.items() if fit is not None},
        abstention=draw(st.sampled_from([an_abstention(), an_abstention(certificate=None)])),
        fallback_action=draw(st.sampled_from([1, 5])),
    )


gates = st.builds(Gate, st.none() | artifacts(), st.booleans(), st.booleans(), st.booleans())


def k_of(ask: Ask, gate: Gate, p0: float) -> int:
    return decide(ask, gate, closed_book(p0)).k


# What a request may ask


@pytest.mark.parametrize(
    ("policy", "retrieval"), [(Policy.ALWAYS, Retrieval.FORBIDDEN), (Policy.NEVER, Retrieval.REQUIRED)]
)
def test_a_contradiction_is_refused(policy: Policy, retrieval: Retrieval) -> None:
    """Always with forbidden, and never with required, cannot both be meant."""
    with pytest.raises(ContradictoryRequest, match="drop one of them"):
        Ask(policy, retrieval)


# What holds of every decision


@given(st.sampled_from(ASKS), gates, closed_book_signals)
def test_decide_is_total(ask: Ask, gate: Gate, signals: dict[str, float]) -> None:
    """Every request gets 0, 1 or 5 passages and a reason, whatever is missing; certified only of the certified."""
    decision = decide(ask, gate, signals)
    assert decision.k in {0, 1, 5}
    assert isinstance(decision.reason, Reason)
    if decision.certified:
        assert gate.artifact is not None
        assert gate.artifact.policies[ask.policy.value].certificate is not None
        assert {gate.revoked, gate.bypassed, ask.filtered} == {False}
        assert ask.retrieval is Retrieval.AUTO
        assert decision.thresholds == gate.artifact.policies[ask.policy.value].thresholds


@given(st.sampled_from(ASKS), gates, closed_book_signals)
def test_what_the_caller_rules_out_never_happens(ask: Ask, gate: Gate, signals: dict[str, float]) -> None:
    """Required never answers closed-book, forbidden never reads, and always and never do as they say."""
    decision = decide(ask, gate, signals)
    if ask.retrieval is Retrieval.REQUIRED:
        assert decision.k > 0
    if ask.retrieval is Retrieval.FORBIDDEN or ask.policy is Policy.NEVER:
        assert (decision.k, decision.reason) == (0, Reason.RETRIEVAL_FORBIDDEN)
    if ask.policy is Policy.ALWAYS:
        assert decision == Decision(5, Reason.RETRIEVAL_REQUIRED)


@given(
    st.sampled_from([Policy.GRADED, Policy.BINARY]),
    st.sampled_from([Retrieval.AUTO, Retrieval.REQUIRED]),
    gates,
    probability,
    probability,
)
def test_a_higher_probability_never_reads_more(
    policy: Policy, retrieval: Retrieval, gate: Gate, one: float, other: float
) -> None:
    """Under graded and binary, required or not, being surer never costs another passage."""
    ask = Ask(policy, retrieval)
    low, high = sorted((one, other))
    assert k_of(ask, gate, high) <= k_of(ask, gate, low)


@given(st.sampled_from(ASKS), gates, closed_book_signals, closed_book_signals)
def test_where_no_probe_is_needed_signals_change_nothing(
    ask: Ask, gate: Gate, one: dict[str, float], other: dict[str, float]
) -> None:
    """Where `needs_probe` says no, as many passages are read for the same reason, with any signals or none."""
    if not needs_probe(ask, gate):
        outcomes = {
            (decision.k, decision.reason, decision.certified)
            for decision in (decide(ask, gate, signals) for signals in (one, other, {}))
        }
        assert len(outcomes) == 1
        assert decide(ask, gate, {}).k > 0


@pytest.mark.parametrize("ask", ASKS, ids=str)
def test_a_probe_is_always_there_to_be_the_answer(ask: Ask) -> None:
    """Whoever may be answered closed-book is probed first."""
    artifacts_in_force = (None, an_artifact(), UNCERTIFIED)
    for artifact, flags in itertools.product(artifacts_in_force, itertools.product((True, False), repeat=3)):
        gate = Gate(artifact, flags[0], flags[1], flags[2])
        if any(decide(ask, gate, signals).k == 0 for signals in ({}, closed_book(1.0), closed_book(0.0))):
            assert needs_probe(ask, gate)


# Boundaries


@pytest.mark.parametrize(
    ("p0", "k", "reason"),
    [
        (1.0, 0, Reason.CONFIDENT),
        (TAU0, 0, Reason.CONFIDENT),
        (math.nextafter(TAU0, 0.0), 1, Reason.BORDERLINE),
        (TAU1, 1, Reason.BORDERLINE),
        (math.nextafter(TAU1, 0.0), 5, Reason.UNCERTAIN),
        (0.0, 5, Reason.UNCERTAIN),
    ],
)
def test_graded_boundaries(p0: float, k: int, reason: Reason) -> None:
    """A probability equal to a threshold has reached it; the next one below has not."""
    assert route(p0, Thresholds(TAU0, TAU1), KS) == (k, reason)


@pytest.mark.parametrize(("p0", "k"), [(1.0, 0), (TAU_BINARY, 0), (math.nextafter(TAU_BINARY, 0.0), 5), (0.0, 5)])
def test_binary_boundaries(p0: float, k: int) -> None:
    """Equal thresholds never read one passage."""
    assert route(p0, Thresholds(TAU_BINARY, TAU_BINARY), KS)[0] == k


@pytest.mark.parametrize(("p0", "k"), [(1.0, 1), (TAU0, 1), (TAU1, 1), (math.nextafter(TAU1, 0.0), 5), (0.0, 5)])
def test_required_boundaries(p0: float, k: int) -> None:
    """With k=0 taken away, tau1 chooses between one passage and five."""
    assert route(p0, Thresholds(TAU0, TAU1), KS, required=True) == (k, Reason.RETRIEVAL_REQUIRED)


def test_required_without_a_region_for_one_passage() -> None:
    """Where both thresholds are equal only five passages are left."""
    assert {route(p0, Thresholds(0.5, 0.5), KS, required=True)[0] for p0 in (0.0, 0.5, 1.0)} == {5}
    assert {route(p0, FIXED[1], KS, required=True)[0] for p0 in (0.0, 0.5, 1.0)} == {1}


def test_a_decision_carries_its_numbers() -> None:
    """The decision shows the probabilities and thresholds behind it."""
    assert decide(GRADED, Gate(an_artifact()), closed_book(0.5)) == Decision(
        k=1,
        reason=Reason.BORDERLINE,
        p0=0.5,
        thresholds=Thresholds(TAU0, TAU1),
        certified=True,
    )
    assert decide(BINARY, Gate(an_artifact()), closed_book(TAU_BINARY)).k == 0


@pytest.mark.parametrize("retrieval", [Retrieval.AUTO, Retrieval.REQUIRED])
@pytest.mark.parametrize("k", [1, 5])
def test_a_fixed_action_needs_no_probe(k: int, retrieval: Retrieval) -> None:
    """Thresholds that read k passages at any probability do so without one, and lose no certificate by it."""
    ask = Ask(retrieval=retrieval)
    gate = Gate(an_artifact(policies={"graded": replace(a_fit(), thresholds=FIXED[(0, 1, 5).index(k)])}))
    assert not needs_probe(ask, gate)
    for signals in ({}, closed_book(0.0), closed_book(1.0)):
        decision = decide(ask, gate, signals)
        assert (decision.k, decision.certified) == (k, retrieval is Retrieval.AUTO)
    closed_book_always = Gate(an_artifact(policies={"graded": replace(a_fit(), thresholds=FIXED[0])}))
    # The probe is the answer there, unless passages are required, and then five are all that is left.
    assert needs_probe(ask, closed_book_always) == (retrieval is Retrieval.AUTO)


# What a mandatory rule does


def test_a_mandatory_rule_reads_the_fallback() -> None:
    """As many passages as the artifact's fallback, five without an artifact; never certified."""
    assert decide_mandatory(Gate()) == Decision(5, Reason.RETRIEVAL_REQUIRED)
    for fallback in (1, 5):
        gate = Gate(an_artifact(fallback_action=fallback))
        assert decide_mandatory(gate) == Decision(fallback, Reason.RETRIEVAL_REQUIRED)


@pytest.mark.parametrize("ask", ASKS, ids=str)
def test_what_a_caller_rules_out_stands_above_a_rule(ask: Ask) -> None:
    """A rule has no say where passages are forbidden, or where all of them or none were asked for."""
    fixed = ask.policy in {Policy.ALWAYS, Policy.NEVER}
    assert mandatory_applies(ask) is not (fixed or ask.retrieval is Retrieval.FORBIDDEN)


# What happens when something is missing


def test_not_calibrated_reads_five() -> None:
    """Without a matching artifact every question reads five passages, and no probe is paid for."""
    for ask in (GRADED, BINARY, Ask(Policy.GRADED, Retrieval.REQUIRED)):
        assert decide(ask, Gate(), closed_book(1.0)) == Decision(5, Reason.NOT_CALIBRATED)
        assert not needs_probe(ask, Gate())


@pytest.mark.parametrize("signals", [{}, {"seq_logprob": math.nan}, {"margin": 9.0}], ids=["none", "nan", "other"])
def test_no_signal_reads_five(signals: dict[str, float]) -> None:
    """A probe that says nothing is doubt, even where thresholds would answer anything closed-book."""
    artifact = an_artifact(policies={"graded": a_fit(0.0, 0.0)})
    decision = decide(GRADED, Gate(artifact), signals)
    assert (decision.k, decision.reason, decision.p0, decision.certified) == (5, Reason.NO_SIGNAL, None, False)


@pytest.mark.parametrize("fallback", [1, 5])
def test_an_uncertified_artifact_serves_its_fallback(fallback: int) -> None:
    """Uncertified, unknown to the artifact, or revoked: the best fixed action on train, without a probe."""
    uncertified = Gate(replace(UNCERTIFIED, fallback_action=fallback))
    absent = Gate(an_artifact(policies={}, fallback_action=fallback), allow_uncertified=True)
    revoked = Gate(an_artifact(fallback_action=fallback), allow_uncertified=True, revoked=True)
    for gate in (uncertified, absent, revoked):
        for ask in (GRADED, BINARY):
            decision = decide(ask, gate, closed_book(1.0))
            assert (decision.k, decision.reason, decision.certified) == (fallback, Reason.NOT_CERTIFIED, False)
            assert not needs_probe(ask, gate)


@pytest.mark.parametrize("ask", [GRADED, BINARY], ids=lambda ask: ask.policy.value)
def test_a_bypassed_artifact_serves_its_fallback(ask: Ask) -> None:
    """A bypass reads the fallback for every policy that would have gated, and says so."""
    gate = Gate(an_artifact(), bypassed=True)
    decision = decide(ask, gate, closed_book(1.0))
    assert (decision.k, decision.reason, decision.certified) == (1, Reason.BYPASSED, False)
    assert not needs_probe(ask, gate)


def test_an_operator_may_allow_the_uncertified() -> None:
    """Thresholds without a certificate serve where allowed, and every decision says that they have none."""
    gate = Gate(UNCERTIFIED, allow_uncertified=True)
    for p0, k in ((TAU0, 0), (TAU1, 1), (0.0, 5)):
        decision = decide(GRADED, gate, closed_book(p0))
        assert (decision.k, decision.certified) == (k, False)
        assert decision.thresholds == Thresholds(TAU0, TAU1)
    assert needs_probe(GRADED, gate)


def test_certified_is_only_what_was_certified() -> None:
    """A filter, a requirement, or an abstention that is not certified itself drops `certified`, not the decision."""
    gate, signals = Gate(an_artifact()), closed_book(TAU1)
    assert decide(GRADED, gate, signals).certified
    filtered = decide(Ask(filtered=True), gate, signals)
    assert (filtered.k, filtered.p0, filtered.certified) == (1, TAU1, False)
    assert not decide(Ask(retrieval=Retrieval.REQUIRED), gate, signals).certified
    loose = Gate(an_artifact(abstention=an_abstention(certificate=None)), allow_uncertified=True)
    assert not decide(GRADED, loose, signals).certified
    assert decide(Ask(abstain=False), loose, signals).certified
    # Abstention is certified for the graded policy's answers; the binary one is certified where nothing is withheld.
    assert not decide(BINARY, gate, signals).certified
    assert decide(replace(BINARY, abstain=False), gate, signals).certified
    # Not allowed, an uncertified abstention withholds nothing, so nothing uncertified runs.
    assert decide(GRADED, replace(loose, allow_uncertified=False), signals).certified


# Withholding


@pytest.mark.parametrize(
    ("confidence", "withheld"),
    [(0.0, True), (math.nextafter(TAU_ABSTAIN, 0.0), True), (TAU_ABSTAIN, False), (1.0, False), (None, False)],
)
def test_settle_withholds_below_its_threshold(confidence: float | None, withheld: bool) -> None:
    """An answer below tau is withheld, one at tau is given, and a missing confidence is not a low one."""
    gate = Gate(an_artifact())
    assert settle(GRADED, gate, confidence) is withheld
    assert settle(Ask(abstain=False), gate, confidence) is False
    assert settle(GRADED, Gate(), confidence) is False
    assert settle(GRADED, replace(gate, revoked=True), confidence) is False
    assert settle(GRADED, replace(gate, bypassed=True), confidence) is withheld
    assert settle(GRADED, Gate(UNCERTIFIED), confidence) is False
    assert settle(GRADED, Gate(UNCERTIFIED, allow_uncertified=True), confidence) is withheld


@pytest.mark.parametrize("found_nothing", [True, False])
@pytest.mark.parametrize("abstain", [True, False])
@pytest.mark.parametrize("p0", [None, 0.0, math.nextafter(TAU_ABSTAIN, 0.0), TAU_ABSTAIN, 1.0])
@pytest.mark.parametrize("tau", [TAU_ABSTAIN, None])
@pytest.mark.parametrize("retrieval", [Retrieval.AUTO, Retrieval.REQUIRED])
def test_without_passages(
    retrieval: Retrieval, tau: float | None, p0: float | None, abstain: bool, found_nothing: bool
) -> None:
    """The whole table of what is left to do without evidence."""
    gate = Gate(an_artifact() if tau is not None else UNCERTIFIED)
    if retrieval is Retrieval.REQUIRED:
        # A search that worked is knowledge; one that failed, or one that an answer was insisted on from, is not.
        expected = Fallback.ABSTAIN if found_nothing and abstain else Fallback.REFUSE
    elif tau is not None and p0 is not None and p0 >= tau:
        # It would have passed as an answer with evidence at hand, so it does whatever is said about abstaining.
        expected = Fallback.ANSWER
    elif not abstain or p0 is None:
        expected = Fallback.REFUSE
    else:
        expected = Fallback.ABSTAIN
    assert (
        without_passages(Ask(retrieval=retrieval, abstain=abstain), gate, p0, found_nothing=found_nothing) is expected
    )


def test_without_passages_or_calibrator() -> None:
    """Where nothing is calibrated nothing is known, and the question is refused."""
    for abstain, found_nothing in itertools.product((True, False), repeat=2):
        assert without_passages(Ask(abstain=abstain), Gate(), None, found_nothing=found_nothing) is Fallback.REFUSE


# Probabilities


def test_confidence_is_that_of_the_answer_given() -> None:
    """Each k has its own calibrator; one that is not there gives no confidence."""
    calibrators = {0: a_line(), 1: a_line(0.25, 0.75), 5: a_line(0.5, 1.0)}
    artifact = an_artifact(calibrators=calibrators)
    assert [confidence_of(artifact, k, closed_book(0.0)) for k in (0, 1, 5)] == [0.0, 0.25, 0.5]
    assert confidence_of(None, 5, closed_book(1.0)) is None
    assert confidence_of(an_artifact(calibrators={0: a_line()}), 1, closed_book(1.0)) is None
    assert confidence_of(artifact, 5, {}) is None
