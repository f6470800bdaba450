"""What a start needs, and what a worker that cannot start does to the others."""

import asyncio
import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from app.core.prompts import DEFAULT
from tests.drills.load import load
from tests.e2e.processes import descendants, from_each_worker, gateway
from tests.waiting import wait_until
from tests.wire.paper_costs import PaperUpstream

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_start_needs_no_search(tmp_path: Path, upstream: PaperUpstream, workers: str) -> None:
    """Without embedder and vectors the gateway starts and answers what needs no search; later it uses both."""
    asyncio.run(upstream.publish_gate(tmp_path / "calibrators"))
    upstream.down = {"embedder", "vectors"}
    (tmp_path / "seed.jsonl").write_text('{"title": "Jamaica", "text": "Kingston is the capital of Jamaica."}\n')
    chosen = upstream.settings(tmp_path / "calibrators") | {"workers": workers, "seed": str(tmp_path / "seed.jsonl")}
    with gateway(tmp_path, **chosen) as running:
        assert httpx.get(f"{running.url}/readyz", timeout=30).json()["state"] == "degraded"
        with load(running.url, callers=4) as asked:
            asked.wait_for(50)
        assert asked.failed == [], asked.counts
        assert "the embedder does not answer yet" in running.log.read_text()
        upstream.down = set()
        wait_until(
            lambda: httpx.get(f"{running.url}/readyz", timeout=30).json()["state"] == "ready", "it stays degraded"
        )
        assert running.ask("What is read?", retrieval="required").json()["k"] > 0
        # The collection exists, so that nothing was added; but it was asked again.
        assert "seed.jsonl is not in demo yet" in running.log.read_text()


def test_worker_that_cannot_start_does_not_stop_the_others(tmp_path: Path, upstream: PaperUpstream) -> None:
    """One of two is killed, and its replacements fail: the other answers everything, and later both serve."""
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps(asdict(DEFAULT)))
    asyncio.run(upstream.publish_gate(tmp_path / "calibrators"))
    chosen = upstream.settings(tmp_path / "calibrators") | {"workers": "2", "prompts": str(prompts)}
    with gateway(tmp_path, **chosen) as running:
        victim, *_ = from_each_worker(running, 2, lambda client: client.get("/healthz"))
        prompts.write_text("{}")
        os.kill(victim, signal.SIGKILL)
        wait_until(
            lambda: running.log.read_text().count("ended with exit code 3") >= 2, "no replacement failed", within_s=200
        )
        with load(running.url, callers=4) as asked:
            asked.wait_for(100)
        assert asked.failed == [], asked.counts
        prompts.write_text(json.dumps(asdict(DEFAULT)))
        workers: dict[int, str] = {}

        def both_ready() -> bool:
            workers.update(from_each_worker(running, 2, lambda client: client.get("/readyz").json()["state"]))
            return set(workers.values()) == {"ready"}

        wait_until(both_ready, f"not both are ready: {workers}")
        assert victim not in workers
        assert running.process.poll() is None
        assert set(workers) <= set(descendants(running.process.pid))
