"""Feedback on an answer, and whether it makes the answer right or wrong."""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.core.labels import judge
from app.core.policy import ABSTAIN
from app.errors import BadRequest, NothingToJudge

# Of all references together, as they are sent and as they are compared: one character can stand for 18.
MAX_REFERENCE_CHARS = 4_000
_MAX_COMPARED_CHARS = 8_000


class Source(StrEnum):
    """Who judged: the caller, or the label rule by the reference answers that the caller sent."""

    CALLER = "caller"
    REFERENCES = "references"


@dataclass(frozen=True, slots=True)
class Feedback:
    """Whether the answer with this id is correct, or reference answers to judge it by: exactly one of the two."""

    id: str
    correct: bool | None = None
    references: tuple[str, ...] = ()
    comment: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    # The caller's key; None without keys.
    key: str | None = None

    @property
    def source(self) -> Source:
        """Who judges."""
        return Source.REFERENCES if self.correct is None else Source.CALLER


@dataclass(frozen=True, slots=True)
class Judged:
    """Stored feedback; `replaced` says that it replaces different feedback on the same answer."""

    id: str
    # None if the answer was withheld: the references then label its shadow run.
    correct: bool | None
    source: Source
    replaced: bool
    action: str
    # The same feedback was sent before, so nothing was stored.
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer whose verdict was asked for, drawn at random, and the first verdict within the waiting time."""

    # In the log, which is in the order of asking.
    position: int
    k: int
    # The confidence that was shown.
    p: float
    # None without a verdict.
    correct: bool | None
    # The caller's key; None without keys.
    key: str | None = None
    # Whether reference answers judged, and not the caller.
    by_references: bool = False
    # By k, whether the answer of the shadow run is right; only of certified answers that references judged.
    shadow: Mapping[int, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One logged answer. `correct` is None without feedback; `solicited`: drawn at random for feedback."""

    tags: Mapping[str, str]
    action: str
    k: int
    correct: bool | None = None
    solicited: bool = False


def is_correct(feedback: Feedback, action: str, answer: str | None, *, texts_kept: bool) -> bool | None:
    """Whether the answer that was given is right.

    None for references to an abstention: no answer was given, but the references label its shadow run.
    """
    if feedback.source is Source.REFERENCES and not texts_kept:
        raise NothingToJudge(
            f"the text of {feedback.id} is not kept (FETCHWISE_LOG_TEXTS=hash), so references cannot be used: "
            "send `correct`"
        )
    if action == ABSTAIN:
        if feedback.source is Source.REFERENCES:
            return None
        raise NothingToJudge(f"{feedback.id} was an abstention: there is no answer to judge")
    if feedback.correct is not None:
        return feedback.correct
    if sum(len(unicodedata.normalize("NFKD", one)) for one in feedback.references) > _MAX_COMPARED_CHARS:
        raise BadRequest(f"references: too long to compare: together at most {_MAX_COMPARED_CHARS} simple characters")
    return judge(answer or "", feedback.references)
