"""Servers that several suites share, started once."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.e2e.qdrant import QdrantProcess


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
