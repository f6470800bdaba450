"""A question on its way in: what is asked, by whom, and everything the caller may choose."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.core.policy import Ask

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

    # That of its record, its receipt and its feedback; nobody can guess it.
    id: str
    text: str
    collection: str
    max_tokens: int
    ask: Ask = field(default_factory=Ask)
    where: Filter | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    # Whose question it is, where callers have keys.
    key: str | None = None
    # The conversation that it continues, oldest first.
    earlier: tuple[Turn, ...] = ()
    # When its time is up, on the event loop's clock.
    deadline: float | None = None
    # How long it waited for a permit, in seconds; part of the time it took.
    waited_s: float = 0.0
    # Whether the caller may give feedback; nobody else is asked for it.
    may_judge: bool = True
