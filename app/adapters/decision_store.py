"""The decision log's tables: decisions and shadow runs go in as they come, feedback is judged as it comes.

What a call has written is on the disk when it returns, and outlives the process and the machine.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from app.adapters.decision_audit import audit_rows
from app.adapters.decision_database import open_database, writing
from app.adapters.decision_insert import insert_decisions
from app.adapters.decision_judging import judge_all
from app.adapters.decision_rows import Texts, decision_row, shadow_row
from app.adapters.decision_solicited import solicited
from app.adapters.decision_tables import decisions, shadows
from app.decision.audit import AuditRow
from app.decision.drift import Solicited
from app.decision.feedback import Feedback, Judged
from app.decision.record import DecisionRecord, Shadow
from app.errors import BadRequest, LogUnavailable

# Other workers hold the file for milliseconds; whoever waits longer for it had better be told.
BUSY_TIMEOUT_S = 1.0


class SqlDecisionStore:
    """Decisions, their shadow runs and feedback; every method blocks, and raises LogUnavailable where it cannot."""

    def __init__(self, engine: Engine, *, texts: Texts) -> None:
        self.engine = engine
        self._texts = texts
        # A batch that is tried again may have been stored the first time, unheard.
        dialect = postgresql if engine.dialect.name == "postgresql" else sqlite
        self._insert_shadows = dialect.insert(shadows).on_conflict_do_nothing(index_elements=["decision_id"])

    @classmethod
    def open(
        cls, where: str, *, texts: Texts = "full", busy_timeout_s: float | None = None, open_timeout_s: float = 10.0
    ) -> "SqlDecisionStore":
        """Open a database by its path or SQLAlchemy URL; ConfigurationError where that is in vain."""
        patience = BUSY_TIMEOUT_S if busy_timeout_s is None else busy_timeout_s
        engine = open_database(where, busy_timeout_s=patience, open_timeout_s=open_timeout_s)
        return cls(engine, texts=texts)

    def write(
        self, entries: Sequence[tuple[float, DecisionRecord | Shadow]], given: Sequence[tuple[float, Feedback]]
    ) -> list[Judged | BadRequest]:
        """Store decisions, shadow runs and feedback in one transaction; see `DecisionStore`."""
        rows = [decision_row(at, one, self._texts) for at, one in entries if isinstance(one, DecisionRecord)]
        runs = [shadow_row(at, one, self._texts) for at, one in entries if isinstance(one, Shadow)]
        with _translated(), writing(self.engine) as connection:
            insert_decisions(connection, rows)
            # The decision of a run may have been dropped, or pruned meanwhile: then the run goes the same way.
            known = _ids(connection, [run["decision_id"] for run in runs]) if runs else set()
            if kept := [run for run in runs if run["decision_id"] in known]:
                connection.execute(self._insert_shadows, kept)
            return judge_all(connection, given) if given else []

    def solicited(self, version: str, *, after: int, limit: int) -> list[Solicited]:
        """Read the judgements that were asked for; see `FeedbackStream`."""
        return solicited(self.engine, version, after=after, limit=limit)

    def audit_rows(self, *, since: float, limit: int) -> list[AuditRow]:
        """Read decisions for an audit; see `DecisionStore`."""
        return audit_rows(self.engine, since=since, limit=limit)

    def prune(self, before: float, *, limit: int) -> int:
        """Delete up to `limit` of the oldest decisions from before that time, with all that belongs to them."""
        oldest = (
            select(decisions.c.seq)
            .where(decisions.c.created_at < before)
            .order_by(decisions.c.created_at)
            .limit(limit)
            .scalar_subquery()
        )
        with _translated(), writing(self.engine) as connection:
            return connection.execute(delete(decisions).where(decisions.c.seq.in_(oldest))).rowcount

    def close(self) -> None:
        """Release connections; idempotent."""
        self.engine.dispose()


def _ids(connection: Connection, among: Sequence[str]) -> set[str]:
    return set(connection.scalars(select(decisions.c.id).where(decisions.c.id.in_(among))))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise LogUnavailable(f"the decision log cannot be written: {getattr(error, 'orig', error)}") from error
