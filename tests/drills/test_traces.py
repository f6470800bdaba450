"""The collector of traces is dead."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.drills.load import load
from tests.e2e.processes import Gateway, gateway
from tests.e2e.test_workers import samples
from tests.waiting import wait_until
from tests.wire.paper_costs import PaperUpstream
from tests.wire.servers import free_port

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]


def lost_batches(running: Gateway) -> float:
    return samples(httpx.get(f"{running.url}/metrics", timeout=30).text, "spans_dropped_total")[()]


def test_questions_are_answered_without_traces(tmp_path: Path, upstream: PaperUpstream) -> None:
    """No question fails; the log and a metric say that spans are lost."""
    asyncio.run(upstream.publish_gate(tmp_path / "calibrators"))
    chosen = upstream.settings(tmp_path / "calibrators") | {"traces": "otlp"}
    collector = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with gateway(tmp_path, env=collector, **chosen) as running:
        with load(running.url, callers=4) as asked:
            asked.wait_for(200)
            wait_until(lambda: lost_batches(running) > 0, "no metric says it")
        assert running.log.read_text().count("traces are lost") == 1
        assert asked.failed == [], asked.counts
