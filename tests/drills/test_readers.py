"""One of two readers fails under load."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.drills.load import Load, load
from tests.e2e.processes import Gateway, gateway
from tests.e2e.test_workers import samples
from tests.waiting import wait_until
from tests.wire.paper_costs import QUICK, PaperUpstream, paper_upstream

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]


@contextmanager
def asked_gateway(folder: Path, first: PaperUpstream, second: PaperUpstream) -> Iterator[tuple[Gateway, Load]]:
    """A gateway with two readers, under load."""
    asyncio.run(first.publish_gate(folder / "calibrators"))
    chosen = first.settings(folder / "calibrators") | {"reader": f"{first.url},{second.url}", "reader_timeout_s": "8"}
    with gateway(folder, **chosen) as running, load(running.url) as asked:
        asked.wait_for(100)
        yield running, asked


def open_breakers(running: Gateway) -> float:
    return samples(httpx.get(f"{running.url}/metrics", timeout=30).text, "breaker_open")["reader",]


def state(running: Gateway) -> str:
    said: str = httpx.get(f"{running.url}/readyz", timeout=30).json()["state"]
    return said


def test_reader_that_dies(tmp_path: Path, upstream: PaperUpstream) -> None:
    """No question fails, its breaker opens, and the gateway is ready and degraded."""
    with ExitStack() as second:
        with asked_gateway(tmp_path, upstream, second.enter_context(paper_upstream(QUICK))) as (running, asked):
            second.close()
            wait_until(lambda: open_breakers(running) == 0.5, "no breaker opened")
            wait_until(lambda: state(running) == "degraded", "readiness does not say it")
            asked.wait_for(200)
        assert asked.failed == [], asked.counts


def test_reader_that_hangs(tmp_path: Path, upstream: PaperUpstream) -> None:
    """Questions that wait for it fail by its timeout until its breaker opens; then none fails, and it comes back."""
    with paper_upstream(QUICK) as second, asked_gateway(tmp_path, upstream, second) as (running, asked):
        second.held = True
        wait_until(lambda: open_breakers(running) == 0.5, "no breaker opened")
        # Also those that were waiting when it opened.
        asked.wait_for_everyone()
        before = len(asked.failed)
        assert {reply.status for reply in asked.failed} == {503}, asked.counts
        assert all("timeout" in reply.body for reply in asked.failed), asked.failed[0]
        asked.wait_for(300)
        assert len(asked.failed) == before, asked.counts
        second.held = False
        wait_until(lambda: open_breakers(running) == 0.0, "its breaker stays open")
        asked.wait_for(100)
        assert len(asked.failed) == before, asked.counts
