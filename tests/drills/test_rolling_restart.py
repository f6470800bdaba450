"""Two gateways behind a load balancer are restarted one after the other under load: no request fails."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.drills.balancers import envoy, haproxy
from tests.drills.load import load
from tests.e2e.processes import Gateway, gateway
from tests.e2e.test_workers import samples
from tests.waiting import wait_until
from tests.wire.paper_costs import PaperUpstream
from tests.wire.servers import free_port

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]

Balancer = Callable[[Path, Sequence[int]], AbstractContextManager[str]]
slow = pytest.mark.slow


def has_answered(running: Gateway) -> bool:
    shown = httpx.get(f"{running.url}/metrics", timeout=30).text
    return any(
        count > 0
        for labels, count in samples(shown, "http_requests_total").items()
        if set(labels) == {"/answer", "200"}
    )


@pytest.mark.parametrize(
    ("balancer", "workers", "rounds"),
    [
        pytest.param(partial(haproxy, mode="http"), "1", 1, id="HAProxy, http"),
        pytest.param(partial(haproxy, mode="tcp"), "2", 1, id="HAProxy, tcp, two workers"),
        pytest.param(envoy, "1", 1, id="Envoy"),
        pytest.param(partial(haproxy, mode="http"), "2", 3, id="HAProxy, http, two workers, three times", marks=slow),
        pytest.param(partial(haproxy, mode="tcp"), "1", 3, id="HAProxy, tcp, three times", marks=slow),
        pytest.param(envoy, "2", 3, id="Envoy, two workers, three times", marks=slow),
    ],
)
def test_no_request_fails(
    tmp_path: Path, upstream: PaperUpstream, balancer: Balancer, workers: str, rounds: int
) -> None:
    """Each gateway drains, ends with exit code 0, and a new process takes its place before the other one goes."""
    asyncio.run(upstream.publish_gate(tmp_path / "calibrators"))
    ports = [free_port(), free_port()]
    with ExitStack() as stack:

        def start(port: int) -> tuple[Gateway, ExitStack]:
            own = stack.enter_context(ExitStack())
            settings = upstream.settings(tmp_path / "calibrators") | {"port": str(port), "workers": workers}
            return own.enter_context(gateway(tmp_path / str(port), **settings)), own

        running = {port: start(port) for port in ports}
        url = stack.enter_context(balancer(tmp_path / "balancer", ports))
        with load(url) as asked:
            asked.wait_for(100)
            for port in ports * rounds:
                old, ended = running[port]
                old.process.send_signal(signal.SIGTERM)
                assert old.process.wait(60) == 0
                ended.close()
                running[port] = start(port)
                # The load balancer has seen it, too: it has answered a question.
                wait_until(partial(has_answered, running[port][0]), "the new gateway gets no questions")
                asked.wait_for(100)
        print(f"{len(asked.failed)} of {len(asked.replies)} failed: {asked.counts}")
        assert asked.failed == [], (asked.counts, [str(one) for one in asked.failed[:5]])
