"""A question as it comes in: its text, its caller, and everything the caller may choose."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.core.policy import AskOptions

Scalar = str | int | bool
# A payload filter: every named field has exactly this value.
Filter = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said in a conversation before the question, and by whom."""

    role: Literal["system", "user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and everything the caller may choose about how it is answered."""

    # Also the id of its record, its receipt and its feedback; it cannot be guessed.
    id: str
    text: str
    collection: str
    max_tokens: int
    options: AskOptions = field(default_factory=AskOptions)
    where: Filter | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    # The caller's key; None without keys.
    key: str | None = None
    # The conversation that it continues, oldest first.
    earlier: tuple[Turn, ...] = ()
    # On the event loop's clock.
    deadline: float | None = None
    # Seconds in the queue for a permit; part of the total time.
    waited_s: float = 0.0
    # Whether the caller may give feedback; other callers are not asked for it.
    may_give_feedback: bool = True
