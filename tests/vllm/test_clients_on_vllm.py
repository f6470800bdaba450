"""Real client libraries, at their defaults, against a gateway on real vLLM: nothing is refused."""

import os
from collections.abc import Iterator

import pytest

from app.upstream.child import ChildServer
from tests.clients.gateways import gateway_for_clients
from tests.clients.programs import EVERY, Programs
from tests.vllm.conftest import MODEL

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(3600),
    pytest.mark.skipif("TEST_VLLM_PYTHON" not in os.environ, reason="run `make test-vllm`, which installs vLLM first"),
]


@pytest.fixture(scope="session")
def programs(vllm: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Programs that call a gateway on vLLM. No calibrator matches it, so it does not abstain."""
    settings = {"reader": vllm.url, "reader_model": MODEL, "reader_timeout_s": "240"}
    with gateway_for_clients(tmp_path_factory.mktemp("clients"), **settings) as gateway:
        yield Programs(gateway | {"calls_tools": "forced"}, {})


@pytest.mark.parametrize(("client", "scenario"), [one for one in EVERY if one[1] != "abstention"])
def test_client(programs: Programs, client: str, scenario: str) -> None:
    """The library can do this."""
    assert programs.outcome(client, scenario) == ""
