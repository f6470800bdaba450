"""A gateway that gets SIGTERM tells its load balancer first, and stops listening later."""

import asyncio
import signal
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import Gateway, descendants, gateway, wait_until_gone
from tests.waiting import wait_until
from tests.wire.paper_costs import PaperUpstream

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]

each_number_of_workers = pytest.mark.parametrize("workers", ["1", "2"])


def state(running: Gateway) -> str:
    """What `/readyz` says; empty if the connection is refused."""
    try:
        reply = httpx.get(f"{running.url}/readyz", timeout=30)
    except httpx.TransportError:
        return ""
    said: str = reply.json()["state"]
    assert reply.status_code == (200 if said in {"ready", "degraded"} else 503)
    return said


@each_number_of_workers
def test_order_of_events(tmp_path: Path, upstream: PaperUpstream, workers: str) -> None:
    """First not ready, still answering, each reply ends its connection; then no listener; then exit code 0."""
    asyncio.run(upstream.publish_gate(tmp_path / "calibrators"))
    chosen = upstream.settings(tmp_path / "calibrators") | {"workers": workers, "drain_s": "6"}
    with gateway(tmp_path, **chosen) as running:
        below = descendants(running.process.pid)
        running.process.send_signal(signal.SIGTERM)
        seen, answers = list[str](), list[httpx.Response]()

        def next_state() -> bool:
            seen.append(state(running))
            if seen[-1] == "draining" and not answers:
                answers.append(running.ask("What is asked now?"))
            return seen[-1] == ""

        wait_until(next_state, "it still listens")
        assert running.process.wait(60) == 0
        wait_until_gone(below)
    changes = [one for before, one in zip(["", *seen], seen, strict=False) if one != before]
    assert changes[-2:] == ["draining", ""], changes
    assert [(reply.status_code, reply.headers["connection"]) for reply in answers] == [(200, "close")]


@each_number_of_workers
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_second_signal_ends_the_draining(
    tmp_path: Path, upstream: PaperUpstream, workers: str, second: signal.Signals
) -> None:
    """The gateway stops at once, however long it was to drain."""
    asyncio.run(upstream.publish_gate(tmp_path / "calibrators"))
    chosen = upstream.settings(tmp_path / "calibrators") | {"workers": workers, "drain_s": "3600"}
    with gateway(tmp_path, **chosen) as running:
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: state(running) == "draining", "it does not drain")
        running.process.send_signal(second)
        assert running.process.wait(60) == 0


@each_number_of_workers
def test_ctrl_c_does_not_drain(tmp_path: Path, upstream: PaperUpstream, workers: str) -> None:
    """The gateway stops at once."""
    asyncio.run(upstream.publish_gate(tmp_path / "calibrators"))
    chosen = upstream.settings(tmp_path / "calibrators") | {"workers": workers, "drain_s": "3600"}
    with gateway(tmp_path, **chosen) as running:
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 0
