"""Puts a finished decision on the note of its request, from which the access line is written."""

from app.correlation import current
from app.decision.record import DecisionRecord


class RequestNote:
    """An observer that hands decisions to whoever logs their request."""

    def observe(self, record: DecisionRecord) -> None:
        """Keep the decision that the client sees: the first."""
        if (note := current.get()) is not None and note.record is None:
            note.record = record
