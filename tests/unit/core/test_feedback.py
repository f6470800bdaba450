"""Whether an answer is right, by the caller's verdict or by reference answers."""

import pytest

from app.core.feedback import Feedback, is_correct
from app.errors import BadRequest, NothingToJudge


@pytest.mark.parametrize(
    ("feedback", "action", "right"),
    [
        (Feedback("a", correct=True), "k0", True),
        (Feedback("a", correct=False), "k5", False),
        (Feedback("a", references=("Kingston",)), "k1", True),
        (Feedback("a", references=("Paris",)), "k1", False),
        (Feedback("a", references=("Kingston",)), "abstain", None),
    ],
)
def test_a_verdict(feedback: Feedback, action: str, right: bool | None) -> None:
    """A verdict is taken as sent; references judge the answer, and judge nothing where it was withheld."""
    assert is_correct(feedback, action, "Kingston", texts_kept=True) is right


@pytest.mark.parametrize(
    ("feedback", "action", "kept"),
    [(Feedback("a", correct=True), "abstain", True), (Feedback("a", references=("Kingston",)), "k0", False)],
    ids=["an abstention", "no text"],
)
def test_what_cannot_be_judged_is_refused(feedback: Feedback, action: str, kept: bool) -> None:
    """The answer was withheld, or its text is not kept."""
    with pytest.raises(NothingToJudge):
        is_correct(feedback, action, None, texts_kept=kept)


def test_references_that_are_too_long_to_compare() -> None:
    """One character can stand for 18: the length that is compared counts."""
    with pytest.raises(BadRequest, match="too long"):
        is_correct(Feedback("a", references=("\ufdfa" * 500,)), "k1", "Kingston", texts_kept=True)
    assert is_correct(Feedback("a", references=("\ufdfa" * 400,)), "k1", "Kingston", texts_kept=True) is False
