"""Deciding before a probe is whole: by the question alone, by an operator's rule, and by a probe's first tokens."""

import math

import pytest

from app.decision.artifact import UNREACHABLE, Early
from app.decision.exits import exit_now, watched_lengths
from app.decision.mandatory import compile_rules
from app.decision.policy import Ask, Gate, Policy, Reason, Retrieval, decide
from app.decision.pregate import consider, insist, may_insist, wants_embedding
from tests.fakes.artifacts import a_foresight, an_artifact, an_early_artifact, an_uncertified_fit, closed_book

EARLY = Early(unasked=0.5, compact=0.25, exits=((1, 0.125), (4, 0.25)), exit_k=1)
GATE = Gate(an_early_artifact(EARLY))


def vector(p0: float, p1: float = 1.0) -> list[float]:
    """An embedding of which the default foresight says just this."""
    return [p0, p1] + [0.0] * 254


@pytest.mark.parametrize(
    ("p0", "p1", "k"),
    [(0.0, 1.0, 1), (0.4375, 0.25, 1), (0.4375, 0.1875, 5), (0.5, 0.0, None), (1.0, 0.0, None)],
)
def test_a_question_that_foretells_a_miss_is_not_probed(p0: float, p1: float, k: int | None) -> None:
    """Below its threshold there is no probe, and p1 chooses the passages; a probability at a threshold reached it."""
    decision = consider(Ask(), GATE, "question", vector(p0, p1))
    if k is None:
        assert decision is None
    else:
        assert decision is not None
        assert (decision.k, decision.reason, decision.p0, decision.certified) == (k, Reason.FORESEEN, p0, True)
        assert decision.thresholds is not None
        assert decision.thresholds.early == EARLY


def test_without_a_p1_the_passages_are_one_number_for_all() -> None:
    """A foresight of p0 alone reads one passage where the threshold is zero, else five."""
    alone = a_foresight()
    for compact, k in ((0.0, 1), (UNREACHABLE, 5)):
        artifact = an_early_artifact(Early(0.5, compact), foresight=type(alone)("fake-256", 256, (), alone.p0))
        decision = consider(Ask(), Gate(artifact), "question", vector(0.25))
        assert decision is not None
        assert decision.k == k


@pytest.mark.parametrize("bad", [[], [math.nan] * 256])
def test_a_vector_that_says_nothing_is_probed(bad: list[float]) -> None:
    """Nothing is foreseen from an embedding that is none: then the probe decides."""
    assert consider(Ask(), GATE, "question", bad) is None


@pytest.mark.parametrize(
    ("ask", "gate"),
    [
        (Ask(), Gate()),
        (Ask(), Gate(an_artifact())),
        (Ask(), Gate(an_early_artifact(EARLY), revoked=True)),
        (Ask(), Gate(an_early_artifact(EARLY), bypassed=True)),
        (Ask(retrieval=Retrieval.REQUIRED), GATE),
        (Ask(retrieval=Retrieval.FORBIDDEN), GATE),
        (Ask(policy=Policy.BINARY), GATE),
        (Ask(policy=Policy.UTILITY), GATE),
        (Ask(policy=Policy.ALWAYS), GATE),
        (Ask(policy=Policy.NEVER), GATE),
    ],
)
def test_nothing_is_early_but_the_policy_that_was_fitted_so(ask: Ask, gate: Gate) -> None:
    """Another policy, a caller's wish, and an artifact that has none or may not serve, leave every probe whole."""
    assert not wants_embedding(ask, gate)
    assert consider(ask, gate, "question", vector(0.0)) is None
    assert watched_lengths(ask, gate) == ()
    assert exit_now(ask, gate, 1, closed_book(0.0)) is None


def test_what_is_wanted_before_a_probe() -> None:
    """The embedding where questions are foreseen, the lengths where probes are cut, each alone where it is alone."""
    assert wants_embedding(Ask(), GATE)
    assert watched_lengths(Ask(), GATE) == (1, 4)
    exits_alone = Gate(an_early_artifact(Early(exits=((2, 0.5),))))
    assert not wants_embedding(Ask(), exits_alone)
    assert consider(Ask(), exits_alone, "question", vector(0.0)) is None
    assert watched_lengths(Ask(), Gate(an_early_artifact(Early(0.5)))) == ()


def test_a_hopeless_probe_is_cut_short() -> None:
    """Below the threshold of its length it reads what exits read; at it, at another length or unsure, it goes on."""
    decision = exit_now(Ask(), GATE, 4, closed_book(0.1875))
    assert decision is not None
    assert (decision.k, decision.reason, decision.p0, decision.certified) == (1, Reason.HOPELESS, 0.1875, True)
    assert exit_now(Ask(), GATE, 4, closed_book(0.25)) is None
    assert exit_now(Ask(), GATE, 1, closed_book(0.1875)) is None
    assert exit_now(Ask(), GATE, 2, closed_book(0.0)) is None
    assert exit_now(Ask(), GATE, 4, {}) is None


def test_a_whole_probe_is_certified_only_if_it_was_watched() -> None:
    """Thresholds that were certified with their exits are not certified without them; without any, all is as ever."""
    assert not decide(Ask(), GATE, closed_book(0.9)).certified
    assert decide(Ask(), GATE, closed_book(0.9), watched=True).certified
    assert decide(Ask(), Gate(an_artifact()), closed_book(0.9)).certified
    uncertified = an_uncertified_fit(thresholds=GATE.artifact.policies["graded"].thresholds)  # type: ignore[union-attr]
    gate = Gate(an_early_artifact(EARLY, policies={"graded": uncertified}), allow_uncertified=True)
    decision = consider(Ask(), gate, "question", vector(0.0))
    assert decision is not None
    assert not decision.certified


def test_a_rule_insists_on_passages_without_a_probe() -> None:
    """P1 chooses between one and five where it may, else the fallback reads, and five where nothing is calibrated."""
    for p1, k in ((0.25, 1), (0.0, 5)):
        decision = insist(Ask(), GATE, "latest news", vector(1.0, p1))
        assert (decision.k, decision.reason, decision.certified) == (k, Reason.RETRIEVAL_REQUIRED, False)
    assert insist(Ask(), GATE, "latest news", None).k == 1
    assert insist(Ask(), Gate(an_artifact(fallback_action=5)), "latest news", vector(1.0)).k == 5
    assert insist(Ask(), Gate(), "latest news", vector(1.0)).k == 5


def test_a_rule_has_no_say_where_the_caller_has_spoken() -> None:
    """Not where passages are forbidden, or read or refused in any case."""
    assert may_insist(Ask())
    assert may_insist(Ask(policy=Policy.UTILITY, retrieval=Retrieval.REQUIRED))
    assert not may_insist(Ask(retrieval=Retrieval.FORBIDDEN))
    assert not may_insist(Ask(policy=Policy.ALWAYS))
    assert not may_insist(Ask(policy=Policy.NEVER))


RULES = compile_rules(["today", "as of", "Ärztliche Dosis", "C++"])


@pytest.mark.parametrize(
    ("question", "rule"),
    [
        ("What is the price TODAY?", "today"),
        ("Is today's rate higher?", "today"),
        ("Population as of 2026?", "as of"),
        ("Population as  OF, say, now?", "as of"),
        ("Welche ÄRZTLICHE dosis gilt?", "Ärztliche Dosis"),
        ("Who wrote C?", "C++"),
        ("Yesterday, all my troubles", None),
        ("As if of gold", None),
        ("Of all, as", None),
        ("The last word: as", None),
        ("", None),
    ],
)
def test_a_rule_matches_whole_words_whatever_their_case(question: str, rule: str | None) -> None:
    """A phrase matches its words in order and nothing inside another word; what is between words does not count."""
    assert RULES.matches(question) == rule


def test_rules_without_a_word_are_refused() -> None:
    """A rule that nothing could match is a mistake; no rules at all match nothing."""
    with pytest.raises(ValueError, match=r"'\?!' has no word"):
        compile_rules(["today", "?!"])
    assert compile_rules([]).matches("today") is None
