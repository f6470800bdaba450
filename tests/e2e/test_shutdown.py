"""A gateway that is stopped finishes what it has begun: real processes, signals and sockets."""

import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import Gateway, descendants, gateway, wait_until_gone
from tests.e2e.test_workers import in_progress
from tests.waiting import wait_until
from tests.wire.paper_costs import PaperUpstream

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

each_number_of_workers = pytest.mark.parametrize("workers", ["1", "2"])


@contextlib.contextmanager
def held_gateway(folder: Path, upstream: PaperUpstream, **more: str) -> Iterator[Gateway]:
    """A gateway whose upstreams answer nothing until they are released."""
    asyncio.run(upstream.publish_gate(folder / "calibrators"))
    chosen = upstream.settings(folder / "calibrators") | {"decision_log": str(folder / "log.sqlite3")}
    chosen |= {"drain_s": "0"} | more
    with gateway(folder, **chosen) as running:
        upstream.held = True
        yield running


def logged(folder: Path) -> set[str]:
    """The ids of the stored decisions."""
    with contextlib.closing(sqlite3.connect(folder / "log.sqlite3")) as log:
        return {identifier for (identifier,) in log.execute("SELECT id FROM decisions")}


def refused(running: Gateway) -> bool:
    try:
        httpx.get(f"{running.url}/healthz", timeout=5)
    except httpx.TransportError:
        return True
    return False


@pytest.mark.parametrize(
    ("workers", "number"),
    [("1", signal.SIGTERM), ("2", signal.SIGTERM), ("1", signal.SIGINT)],
    ids=["SIGTERM", "SIGTERM, two workers", "SIGINT"],
)
def test_answers_in_progress_finish(
    tmp_path: Path, upstream: PaperUpstream, workers: str, number: signal.Signals
) -> None:
    """Clients get their answers, plain or streamed, decisions are stored, new questions are refused, the exit is 0."""
    with held_gateway(tmp_path, upstream, workers=workers) as running, ThreadPoolExecutor(4) as pool:
        plain = [pool.submit(running.ask, f"What is number {n}?") for n in range(3)]
        streamed = pool.submit(running.ask, "What is streamed?", stream=True)
        wait_until(lambda: in_progress(running) == 4.0, "the questions are not in progress")
        below = descendants(running.process.pid)
        running.process.send_signal(number)
        wait_until(lambda: refused(running), "newcomers are still served")
        assert not any(asking.done() for asking in (*plain, streamed))
        upstream.held = False
        receipts = [asking.result(60) for asking in plain]
        assert [reply.status_code for reply in receipts] == [200] * 3
        assert "event: final" in streamed.result(60).text
        assert running.process.wait(60) == 0
        wait_until_gone(below)
        assert {reply.json()["id"] for reply in receipts} < logged(tmp_path)
        assert len(logged(tmp_path)) == 4
        assert "Traceback" not in running.log.read_text()


@each_number_of_workers
def test_question_beyond_the_shutdown_timeout_gets_a_503(tmp_path: Path, upstream: PaperUpstream, workers: str) -> None:
    """After the timeout the client gets a 503 in the standard shape, and the gateway exits cleanly."""
    with (
        held_gateway(tmp_path, upstream, workers=workers, shutdown_timeout_s="1") as running,
        ThreadPoolExecutor(1) as pool,
    ):
        asking: Future[httpx.Response] = pool.submit(running.ask, "What takes forever?")
        wait_until(lambda: in_progress(running) == 1.0, "the question is not in progress")
        running.process.send_signal(signal.SIGTERM)
        reply = asking.result(60)
        assert (reply.status_code, reply.json()["error"]["type"]) == (503, "stopping")
        assert running.process.wait(60) == 0
        assert logged(tmp_path) == set()
        assert "Traceback" not in running.log.read_text()
