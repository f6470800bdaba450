"""How many examples a property is tried on, and servers that several suites share.

Few examples in `make test`, many in CI (`HYPOTHESIS_PROFILE=thorough`). They are derived from each test, so that every
run and every machine sees the same.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.e2e.qdrant import QdrantProcess

settings.register_profile(
    "quick", max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=200)
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
