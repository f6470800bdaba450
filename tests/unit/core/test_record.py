"""The finished record: made of the core's nouns, with a few properties derived from them, and frozen."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.available import Passage, Usage
from app.core.effective_policy import Fixed, Sampled
from app.core.policy import Reason
from tests.fakes.records import a_record, a_skip


def test_a_record_starts_with_nothing_spent() -> None:
    """What did not happen is empty: no citation, no usage, no propensities, no failure."""
    record = a_skip(probe_usage=None, p_closed_book=None)
    assert (record.citations, record.probe_usage, record.read_usage, record.failure) == ((), None, None, None)
    assert (record.propensities, record.p_closed_book, record.tokens) == (None, None, 0)


def test_an_outline_has_no_text() -> None:
    """Log lines and traces get how a question was decided, and no text of it or of its answer."""
    record = a_record()
    outline = record.outline()
    assert (outline["action"], outline["k"], outline["reason"], outline["passages"]) == ("k1", 1, "borderline", 1)
    assert not {record.question.text, record.reply.text} & set(outline.values())


def test_a_record_is_frozen() -> None:
    """Observers share one record, so none of them can change it."""
    with pytest.raises(FrozenInstanceError):
        a_record().searches = 5  # type: ignore[misc]


def test_only_what_was_read_is_cited() -> None:
    """Fewer than were found where the reader's context was too short; none where nothing was read for the answer."""
    passages = tuple(Passage(str(rank), "", "") for rank in range(5))
    read = a_record(k=5, citations=passages)
    short = replace(read.available.answers[5], passages_read=3)
    assert replace(read, available=read.available.answered(short)).citations == passages[:3]
    assert a_skip(citations=passages).citations == ()


def test_a_shortened_passage_is_cited_as_far_as_it_was_read() -> None:
    """The receipt shows what the reader saw of a passage that was too long for it."""
    read = a_record(k=1, citations=(Passage("1", "Title", "a long text"),))
    short = replace(read.available.answers[1], read_chars=6)
    [cited] = replace(read, available=read.available.answered(short)).citations
    assert (cited.id, cited.title, cited.text) == ("1", "Title", "a long…")


def test_propensities_add_up() -> None:
    """An equal share of the exploration for each permitted action, and the rest for the policy's choice."""
    record = a_record(wanted=5, sampled=Sampled(share=0.3, explore=0.4))
    assert record.propensities == pytest.approx({"k0": 0.1, "k1": 0.1, "k5": 0.8})


def test_feedback_is_wanted_only_of_answers() -> None:
    """There is nothing to judge where the answer was withheld."""
    drawn = Sampled(solicit=True)
    assert a_record(sampled=drawn).solicited
    assert not a_record(sampled=drawn, answer=None).solicited
    assert not a_record().solicited


def test_usage_of_an_event() -> None:
    """As either server reports it while it writes, and never an error for what else they send."""
    assert Usage.so_far({"usage": {"prompt_tokens": 3, "completion_tokens": 2}, "timings": {}}) == Usage(3, 2)
    assert Usage.so_far({"timings": {"cache_n": 1, "prompt_n": 2, "predicted_n": 4}}) == Usage(3, 4)
    assert Usage.so_far({"usage": None}) is None
    assert Usage.so_far({"usage": "many", "timings": 7}) == Usage()


counts = st.builds(Usage, st.integers(0, 10**9), st.integers(0, 10**9))


@given(counts, counts, counts)
def test_usage_adds_up(one: Usage, two: Usage, three: Usage) -> None:
    """Tokens of several generations add up, in any order."""
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert Usage() + one == one
    assert (one + two).completion_tokens == one.completion_tokens + two.completion_tokens


@pytest.mark.parametrize("reason", [Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN, Reason.LOW_CONFIDENCE])
def test_the_gate_decided(reason: Reason) -> None:
    """A calibrated probability chose k, whether or not the answer was then withheld."""
    assert a_record(reason=reason).gated


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": Fixed(5, Reason.RETRIEVAL_REQUIRED), "reason": Reason.LOW_CONFIDENCE},
        {"kind": Fixed(1, Reason.BORDERLINE)},
        {"reason": Reason.NO_SIGNAL},
        {"reason": Reason.LOW_CONFIDENCE, "p_closed_book": None},
        {"reason": Reason.RETRIEVAL_REQUIRED},
        {"sampled": Sampled(share=0.1, explore=0.5)},
        {"reason": Reason.RETRIEVAL_FAILED},
        {"reason": Reason.NO_PASSAGES},
        {"reason": Reason.DEGRADED},
        {"reason": Reason.LOW_CONFIDENCE, "answer": None, "failure": ("reader", "timeout")},
    ],
    ids=str,
)
def test_something_else_decided(changes: dict[str, Any]) -> None:
    """A fixed k, the caller's choice, exploration, a missing signal, or a failure."""
    assert not a_record(**changes).gated
