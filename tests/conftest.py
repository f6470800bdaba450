"""The number of Hypothesis examples, and servers that several suites share.

Few examples in `make test`, many in CI (`HYPOTHESIS_PROFILE=thorough`). They are derived from each test, so every
run and every machine uses the same.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.e2e.postgres import PostgresServer
    from tests.e2e.qdrant import QdrantProcess

settings.register_profile(
    "quick", max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session")
def qdrant_process(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[QdrantProcess]":
    """A real Qdrant server, for tests that do not kill it."""
    # Imported here: the vendor's client takes a second to import, and most tests do not need it.
    from tests.e2e.qdrant import QdrantProcess

    server = QdrantProcess(tmp_path_factory.mktemp("qdrant"))
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    """A real PostgreSQL server; a test that stops it starts it again."""
    from tests.e2e.postgres import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.e2e)])
def log_at(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database for a decision log, as a value of FETCHWISE_DECISION_LOG."""
    if request.param == "sqlite":
        return str(tmp_path / "decisions.sqlite3")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()
