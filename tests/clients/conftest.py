"""Gateways on a simulated reader that calls tools, and on the embedded reader."""

from collections.abc import Iterator

import pytest

from tests.clients.gateways import gateway_for_clients, simulated_gateway
from tests.clients.programs import Programs


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Programs that call a gateway on the simulated reader."""
    with simulated_gateway(tmp_path_factory.mktemp("simulated")) as gateway:
        yield Programs(gateway, {})


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Programs that call a gateway on the embedded reader, whose calibrator is the one in the repository."""
    with gateway_for_clients(tmp_path_factory.mktemp("embedded")) as gateway:
        yield Programs(gateway | {"calls_tools": "never"}, {})
