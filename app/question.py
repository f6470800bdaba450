"""A question on its way in: what is asked, by whom, and everything its asker may choose."""

import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from app.decision.passage import Filter
from app.decision.policy import Ask
from app.ports import Turn


def _identifiers() -> Iterator[str]:
    """Ids that nobody can guess; their randomness is asked for in bulk, because asking is what it costs."""
    while True:
        drawn = secrets.token_hex(12 * 256)
        yield from (drawn[start : start + 24] for start in range(0, len(drawn), 24))


def _draw_anew() -> None:
    global _ids  # noqa: PLW0603 - a forked process must not give the ids of its parent
    _ids = _identifiers()


_ids = _identifiers()
os.register_at_fork(after_in_child=_draw_anew)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and everything its asker may choose about how it is answered."""

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
    # How long it waited to be worked on, in seconds; part of the time it took.
    waited_s: float = 0.0
    # Whether its asker may give feedback; nobody else is asked for it.
    may_judge: bool = True
    # The id of its record; with chance enough in it that nobody can guess it.
    id: str = field(default_factory=lambda: next(_ids))
