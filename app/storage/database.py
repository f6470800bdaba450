"""Opens databases: a SQLite file that several workers share, or a PostgreSQL server."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
from sqlalchemy import URL, Connection, Engine, create_engine, event, func, make_url, select
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from app.errors import ConfigurationError

# Other workers hold the file for milliseconds; a longer wait is reported as a failure.
BUSY_TIMEOUT_S = 1.0
_RETRY_OPEN_S = 0.1
# Seconds and milliseconds after which a dead server is noticed: without these a connection may wait for ever. The URL
# may set its own.
_TIMEOUTS = {"connect_timeout": 10, "tcp_user_timeout": 10_000}
# Of PostgreSQL's advisory locks: held while tables are made.
_LOCK = 0x66776C6F67


def as_json(value: object) -> str:
    """Lists and mappings as the database stores them."""
    return orjson.dumps(value, default=dict).decode()


def open_database(
    where: str,
    prepare: Callable[[Connection], None],
    *,
    setting: str,
    busy_timeout_s: float | None = None,
    open_timeout_s: float = 10.0,
) -> Engine:
    """Open a database by its path or SQLAlchemy URL and let `prepare` make its tables; ConfigurationError on failure.

    `setting` is the environment variable that names the database, for messages.
    """
    engine = _engine(where, setting, BUSY_TIMEOUT_S if busy_timeout_s is None else busy_timeout_s)
    deadline = time.monotonic() + open_timeout_s
    while True:
        try:
            with writing(engine) as connection:
                if connection.dialect.name == "postgresql":
                    # Several workers may start at once. The lock ends with the transaction.
                    connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
                prepare(connection)
        except ConfigurationError as error:
            raise _unusable(engine, setting, error) from error
        except SQLAlchemyError as error:
            # Another worker may be making it at this moment; SQLite does not always wait for that by itself.
            if not _busy(error) or time.monotonic() > deadline:
                raise _unusable(engine, setting, getattr(error, "orig", error)) from error
            time.sleep(_RETRY_OPEN_S)
        else:
            return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that holds the right to write from its beginning."""
    with engine.connect().execution_options(fetchwise_writes=True) as connection, connection.begin():
        yield connection


def name_of(engine: Engine) -> str:
    """The database's URL without its password."""
    return engine.url.render_as_string(hide_password=True)


def _engine(where: str, setting: str, busy_timeout_s: float) -> Engine:
    try:
        url = make_url(where) if "://" in where else URL.create("sqlite", database=where)
        name = url.get_backend_name()
        if name not in {"sqlite", "postgresql"} or (name == "sqlite" and url.database in {None, "", ":memory:"}):
            raise ConfigurationError(
                f"{setting} is a path, or the SQLAlchemy URL of a SQLite file or PostgreSQL database"
            )
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        options = {"json_serializer": as_json, "json_deserializer": orjson.loads}
        if name == "postgresql":
            # Pinged before use: a server that was restarted has closed the connections of the pool.
            timeouts = {name: value for name, value in _TIMEOUTS.items() if name not in url.query}
            return create_engine(url, connect_args=timeouts, pool_pre_ping=True, **options)
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


def _configure_sqlite(engine: Engine, setting: str) -> None:
    assert engine.url.database is not None
    try:
        Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(engine, setting, error) from error

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


def _busy(error: SQLAlchemyError) -> bool:
    code: int = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
    # The lower byte of an extended code is the plain one.
    return code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _unusable(engine: Engine, setting: str, error: object) -> ConfigurationError:
    engine.dispose()
    return ConfigurationError(f"{setting}: {name_of(engine)} cannot be opened: {error}")
