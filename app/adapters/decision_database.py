"""Opens the decision log's database: a SQLite file that several workers share, or a PostgreSQL server."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from app.adapters.decision_migrations import migrate
from app.adapters.decision_rows import as_json
from app.errors import ConfigurationError

KNOWN = ("sqlite", "postgresql")
_RETRY_OPEN_S = 0.1


def open_database(where: str, *, busy_timeout_s: float, open_timeout_s: float) -> Engine:
    """Open a database by its path or SQLAlchemy URL, made or migrated if need be; ConfigurationError if in vain."""
    engine = _engine(where, busy_timeout_s)
    deadline = time.monotonic() + open_timeout_s
    while True:
        try:
            with writing(engine) as connection:
                migrate(connection)
        except ConfigurationError as error:
            raise _unusable(engine.url, error) from error
        except SQLAlchemyError as error:
            # Another worker may be making it at this moment; SQLite does not always wait for that by itself.
            if not _busy(error) or time.monotonic() > deadline:
                raise _unusable(engine.url, getattr(error, "orig", error)) from error
            time.sleep(_RETRY_OPEN_S)
        else:
            return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that holds the right to write from its beginning."""
    with engine.connect().execution_options(fetchwise_writes=True) as connection, connection.begin():
        yield connection


def _engine(where: str, busy_timeout_s: float) -> Engine:
    try:
        url = make_url(where) if "://" in where else URL.create("sqlite", database=where)
        name = url.get_backend_name()
        if name not in KNOWN or (name == "sqlite" and url.database in {None, "", ":memory:"}):
            raise ConfigurationError(
                "FETCHWISE_DECISION_LOG is a path, the SQLAlchemy URL of a SQLite file or PostgreSQL database, or `off`"
            )
        options = {"timeout": busy_timeout_s} if name == "sqlite" else {}
        engine = create_engine(url, connect_args=options, json_serializer=as_json, json_deserializer=orjson.loads)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"FETCHWISE_DECISION_LOG cannot be used: {error}") from error
    if name == "sqlite":
        _make_sqlite_behave(engine)
    return engine


def _make_sqlite_behave(engine: Engine) -> None:
    assert engine.url.database is not None
    try:
        Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(engine.url, error) from error

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


def _unusable(url: URL, error: object) -> ConfigurationError:
    name = url.render_as_string(hide_password=True)
    return ConfigurationError(f"the decision log {name} cannot be opened: {error} (FETCHWISE_DECISION_LOG=off: no log)")
