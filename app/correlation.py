"""Context of one request, shared by its log lines, spans and upstream calls."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

from app.core.record import DecisionRecord


@dataclass(slots=True)
class RequestContext:
    """What the log lines of one request need; filled in as it proceeds."""

    request_id: str
    trace_id: str = ""
    # The log removes it from messages, such as those of a server that repeats its input.
    question: str = ""
    # The conversation before it, removed likewise.
    earlier: tuple[str, ...] = ()
    record: DecisionRecord | None = None


current: ContextVar[RequestContext | None] = ContextVar("fetchwise_note", default=None)
# Headers for every upstream call.
outgoing: ContextVar[Mapping[str, str]] = ContextVar("fetchwise_outgoing", default=MappingProxyType({}))


def set_question(question: str, *earlier: str) -> None:
    """Record the question of the current request and the conversation before it."""
    if (note := current.get()) is not None:
        # Shorter ones are found inside other words.
        note.question, note.earlier = question, tuple(text for text in earlier if len(text) > 3)


class RequestContextObserver:
    """An observer that stores the decision for the request's log line."""

    def observe(self, record: DecisionRecord) -> None:
        """Store the first decision, which is the one that the client sees."""
        if (note := current.get()) is not None and note.record is None:
            note.record = record
