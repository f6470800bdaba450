"""The real store on a SQLite file, with switchable faults: it can fail, hang, or break."""

import threading
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from app.core.feedback import Feedback, Judged
from app.core.record import DecisionRecord, FullRun
from app.errors import BadRequest
from app.storage.decisions import SqlDecisionStore
from app.storage.reading import pages
from app.storage.tables import full_runs


class FaultyStore(SqlDecisionStore):
    """While set, `fail_with` is raised by every call; each write waits for `gate`."""

    def __init__(self, path: str) -> None:
        super().__init__(SqlDecisionStore.open(path, busy_timeout_s=20).database, texts="full")
        self.fail_with: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.writes = 0
        self.prunings: list[int] = []
        self.closed = False

    def write(
        self, entries: Sequence[tuple[float, DecisionRecord | FullRun]], given: Sequence[tuple[float, Feedback]]
    ) -> list[Judged | BadRequest]:
        self.writes += 1
        self.gate.wait()
        if self.fail_with is not None:
            raise self.fail_with
        return super().write(entries, given)

    def prune(self, older_than_s: float, *, limit: int, most: int = 0) -> int:
        self.prunings.append(limit)
        if self.fail_with is not None:
            raise self.fail_with
        return super().prune(older_than_s, limit=limit, most=most)

    def close(self) -> None:
        self.closed = True
        super().close()

    def rows(self) -> list[dict[str, Any]]:
        """Every row on disk."""
        return [row for page in pages(self.database, 0.0) for row in page]

    def runs(self) -> list[str]:
        """The decisions that have a shadow run on disk."""
        with self.database.engine.connect() as connection:
            return list(connection.scalars(select(full_runs.c.decision_id).order_by(full_runs.c.seq)))
