"""Databases for the suites of the decision log: SQLite, and a real PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.e2e)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database, as FETCHWISE_DECISION_LOG names it."""
    if request.param == "sqlite":
        return str(tmp_path / "decisions.sqlite3")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()
