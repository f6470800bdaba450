"""The finished record: what it holds by default, and that nothing changes it."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.decision.passage import Passage
from app.decision.policy import Policy, Reason, Retrieval
from app.decision.record import DecisionRecord, Timings, Usage

RECORD = DecisionRecord(
    id="0123",
    question="Who?",
    collection="demo",
    policy=Policy.GRADED,
    retrieval=Retrieval.AUTO,
    abstain=True,
    filtered=False,
    answer="She",
    k=1,
    reason=Reason.BORDERLINE,
    confidence=0.75,
    p_closed_book=0.625,
    signals={"margin": 1.0},
    read_signals={"margin": 2.0},
    thresholds=None,
    tau_abstain=None,
    calibrator=None,
    certified=False,
    timings=Timings(total=12.0, probe=5.0),
)


def test_a_record_starts_with_nothing_spent() -> None:
    """What did not happen is empty: no citation, no usage, no search, no failure, no tag."""
    assert RECORD.citations == ()
    assert (RECORD.probe_usage, RECORD.read_usage, RECORD.retrieval_calls, RECORD.failure) == (None, None, 0, None)
    assert RECORD.tags == {}
    assert (RECORD.timings.embed, RECORD.timings.search, RECORD.timings.read) == (None, None, None)


def test_an_outline_tells_how_and_never_what() -> None:
    """Logs and traces learn how a question was decided, and no word of it or of its answer."""
    outline = RECORD.outline()
    assert (outline["action"], outline["k"], outline["reason"], outline["passages"]) == ("k1", 1, "borderline", 0)
    assert not {RECORD.question, RECORD.answer} & set(outline.values())


def test_a_record_is_frozen() -> None:
    """Observers share one record, so none of them can change it; a changed copy is another record."""
    with pytest.raises(FrozenInstanceError):
        RECORD.k = 5  # type: ignore[misc]
    cited = replace(RECORD, citations=(Passage("a", "Title", "Text", 0.5),))
    assert cited != RECORD


def test_records_do_not_share_tags() -> None:
    """Two records made without tags do not hold the same dictionary."""
    assert replace(RECORD, tags={}) == RECORD
    assert Usage() == Usage(0, 0)


counts = st.builds(Usage, st.integers(0, 10**9), st.integers(0, 10**9))


@given(counts, counts, counts)
def test_usage_adds_up(one: Usage, two: Usage, three: Usage) -> None:
    """Tokens of several generations add up, in any order, from nothing."""
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert Usage() + one == one
    assert (one + two).completion_tokens == one.completion_tokens + two.completion_tokens


@pytest.mark.parametrize("policy", [Policy.GRADED, Policy.BINARY])
@pytest.mark.parametrize("reason", [Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN, Reason.LOW_CONFIDENCE])
def test_the_gate_decided(policy: Policy, reason: Reason) -> None:
    """A calibrated probability under a gating policy chose k, whether or not the answer was then withheld."""
    assert replace(RECORD, policy=policy, reason=reason).gated


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": Policy.ALWAYS, "reason": Reason.RETRIEVAL_REQUIRED, "p_closed_book": None},
        {"policy": Policy.ALWAYS, "reason": Reason.LOW_CONFIDENCE, "p_closed_book": None},
        {"policy": Policy.NEVER, "reason": Reason.RETRIEVAL_FORBIDDEN},
        {"policy": Policy.NEVER, "reason": Reason.LOW_CONFIDENCE},
        {"retrieval": Retrieval.FORBIDDEN, "reason": Reason.LOW_CONFIDENCE},
        {"retrieval": Retrieval.REQUIRED, "reason": Reason.RETRIEVAL_REQUIRED},
        {"retrieval": Retrieval.REQUIRED, "reason": Reason.LOW_CONFIDENCE},
        {"reason": Reason.NOT_CALIBRATED, "p_closed_book": None},
        {"reason": Reason.NOT_CERTIFIED, "p_closed_book": None},
        {"reason": Reason.NO_SIGNAL, "p_closed_book": None},
        {"reason": Reason.UNCERTAIN, "p_closed_book": None},
        {"reason": Reason.BYPASSED},
        {"reason": Reason.EXPLORED},
        {"reason": Reason.RETRIEVAL_FAILED},
        {"reason": Reason.NO_PASSAGES},
    ],
    ids=str,
)
def test_something_else_decided(changes: dict[str, Any]) -> None:
    """The caller, a missing or bypassed calibrator, chance, a foregone choice, or a search that brought nothing."""
    assert not replace(RECORD, **changes).gated
