"""Writes the decision log: a SQLite file that several workers share, or a PostgreSQL database.

What a call has written is on the disk when it returns, and outlives the process and the machine.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, takewhile
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    bindparam,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from app.core.feedback import Asked, AuditRow, Feedback, Judged, Source, is_correct
from app.core.record import DecisionRecord, FullRun
from app.errors import BadRequest, LogUnavailable, NothingToJudge, UnknownDecision
from app.storage import reading
from app.storage.database import REPLY_S, Database, open_database
from app.storage.documents import SqlDocuments, prepare_documents
from app.storage.tables import (
    Texts,
    decision_row,
    decisions,
    feedback,
    full_run_row,
    full_runs,
    prepare,
    storable,
    storable_tags,
)

# Rows per statement: enough that its fixed cost no longer counts; a database accepts ten times as many values.
_AT_ONCE = 100

# Different feedback on one answer that is kept: enough for people who change their mind.
MAX_FEEDBACK = 100

_COLUMNS = [str(column.name) for column in decisions.columns if column.name != "seq"]
_INTO = f"INSERT INTO decisions ({', '.join(_COLUMNS)}) VALUES "  # noqa: S608 our own columns
# A batch that is tried again may have been stored the first time.
_UNLESS_THERE = " ON CONFLICT (id) DO NOTHING"

# Built once: to build such a statement takes longer than to run it.
_IDS: BindParameter[str] = bindparam("ids", expanding=True)
# Locked where the database knows row locks, so that two workers judge one answer one after the other; in order, so
# that neither waits for the other.
_KNOWN = (
    select(decisions.c.id, decisions.c.key, decisions.c.action, decisions.c.answer, decisions.c.question)
    .where(decisions.c.id.in_(_IDS))
    .order_by(decisions.c.id)
    .with_for_update()
)
_LAST = select(func.max(feedback.c.seq)).where(feedback.c.decision_id.in_(_IDS)).group_by(feedback.c.decision_id)
_LATEST = select(feedback).where(feedback.c.seq.in_(_LAST))
_GIVEN = (
    select(feedback.c.decision_id, func.count().label("given"))
    .where(feedback.c.decision_id.in_(_IDS))
    .group_by(feedback.c.decision_id)
)
_INSERT = insert(feedback)
_DAY_S = 86_400.0
_SERVER_NOW = func.extract("epoch", func.clock_timestamp())
_SQLITE_NOW = (func.julianday("now") - 2440587.5) * 86_400.0


class SqlDecisionStore:
    """Decisions, their shadow runs and feedback; every method blocks, and raises LogUnavailable if it fails."""

    def __init__(self, database: Database, *, texts: Texts) -> None:
        self.database = database
        self._texts = texts
        dialect = postgresql if database.server else sqlite
        self._insert_full_runs = dialect.insert(full_runs).on_conflict_do_nothing(index_elements=["decision_id"])

    @classmethod
    def open(
        cls,
        where: str,
        *,
        texts: Texts = "full",
        busy_timeout_s: float | None = None,
        open_timeout_s: float = 10.0,
        reply_s: float = REPLY_S,
    ) -> "SqlDecisionStore":
        """Open a database by its path or SQLAlchemy URL; see `open_database`."""
        database = open_database(
            where,
            _prepare,
            setting="FETCHWISE_DECISION_LOG",
            busy_timeout_s=busy_timeout_s,
            open_timeout_s=open_timeout_s,
            reply_s=reply_s,
        )
        return cls(database, texts=texts)

    def write(
        self, entries: Sequence[tuple[float, DecisionRecord | FullRun]], given: Sequence[tuple[float, Feedback]]
    ) -> list[Judged | BadRequest]:
        """Store decisions and shadow runs, then feedback, each with its time (Unix seconds), in one transaction.

        Durable once this returns. What is already stored does not change, and a run without its decision is dropped.
        Returns one outcome for each feedback: the judgement, or why there is none. After LogUnavailable nothing is
        stored.
        """
        rows = [decision_row(at, one, self._texts) for at, one in entries if isinstance(one, DecisionRecord)]
        runs = [full_run_row(at, one, self._texts) for at, one in entries if isinstance(one, FullRun)]
        with _translated(), self.database.writing() as connection:
            _insert_decisions(connection, rows)
            # The decision of a run may have been dropped, or pruned since: then the run is dropped too.
            known = _ids(connection, [run["decision_id"] for run in runs]) if runs else set()
            if kept := [run for run in runs if run["decision_id"] in known]:
                connection.execute(self._insert_full_runs, kept)
            return _judge_all(connection, given) if given else []

    def size(self, most: int = 0) -> int:
        """About how many decisions there are; counted if they seem to be more than `most`, unless 0."""
        with _translated(), self.database.reading() as connection:
            return reading.size(connection, most)

    def prune(self, older_than_s: float, *, limit: int, most: int = 0) -> int:
        """Delete up to `limit` of the oldest decisions, with all that belongs to them."""
        gone = 0
        with _translated(), self.database.writing() as connection:
            if older_than_s:
                now = float(connection.scalar(select(_SERVER_NOW if self.database.server else _SQLITE_NOW)) or 0.0)
                # Old by both clocks, that of the database and our own: either may be wrong.
                before = min(now, time.time()) - older_than_s
                # Only up to the first that is not: a later one with an old time is of a host whose clock is behind.
                # A time in the future says nothing. The sum hides an index by which the whole log would be sorted.
                known = decisions.c.created_at + 0.0 <= now + _DAY_S
                head = select(decisions.c.seq, decisions.c.created_at).where(known).order_by(decisions.c.seq)
                rows = connection.execute(head.limit(limit))
                if due := [row.seq for row in takewhile(lambda row: row.created_at < before, rows)]:
                    old = (decisions.c.seq <= due[-1]) & (decisions.c.created_at < before)
                    gone = _delete(connection, old, limit)
            if most and gone < limit:
                # Found before they are counted: if another worker deletes some in between, fewer are due, not others.
                found = select(decisions.c.seq).order_by(decisions.c.seq).limit(limit - gone)
                oldest = list(connection.scalars(found))
                if due := oldest[: max(0, reading.size(connection, most) - most)]:
                    gone += _delete(connection, decisions.c.seq <= due[-1], limit - gone)
            return gone

    def asked(self, version: str, *, after: int, until: float, wait: float, limit: int) -> list[Asked]:
        """Answers under this calibrator whose verdict was asked for."""
        return reading.asked(self.database, version, after=after, until=until, wait=wait, limit=limit)

    def audit_rows(self, *, since: float, limit: int) -> list[AuditRow]:
        """The newest decisions, each with its last judgement."""
        return reading.audit_rows(self.database, since=since, limit=limit)

    @property
    def documents(self) -> SqlDocuments:
        """Documents in the same database, for state that means nothing without its rows."""
        return SqlDocuments(self.database, "state")

    def close(self) -> None:
        """Release connections; idempotent."""
        self.database.close()


def _prepare(connection: Connection) -> None:
    prepare(connection)
    prepare_documents(connection)


def _delete(connection: Connection, which: ColumnElement[bool], limit: int) -> int:
    # Skip what another worker deletes or judges at this moment.
    found = select(decisions.c.seq).where(which).order_by(decisions.c.seq).limit(limit)
    found = found.with_for_update(skip_locked=True)
    return connection.execute(delete(decisions).where(decisions.c.seq.in_(found.scalar_subquery()))).rowcount


def _insert_decisions(connection: Connection, rows: Sequence[tuple[object, ...]]) -> None:
    """Insert rows as `decision_row` makes them: the one statement that runs for every answer, so it is kept cheap.

    Rows go to the driver as they are, since SQLAlchemy would look at each of their forty values, and many at a time,
    since the driver releases the interpreter's lock and waits for it again at every statement.
    """
    place = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    row = f"({', '.join([place] * len(_COLUMNS))})"
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        statement = _INTO + ", ".join([row] * len(some)) + _UNLESS_THERE
        connection.exec_driver_sql(statement, tuple(chain.from_iterable(some)))


def _ids(connection: Connection, among: Sequence[str]) -> set[str]:
    # Locked where the database can, so that they are not pruned before their runs are stored.
    known = select(decisions.c.id).where(decisions.c.id.in_(among)).with_for_update(read=True, key_share=True)
    return set(connection.scalars(known))


def _judge_all(connection: Connection, given: Sequence[tuple[float, Feedback]]) -> list[Judged | BadRequest]:
    """Judge each in turn, so that the second feedback on an answer replaces the first."""
    # An id that no database takes is no decision's, and must not fail the whole batch.
    about = {"ids": list({one.id for _, one in given if one.id == storable(one.id)})}
    known = {row.id: row for row in connection.execute(_KNOWN, about)}
    latest: dict[str, dict[str, Any]] = {
        row.decision_id: dict(row._mapping)  # noqa: SLF001 its public name, whatever the underscore says
        for row in connection.execute(_LATEST, about)
    }
    kept = Counter({row.decision_id: row.given for row in connection.execute(_GIVEN, about)})
    outcomes: list[Judged | BadRequest] = []
    fresh: list[dict[str, Any]] = []
    for at, one in given:
        earlier = latest.get(one.id)
        try:
            row = _feedback_row(at, one, known.get(one.id), replaced=earlier is not None)
        except BadRequest as error:
            outcomes.append(error)
            continue
        repeated = earlier is not None and _same(row, earlier)
        if earlier is None or not repeated:
            if kept[one.id] >= MAX_FEEDBACK:
                outcomes.append(NothingToJudge(f"{one.id} has been judged {MAX_FEEDBACK} times: no more is stored"))
                continue
            kept[one.id] += 1
            fresh.append(row)
            latest[one.id] = earlier = row
        outcomes.append(
            Judged(
                id=one.id,
                correct=earlier["correct"],
                source=Source(earlier["source"]),
                replaced=earlier["replaced"],
                action=known[one.id].action,
                repeated=repeated,
            )
        )
    if fresh:
        connection.execute(_INSERT, fresh)
    return outcomes


def _feedback_row(
    at: float, one: Feedback, decision: Row[*tuple[Any, ...]] | None, *, replaced: bool
) -> dict[str, Any]:
    # A key knows only its own answers.
    if decision is None or decision.key != one.key:
        raise UnknownDecision(f"no answer with the id {one.id!r} is known: never given, not kept, or pruned since")
    return {
        "decision_id": one.id,
        "created_at": at,
        "key": one.key,
        "correct": is_correct(one, decision.action, decision.answer, texts_kept=decision.question is not None),
        "source": one.source.value,
        "reference_answers": [storable(reference) for reference in one.references],
        "comment": None if one.comment is None else storable(one.comment),
        "tags": storable_tags(one.tags),
        "replaced": replaced,
    }


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two judgements say the same, whenever they were given."""
    compared = ("key", "correct", "source", "reference_answers", "comment", "tags")
    return all(one[name] == other[name] for name in compared)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise LogUnavailable(f"the decision log cannot be written: {getattr(error, 'orig', error)}") from error
