"""Databases that may be unreachable: a SQLite file that several workers share, or a PostgreSQL server.

A wrong URL, or tables of another version, refuse the start. A server that cannot be reached does not: every call fails
at once until the next try, whose pause grows, and tables are made once it answers.
"""

import logging
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import URL, Connection, Engine, create_engine, event, func, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.errors import ConfigurationError

logger = logging.getLogger(__name__)

# Other workers hold the file for milliseconds; a longer wait is reported as a failure.
BUSY_TIMEOUT_S = 1.0
_RETRY_OPEN_S = 0.1
# Between two tries to reach a server: doubled from the first to the second.
_PAUSES_S = (0.5, 5.0)
# For each process and database: a fleet of 30 workers stays below PostgreSQL's default of 100 connections.
_POOL = {"pool_size": 2, "max_overflow": 8, "pool_timeout": 5, "pool_use_lifo": True}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
# Seconds for a reply of the server: enough for a query over a whole window of decisions on a busy one.
REPLY_S = 10.0
# Of PostgreSQL's advisory locks: held while tables are made.
_LOCK = 0x66776C6F67
# PostgreSQL's state of a statement that took too long: many may wait for the lock.
_TIMED_OUT = "57014"
# What a server, or PgBouncer, says to a URL that will never work.
_REFUSALS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no such database", "no such user")

Prepare = Callable[[Connection], None]


def as_json(value: object) -> str:
    """Lists and mappings as the database stores them."""
    return orjson.dumps(value, default=dict).decode()


class DatabaseUnreachable(SQLAlchemyError):
    """The last try to reach the server failed a moment ago, or it has other tables; nothing was sent."""


class Database:
    """One database, used by several threads. Every call blocks, for some seconds at most."""

    def __init__(self, engine: Engine, setting: str) -> None:
        self.engine = engine
        self.setting = setting
        # Tables that could not be made yet.
        self._missing: set[Prepare] = set()
        self._lock = threading.Lock()
        # Why the server cannot be used, when that began and when to try again; empty while it works.
        self._problem = ""
        self._since = self._again_at = 0.0
        self._pause_s = _PAUSES_S[0]
        weakref.finalize(self, engine.dispose)

    @property
    def name(self) -> str:
        """The database's URL without its password."""
        return self.engine.url.render_as_string(hide_password=True)

    @property
    def server(self) -> bool:
        """Whether this is PostgreSQL."""
        return self.engine.dialect.name == "postgresql"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for queries; SQLAlchemyError if they fail."""
        with self._tried(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that holds the right to write from its beginning; SQLAlchemyError if it fails."""
        with self._tried(), self._transaction() as connection:
            yield connection

    def prepare(self, prepare: Prepare, *, busy_s: float) -> None:
        """Make tables now, or as soon as the server can be reached; ConfigurationError if it never will.

        `busy_s` is how long other processes may hold the file.
        """
        deadline = time.monotonic() + busy_s
        with self._lock:
            self._missing.add(prepare)
        while True:
            try:
                self._fail_during_pause()
                self._make_tables()
                return self._worked()
            except DatabaseUnreachable:
                return None
            except ConfigurationError as error:
                raise self._unusable(error) from error
            except SQLAlchemyError as error:
                # Another worker may be making it at this moment; SQLite does not always wait for that by itself.
                if _sqlite_code(error) in _BUSY and time.monotonic() <= deadline:
                    time.sleep(_RETRY_OPEN_S)
                    continue
                later = _away(error) or getattr(getattr(error, "orig", None), "sqlstate", None) == _TIMED_OUT
                if not later or any(said in str(error) for said in _REFUSALS):
                    raise self._unusable(_why(error)) from error
                return self._failed(_why(error))

    def close(self) -> None:
        """Release connections; idempotent. A later call opens new ones."""
        self.engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self.engine.connect().execution_options(fetchwise_writes=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def _tried(self) -> Iterator[None]:
        self._fail_during_pause()
        try:
            if self._missing:
                self._make_tables()
            yield
        except SQLAlchemyError as error:
            if self.server and _away(error):
                self._failed(_why(error))
            else:
                self._worked()
            raise
        except ConfigurationError as error:
            # It could not be reached at the start, and now turns out to be unusable.
            self._failed(str(error))
            raise DatabaseUnreachable(str(error)) from error
        except Exception:
            self._worked()
            raise
        self._worked()

    def _make_tables(self) -> None:
        missing = list(self._missing)
        with self._transaction() as connection:
            if self.server:
                # Several workers may start at once. The lock ends with the transaction.
                connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            for prepare in missing:
                prepare(connection)
        with self._lock:
            self._missing.difference_update(missing)

    def _fail_during_pause(self) -> None:
        with self._lock:
            now = time.monotonic()
            if not self._problem:
                return
            if now < self._again_at:
                raise DatabaseUnreachable(self._problem)
            # One caller tries; the others go on failing at once instead of waiting with it.
            self._again_at = now + 4 * _PAUSES_S[1]

    def _failed(self, why: str) -> None:
        with self._lock:
            now = time.monotonic()
            if not self._problem:
                self._since = now
                logger.error("%s: %s cannot be used, trying again: %s", self.setting, self.name, why)
            self._problem, self._again_at = why, now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _PAUSES_S[1])

    def _worked(self) -> None:
        if not self._problem:
            return
        with self._lock:
            gone_s = time.monotonic() - self._since
            self._problem, self._pause_s = "", _PAUSES_S[0]
        logger.warning("%s: %s works again after %.0f s", self.setting, self.name, gone_s)

    def _unusable(self, why: object) -> ConfigurationError:
        with self._lock:
            self._missing.clear()
        self.close()
        return ConfigurationError(f"{self.setting}: {self.name} cannot be opened: {why}")


# One for each URL: parts of a gateway that use one database share its connections.
_SERVERS: "weakref.WeakValueDictionary[tuple[str, float], Database]" = weakref.WeakValueDictionary()
_OPENING = threading.Lock()


def open_database(
    where: str,
    prepare: Prepare,
    *,
    setting: str,
    busy_timeout_s: float | None = None,
    open_timeout_s: float = 10.0,
    reply_s: float = REPLY_S,
) -> Database:
    """Open a database by its path or SQLAlchemy URL and let `prepare` make its tables.

    A PostgreSQL server that cannot be reached is tried again later; anything else that fails is a ConfigurationError.
    `setting` is the environment variable that names the database, for messages.
    """
    with _OPENING:
        database = _SERVERS.get((where, reply_s))
        if database is None:
            busy_s = BUSY_TIMEOUT_S if busy_timeout_s is None else busy_timeout_s
            database = Database(_engine(where, setting, busy_s, reply_s), setting)
            if database.server:
                _SERVERS[where, reply_s] = database
    database.prepare(prepare, busy_s=open_timeout_s)
    return database


def _engine(where: str, setting: str, busy_timeout_s: float, reply_s: float) -> Engine:
    try:
        url = make_url(where) if "://" in where else URL.create("sqlite", database=where)
        name = url.get_backend_name()
        if name not in {"sqlite", "postgresql"} or (name == "sqlite" and url.database in {None, "", ":memory:"}):
            raise ConfigurationError(
                f"{setting} is a path, or the SQLAlchemy URL of a SQLite file or PostgreSQL database"
            )
        options = {"json_serializer": as_json, "json_deserializer": orjson.loads}
        if name == "postgresql":
            return _postgres(url, reply_s, **options)
        engine = create_engine(url, connect_args={"timeout": busy_timeout_s}, **options)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{setting} needs {error.name}: pip install 'fetchwise[postgres]'") from error
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigurationError(f"{setting} cannot be used: {error}") from error
    except ValueError:
        # Without the error: it shows the port, which may be a part of the password.
        raise ConfigurationError(
            f"{setting} cannot be used: its port is not a number, or its password is not percent-encoded"
        ) from None
    _configure_sqlite(engine, setting)
    return engine


def _postgres(url: URL, reply_s: float, **options: Any) -> Engine:  # noqa: ANN401 of create_engine
    # Imported here: an optional package.
    from app.storage import postgres  # noqa: PLC0415

    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    given = {name: value for name, value in postgres.CONNECT.items() if name not in url.query}
    # Pinged before use: a server that was restarted has closed the connections of the pool.
    engine = create_engine(url, connect_args=given, pool_pre_ping=True, **_POOL, **options)
    postgres.limit_calls(engine, reply_s)
    return engine


def _configure_sqlite(engine: Engine, setting: str) -> None:
    assert engine.url.database is not None
    try:
        Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{setting}: {engine.url.database} cannot be opened: {error}") from error

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _: object) -> None:
        # Without this the driver begins transactions itself, too late; `began` does it below.
        connection.isolation_level = None
        # FULL: a commit is on the disk when it returns. In batches that costs little.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def began(connection: Connection) -> None:
        writes = connection.get_execution_options().get("fetchwise_writes", False)
        # A transaction that reads first and writes later would fail, not wait, if another one wrote in between.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _why(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", error)).strip()


def _sqlite_code(error: SQLAlchemyError) -> int:
    code: int = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
    # The lower byte of an extended code is the plain one.
    return code & 0xFF


def _away(error: SQLAlchemyError) -> bool:
    """Whether the server cannot be reached, or the disk of a file is full: neither is a wrong setting."""
    if isinstance(error, PoolTimeout) or _sqlite_code(error) in _FULL:
        return True
    if not isinstance(error, DBAPIError):
        return False
    # Errors that PostgreSQL reports have a state; those of a connection that fails have none.
    unreported = isinstance(error, OperationalError) and getattr(error.orig, "sqlstate", "none") is None
    return error.connection_invalidated or unreported
