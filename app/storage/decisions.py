"""Writes the decision log: a SQLite file that several workers share, or a PostgreSQL database.

What a call has written is on the disk when it returns, and outlives the process and the machine.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import (
    URL,
    BindParameter,
    Connection,
    Engine,
    Row,
    bindparam,
    create_engine,
    delete,
    event,
    func,
    insert,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from app.core.feedback import Feedback, Judged, Source, verdict
from app.core.record import DecisionRecord, Shadow
from app.errors import BadRequest, ConfigurationError, LogUnavailable, UnknownDecision
from app.storage.tables import (
    Texts,
    as_json,
    decision_row,
    decisions,
    feedback,
    prepare,
    shadow_row,
    shadows,
    storable,
    storable_tags,
)

# Other workers hold the file for milliseconds; a longer wait is reported as a failure.
BUSY_TIMEOUT_S = 1.0
_RETRY_OPEN_S = 0.1
# So many rows a statement that the rest of its cost no longer counts; a database takes ten times as many values.
_AT_ONCE = 100
# A server that is gone is noticed in this time; without these a connection may wait for ever. A URL may name its own.
_PATIENCE = {"connect_timeout": 10, "tcp_user_timeout": 10_000}

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
_IN_FORCE = select(feedback).where(feedback.c.seq.in_(_LAST))
_INSERT = insert(feedback)


class SqlDecisionStore:
    """Decisions, their shadow runs and feedback; every method blocks, and raises LogUnavailable where it cannot."""

    def __init__(self, engine: Engine, *, texts: Texts) -> None:
        self.engine = engine
        self._texts = texts
        dialect = postgresql if engine.dialect.name == "postgresql" else sqlite
        self._insert_shadows = dialect.insert(shadows).on_conflict_do_nothing(index_elements=["decision_id"])

    @classmethod
    def open(
        cls, where: str, *, texts: Texts = "full", busy_timeout_s: float | None = None, open_timeout_s: float = 10.0
    ) -> "SqlDecisionStore":
        """Open a database by its path or SQLAlchemy URL, made if it is new; ConfigurationError where that fails."""
        engine = _engine(where, BUSY_TIMEOUT_S if busy_timeout_s is None else busy_timeout_s)
        deadline = time.monotonic() + open_timeout_s
        while True:
            try:
                with _writing(engine) as connection:
                    prepare(connection)
            except ConfigurationError as error:
                raise _unusable(engine, error) from error
            except SQLAlchemyError as error:
                # Another worker may be making it at this moment; SQLite does not always wait for that by itself.
                if not _busy(error) or time.monotonic() > deadline:
                    raise _unusable(engine, getattr(error, "orig", error)) from error
                time.sleep(_RETRY_OPEN_S)
            else:
                return cls(engine, texts=texts)

    def write(
        self, entries: Sequence[tuple[float, DecisionRecord | Shadow]], given: Sequence[tuple[float, Feedback]]
    ) -> list[Judged | BadRequest]:
        """Store decisions and shadow runs, then feedback, each with its time (Unix seconds), in one transaction.

        Durable once this returns. What is there already stays as it is, and a run whose decision is not there is
        dropped. Returns one outcome for each feedback: what it came to, or why it cannot apply. Raises LogUnavailable
        where nothing of all this was stored.
        """
        rows = [decision_row(at, one, self._texts) for at, one in entries if isinstance(one, DecisionRecord)]
        runs = [shadow_row(at, one, self._texts) for at, one in entries if isinstance(one, Shadow)]
        with _translated(), _writing(self.engine) as connection:
            _insert_decisions(connection, rows)
            # The decision of a run may have been dropped, or pruned since: then the run is dropped too.
            known = _ids(connection, [run["decision_id"] for run in runs]) if runs else set()
            if kept := [run for run in runs if run["decision_id"] in known]:
                connection.execute(self._insert_shadows, kept)
            return _judge_all(connection, given) if given else []

    def prune(self, before: float, *, limit: int) -> int:
        """Delete up to `limit` of the oldest decisions from before that time, with all that belongs to them."""
        oldest = (
            select(decisions.c.seq)
            .where(decisions.c.created_at < before)
            .order_by(decisions.c.created_at)
            .limit(limit)
            # What another worker deletes or judges at this moment is left to it, or to the next time.
            .with_for_update(skip_locked=True)
            .scalar_subquery()
        )
        with _translated(), _writing(self.engine) as connection:
            return connection.execute(delete(decisions).where(decisions.c.seq.in_(oldest))).rowcount

    def close(self) -> None:
        """Release connections; idempotent."""
        self.engine.dispose()


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
    """Judge each in turn, so that the second about one answer already meets the first."""
    about = {"ids": list({one.id for _, one in given})}
    known = {row.id: row for row in connection.execute(_KNOWN, about)}
    in_force: dict[str, dict[str, Any]] = {
        row.decision_id: dict(row._mapping)  # noqa: SLF001 its public name, whatever the underscore says
        for row in connection.execute(_IN_FORCE, about)
    }
    outcomes: list[Judged | BadRequest] = []
    fresh: list[dict[str, Any]] = []
    for at, one in given:
        earlier = in_force.get(one.id)
        try:
            row = _feedback_row(at, one, known.get(one.id), replaced=earlier is not None)
        except BadRequest as error:
            outcomes.append(error)
            continue
        repeated = earlier is not None and _same(row, earlier)
        if earlier is None or not repeated:
            fresh.append(row)
            in_force[one.id] = earlier = row
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
    # What was answered to another key is not known to this one.
    if decision is None or decision.key != one.key:
        raise UnknownDecision(f"no answer with the id {one.id!r} is known: never given, not kept, or pruned since")
    return {
        "decision_id": one.id,
        "given_at": at,
        "key": one.key,
        "correct": verdict(one, decision.action, decision.answer, texts_kept=decision.question is not None),
        "source": one.source.value,
        "reference_answers": [storable(reference) for reference in one.references],
        "comment": None if one.comment is None else storable(one.comment),
        "tags": storable_tags(one.tags),
        "replaced": replaced,
    }


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the same was said; when it was said, and what was said before, makes no difference."""
    said = ("key", "correct", "source", "reference_answers", "comment", "tags")
    return all(one[name] == other[name] for name in said)


@contextmanager
def _writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that holds the right to write from its beginning."""
    with engine.connect().execution_options(fetchwise_writes=True) as connection, connection.begin():
        yield connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise LogUnavailable(f"the decision log cannot be written: {getattr(error, 'orig', error)}") from error


def _engine(where: str, busy_timeout_s: float) -> Engine:
    try:
        url = make_url(where) if "://" in where else URL.create("sqlite", database=where)
        name = url.get_backend_name()
        if name not in {"sqlite", "postgresql"} or (name == "sqlite" and url.database in {None, "", ":memory:"}):
            raise ConfigurationError(
                "FETCHWISE_DECISION_LOG is a path, the SQLAlchemy URL of a SQLite file or PostgreSQL database, or `off`"
            )
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        options = {"json_serializer": as_json, "json_deserializer": orjson.loads}
        if name == "postgresql":
            # Pinged before use: a server that was restarted has closed the connections of the pool.
            patience = {name: value for name, value in _PATIENCE.items() if name not in url.query}
            return create_engine(url, connect_args=patience, pool_pre_ping=True, **options)
        engine = create_engine(url, connect_args={"timeout": busy_timeout_s}, **options)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"FETCHWISE_DECISION_LOG needs {error.name}: pip install 'fetchwise[postgres]'"
        ) from error
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigurationError(f"FETCHWISE_DECISION_LOG cannot be used: {error}") from error
    _make_sqlite_behave(engine)
    return engine


def _make_sqlite_behave(engine: Engine) -> None:
    assert engine.url.database is not None
    try:
        Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(engine, error) from error

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _: object) -> None:
        # The driver would begin a transaction by itself, and too late; ours is below.
        connection.isolation_level = None
        # FULL: a commit is on the disk when it returns. In batches that costs little.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def began(connection: Connection) -> None:
        writes = connection.get_execution_options().get("fetchwise_writes", False)
        # A transaction that reads first and then wants to write would fail, not wait, where another wrote meanwhile.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _busy(error: SQLAlchemyError) -> bool:
    code: int = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
    # The lower byte of an extended code is the plain one.
    return code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _unusable(engine: Engine, error: object) -> ConfigurationError:
    engine.dispose()
    name = engine.url.render_as_string(hide_password=True)
    return ConfigurationError(f"the decision log {name} cannot be opened: {error} (FETCHWISE_DECISION_LOG=off: no log)")
