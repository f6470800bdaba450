"""The decision log's SQLite file in trouble: locked, full, broken, or not to be opened at all."""

import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

from app.core.feedback import Feedback, Judged
from app.errors import ConfigurationError, LogUnavailable
from app.storage.decisions import SqlDecisionStore
from app.storage.reading import count
from tests.fakes.records import a_record

PRAGMAS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log will be, in a folder that is not there yet."""
    return tmp_path / "data" / "decisions.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[SqlDecisionStore]:
    """A log with one decision, which does not wait long for a lock."""
    opened = SqlDecisionStore.open(str(path), busy_timeout_s=0.05)
    opened.write([(1.0, a_record(id="first"))], [])
    yield opened
    opened.close()


def test_a_commit_is_synced_and_readers_do_not_block_writers(store: SqlDecisionStore) -> None:
    """Write-ahead log, full synchronisation, and foreign keys: on every connection."""
    with store.database.engine.connect() as connection:
        settings = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in PRAGMAS}
        assert settings == PRAGMAS
        store.write([(1.0, a_record(id="second"))], [])


def test_a_locked_database_refuses_and_keeps_nothing_of_the_batch(store: SqlDecisionStore, path: Path) -> None:
    """While another connection writes, neither decisions nor feedback are stored; afterwards both are."""
    batch = ([(2.0, a_record(id="second"))], [(2.0, Feedback("first", correct=True))])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogUnavailable, match="locked"):
            store.write(*batch)
        with pytest.raises(LogUnavailable, match="locked"):
            store.prune(1.0, limit=1)
        assert count(store.database, 0.0) == 1
        other.execute("ROLLBACK")
    (outcome,) = store.write(*batch)
    assert isinstance(outcome, Judged)
    assert count(store.database, 0.0) == 2


def test_a_full_disk_refuses_and_loses_nothing_that_was_there(store: SqlDecisionStore) -> None:
    """Where no page can be added the whole batch is refused; with room again it is stored."""
    pages_allowed = 0

    @event.listens_for(store.database.engine, "begin")
    def limit(connection: object) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages_allowed or 2**30}")  # type: ignore[attr-defined]

    pages_allowed = 1  # Never below what there is: no page more.
    big = [(2.0, a_record(id=str(n), question="x" * 2000)) for n in range(50)]
    with pytest.raises(LogUnavailable, match="full"):
        store.write(big, [(2.0, Feedback("first", correct=True))])
    assert count(store.database, 0.0) == 1
    pages_allowed = 0
    (outcome,) = store.write(big, [(2.0, Feedback("first", correct=True))])
    assert isinstance(outcome, Judged)
    assert not outcome.repeated
    assert count(store.database, 0.0) == 51


def test_a_wait_for_the_lock_is_no_failure(path: Path) -> None:
    """Another worker's short transaction is waited for."""
    store = SqlDecisionStore.open(str(path), busy_timeout_s=30)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        ending = threading.Timer(0.2, other.execute, ("COMMIT",))
        ending.start()
        store.write([(1.0, a_record())], [])
        ending.join()
    assert count(store.database, 0.0) == 1
    store.close()


def test_a_log_that_is_locked_at_the_start_is_named(store: SqlDecisionStore, path: Path) -> None:
    """Opening waits for as long as it may, then says which database it is."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ConfigurationError, match=r"decisions\.sqlite3.*locked"):
            SqlDecisionStore.open(str(path), busy_timeout_s=0.01, open_timeout_s=0.05)


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    """A file of another kind, a folder, and a place where nothing can be made: each is one sentence."""
    wrong = tmp_path / "letters.txt"
    wrong.write_text("Dear Ruth, " * 100)
    with pytest.raises(ConfigurationError, match=r"letters\.txt.*not a database"):
        SqlDecisionStore.open(str(wrong))
    with pytest.raises(ConfigurationError, match="unable to open"):
        SqlDecisionStore.open(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"File exists|Not a directory"):
        SqlDecisionStore.open(str(wrong / "below" / "decisions.sqlite3"))


@pytest.mark.parametrize(
    "where", ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "oracle://x", "://", "nothing://x"]
)
def test_a_database_that_cannot_keep_a_log_is_refused(where: str) -> None:
    """Memory forgets, and other databases are not spoken to: the setting is named."""
    with pytest.raises(ConfigurationError, match="FETCHWISE_DECISION_LOG"):
        SqlDecisionStore.open(where)


def test_a_server_needs_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the error says what to install."""
    where = "postgresql://user:secret@/x?host=/nowhere"
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "app.storage.postgres", raising=False)
    with pytest.raises(ConfigurationError, match=r"needs psycopg: pip install 'fetchwise\[postgres\]'"):
        SqlDecisionStore.open(where)
