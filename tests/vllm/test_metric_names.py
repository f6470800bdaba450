"""The dashboard's vLLM panels use metrics that a real vLLM has."""

import os

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.upstream.child import ChildServer
from tests.deploy.pieces import NAME, panels
from tests.vllm.test_vllm_server import client

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="session"),
    # It may be the first test, which waits for vLLM to start.
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "TEST_VLLM_PYTHON" not in os.environ,
        reason="TEST_VLLM_PYTHON is not set: run `make test-vllm`, which installs vLLM first",
    ),
]


async def test_every_vllm_metric_of_the_dashboard_exists(vllm: ChildServer) -> None:
    """Scraped as Prometheus does; an older Prometheus gets underscores for colons, which our configuration undoes."""
    with client(vllm.url) as http:
        said = http.get("/metrics", headers={"accept": "text/plain"}).text
    there = {sample.name for family in text_string_to_metric_families(said) for sample in family.samples}
    asked = {
        name for panel in panels() for expr in panel.exprs for name in NAME.findall(expr) if name.startswith("vllm:")
    }
    assert asked
    assert asked <= there
