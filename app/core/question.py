"""A question as it comes in: its text, its caller, and everything the caller may choose."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.core.available import Scalar, Usage
from app.core.policy import AskOptions

# A payload filter: every named field has exactly this value.
Filter = Mapping[str, Scalar]
# What to do if there is no evidence: tell the reader, withhold the answer, or answer as if nothing was missing.
Missing = Literal["note", "withhold", "answer"]
# How the question behind a message was found, if the message asks nothing.
UNSEARCHED = frozenset({"small_talk", "tool_turn"})


@dataclass(frozen=True, slots=True)
class Writing:
    """The text to write once k is chosen: `chat` answers the caller's own request, `full` writes the answer out.

    Nothing is read for `chat`: the short answers only serve to choose k.
    """

    kind: Literal["chat", "full"]
    # The caller's own chat request.
    body: Mapping[str, Any] = field(default_factory=dict)
    missing: Missing = "note"


@dataclass(frozen=True, slots=True)
class Standalone:
    """How the question behind the last message of a conversation was found.

    `small_talk` and `tool_turn` are not searched. `failed`: there is no rewrite, and it is searched with the
    user's message before it.
    """

    how: Literal["as_asked", "rewritten", "small_talk", "tool_turn", "failed"]
    # The last message as typed.
    original: str
    ms: float = 0.0
    # Of the rewrite; None without one.
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and everything the caller may choose about how it is answered."""

    # Also the id of its record, its receipt and its feedback; it cannot be guessed.
    id: str
    # What is searched and probed: a question that stands alone.
    text: str
    collection: str
    max_tokens: int
    options: AskOptions = field(default_factory=AskOptions)
    where: Filter | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    # The caller's key; None without keys.
    key: str | None = None
    # None: the short answer is the reply.
    writing: Writing | None = None
    # None outside of conversations.
    standalone: Standalone | None = None
    # Fields of the request that cannot be honoured.
    ignored: tuple[str, ...] = ()
    # On the event loop's clock.
    deadline: float | None = None
    # Seconds in the queue for a permit; part of the total time.
    waited_s: float = 0.0
    # Whether the caller may give feedback; other callers are not asked for it.
    may_give_feedback: bool = True

    @property
    def mode(self) -> Literal["answer", "chat", "full"]:
        """What is given in the end: the short answer, a turn of a chat, or the answer written out."""
        return self.writing.kind if self.writing is not None else "answer"
