"""Gateways on a simulated reader that calls tools, and on the embedded reader."""

from collections.abc import Iterator

import pytest

from tests.clients.gateways import gateway_for_clients, tool_reader
from tests.clients.programs import Programs
from tests.wire.reader_server import MODEL


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Programs that call a gateway on the simulated reader."""
    with (
        tool_reader() as url,
        gateway_for_clients(tmp_path_factory.mktemp("simulated"), reader=url, reader_model=MODEL) as gateway,
    ):
        yield Programs(gateway | {"calls_tools": True}, {})


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Programs that call a gateway on the embedded reader."""
    with gateway_for_clients(tmp_path_factory.mktemp("embedded")) as gateway:
        yield Programs(gateway | {"calls_tools": False}, {})
