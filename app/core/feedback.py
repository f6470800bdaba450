"""What is said about an answer afterwards, and what that comes to: right or wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.core.labels import judge
from app.core.policy import ABSTAIN
from app.errors import NothingToJudge


class Source(StrEnum):
    """Who judged: the one who sent the feedback, or the label rule by the reference answers that were sent."""

    CALLER = "caller"
    REFERENCES = "references"


@dataclass(frozen=True, slots=True)
class Feedback:
    """A verdict on the answer with this id, or reference answers to judge it by: one of the two."""

    id: str
    correct: bool | None = None
    references: tuple[str, ...] = ()
    comment: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    # Whose feedback it is, where callers have keys.
    key: str | None = None

    @property
    def source(self) -> Source:
        """Who judges."""
        return Source.REFERENCES if self.correct is None else Source.CALLER


@dataclass(frozen=True, slots=True)
class Judged:
    """Feedback as it was kept; `replaced` says that another verdict stood before it."""

    id: str
    # None where the answer was withheld, and references came for its shadow run.
    correct: bool | None
    source: Source
    replaced: bool
    action: str
    # The very same was sent before, and nothing new was kept.
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Solicited:
    """A judgement that was asked for. `key` is whose it is, None where callers have no keys.

    `position` grows in the order of the log; `version` is the calibrator that p, the confidence shown, came from.
    """

    position: int
    p: float
    correct: bool
    key: str | None
    version: str


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One logged answer. `correct` is None without a judgement; `solicited`: drawn at random for feedback."""

    tags: Mapping[str, str]
    action: str
    k: int
    correct: bool | None = None
    solicited: bool = False


def is_correct(feedback: Feedback, action: str, answer: str | None, *, texts_kept: bool) -> bool | None:
    """Whether the answer that was given is right.

    None for references to an abstention: nothing was given that could be right or wrong, and still they say what would
    have been, which labels a shadow run.
    """
    if feedback.source is Source.REFERENCES and not texts_kept:
        raise NothingToJudge(
            f"the text of {feedback.id} is not kept (FETCHWISE_LOG_TEXTS=hash), so references cannot judge it: "
            "send `correct`"
        )
    if action == ABSTAIN:
        if feedback.source is Source.REFERENCES:
            return None
        raise NothingToJudge(f"{feedback.id} was an abstention: no answer was given that could be right or wrong")
    if feedback.correct is not None:
        return feedback.correct
    return judge(answer or "", feedback.references)
