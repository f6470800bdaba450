"""What ties the log lines, the spans and the calls of one request together: a note that travels with it."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

from app.core.record import DecisionRecord


@dataclass(slots=True)
class Note:
    """One request, as far as its log lines are concerned; filled in while it is worked on."""

    request_id: str
    trace_id: str = ""
    # So that the log can leave it out of what others say, such as a server that repeats what it was asked.
    question: str = ""
    # What was said before it, likewise.
    earlier: tuple[str, ...] = ()
    record: DecisionRecord | None = None


current: ContextVar[Note | None] = ContextVar("fetchwise_note", default=None)
# Headers for every call to a part behind the gateway.
outgoing: ContextVar[Mapping[str, str]] = ContextVar("fetchwise_outgoing", default=MappingProxyType({}))


def asked(question: str, *earlier: str) -> None:
    """Say what the request at hand asks, and what was said before that."""
    if (note := current.get()) is not None:
        note.question, note.earlier = question, earlier


class RequestNote:
    """An observer that hands decisions to whoever logs their request."""

    def observe(self, record: DecisionRecord) -> None:
        """Keep the decision that the client sees: the first."""
        if (note := current.get()) is not None and note.record is None:
            note.record = record
