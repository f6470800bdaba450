"""The collector of traces is dead."""

import asyncio
from pathlib import Path

import pytest

from tests.drills.load import load
from tests.e2e.processes import gateway
from tests.waiting import wait_until
from tests.wire.paper_costs import PaperUpstream
from tests.wire.servers import free_port

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]


def test_questions_are_answered_without_traces(tmp_path: Path, upstream: PaperUpstream) -> None:
    """No question fails, the log says that spans are lost, and Ctrl-C ends the gateway."""
    asyncio.run(upstream.publish_gate(tmp_path / "calibrators"))
    chosen = upstream.settings(tmp_path / "calibrators") | {"traces": "otlp"}
    collector = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with gateway(tmp_path, env=collector, **chosen) as running:
        with load(running.url, callers=4) as asked:
            asked.wait_for(200)
            wait_until(lambda: "opentelemetry" in running.log.read_text().lower(), "the log does not say it")
        assert asked.failed == [], asked.counts
