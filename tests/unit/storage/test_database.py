"""A database that is away: it refuses at once, is tried again after a pause that grows, and is then used."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from app.errors import ConfigurationError, DocumentConflict, LogUnavailable, StorageUnavailable
from app.storage import database as opening
from app.storage.decisions import SqlDecisionStore
from app.storage.documents import open_documents
from app.storage.postgres import TimedConnection
from tests.fakes.records import a_record

REFUSED = "connection refused"


class Tries:
    """Counts connections that are tried; each fails with `error`."""

    def __init__(self) -> None:
        self.count = 0
        self.error: str | psycopg.Error = REFUSED

    def connect(self, *_: Any, **options: Any) -> TimedConnection:
        self.count += 1
        self.options = options
        raise psycopg.OperationalError(self.error) if isinstance(self.error, str) else self.error


class Clock:
    """The monotonic clock of the module, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Tries:
    """A server that nobody reaches."""
    found = Tries()
    monkeypatch.setattr(TimedConnection, "connect", found.connect)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    found = Clock()
    monkeypatch.setattr(opening, "time", found)
    return found


@pytest.fixture
def away(tries: Tries, clock: Clock, request: pytest.FixtureRequest) -> Iterator[SqlDecisionStore]:
    """The log of a gateway that starts while its server cannot be reached."""
    store = SqlDecisionStore.open(f"postgresql://us:secret@away/{request.node.name}")
    yield store
    store.close()


def refused(call: Callable[[], object], match: str = REFUSED) -> None:
    """The call fails as long as the log is away."""
    with pytest.raises(LogUnavailable, match=match):
        call()


def test_a_server_that_is_away_is_tried_again_after_growing_pauses(
    away: SqlDecisionStore, tries: Tries, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening it is no error; calls fail at once between two tries, and the log has one line, without the password."""
    assert tries.count == 1
    for pause in (0.5, 1.0, 2.0, 4.0, 5.0, 5.0):
        before = tries.count
        clock.now += 0.9 * pause
        refused(lambda: away.write([(1.0, a_record())], []))
        refused(away.size)
        assert tries.count == before
        clock.now += 0.2 * pause
        refused(away.size)
        assert tries.count == before + 1
    (line,) = (*caplog.get_records("setup"), *caplog.records)
    assert "trying again" in line.getMessage()
    assert "secret" not in line.getMessage()


def test_while_one_call_tries_the_others_fail_at_once(away: SqlDecisionStore, tries: Tries, clock: Clock) -> None:
    """A try may take seconds: only one caller waits for it."""
    clock.now += 1.0
    during: list[int] = []

    def connect(*_: Any, **__: Any) -> TimedConnection:
        refused(away.size)
        during.append(tries.count)
        raise psycopg.OperationalError(REFUSED)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TimedConnection, "connect", connect)
        refused(away.size)
    assert during == [1]


@pytest.mark.parametrize(
    "said",
    [
        'FATAL:  password authentication failed for user "us"',
        'FATAL:  database "log" does not exist',
        'FATAL:  no pg_hba.conf entry for host "10.0.0.1"',
        "FATAL:  no such database: log",
    ],
)
def test_a_url_that_never_works_refuses_the_start(tries: Tries, clock: Clock, said: str) -> None:
    """The server answers, and says that the setting is wrong."""
    tries.error = said
    with pytest.raises(ConfigurationError, match=r"^FETCHWISE_DECISION_LOG: .*\*\*\*@away.* cannot be opened") as error:
        SqlDecisionStore.open("postgresql://us:secret@away/refused")
    assert "secret" not in str(error.value)


def test_a_long_wait_for_the_lock_is_no_refusal(tries: Tries, clock: Clock) -> None:
    """Many gateways make the tables at once, on a slow server: this one goes on, and looks again."""
    tries.error = psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
    refused(SqlDecisionStore.open("postgresql://us@away/crowded").size, "statement timeout")


def test_parts_of_one_gateway_share_a_server(away: SqlDecisionStore, tries: Tries, request: Any) -> None:
    """The second does not wait for a server that the first could not reach."""
    where = f"postgresql://us:secret@away/{request.node.name}"
    documents = open_documents(where, "keys", setting="FETCHWISE_KEYS")
    with pytest.raises(StorageUnavailable, match=rf"keys/a in postgresql.* cannot be read: {REFUSED}"):
        documents.read("a")
    assert tries.count == 1


def test_an_error_of_the_caller_ends_an_outage(tmp_path: Path, clock: Clock) -> None:
    """The server answered: other calls need not wait for the next try."""
    store = SqlDecisionStore.open(str(tmp_path / "log.sqlite3"))
    store.database._failed("gone")
    refused(store.size, "gone")
    clock.now += 1.0

    def conflict() -> None:
        with store.database.writing():
            raise DocumentConflict

    with pytest.raises(DocumentConflict):
        conflict()
    assert store.size() == 0
    store.database._failed("gone")
    clock.now += 1.0
    store.database.prepare(lambda _: None, busy_s=0.0)
    assert store.size() == 0


def test_nothing_of_a_connection_outlives_its_transaction(away: SqlDecisionStore, tries: Tries) -> None:
    """PgBouncer lends one session to several clients: no prepared statements, and no parameters of the session."""
    assert tries.options["prepare_threshold"] is None
    assert "options" not in tries.options
    assert {"connect_timeout", "tcp_user_timeout", "keepalives_idle"} <= tries.options.keys()
