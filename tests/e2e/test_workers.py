"""Several workers act as one gateway: real processes on simulated upstreams, counted and judged together."""

import asyncio
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.processes import (
    Gateway,
    alive,
    command_environment,
    descendants,
    fetchwise,
    from_each_worker,
    gateway,
    wait_until_gone,
)
from tests.waiting import wait_until
from tests.wire.paper_costs import PaperUpstream

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
WORKERS = 3


def settings(upstream: PaperUpstream, folder: Path, **more: str) -> dict[str, str]:
    asyncio.run(upstream.publish_gate(folder / "calibrators"))
    return upstream.settings(folder / "calibrators") | more


async def ask_many(url: str, count: int, *, at_once: int = 12) -> list[dict[str, Any]]:
    """Each question on its own connection, so every worker gets some."""
    permits = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:

        async def one(number: int) -> dict[str, Any]:
            async with permits:
                response = await client.post("/answer", json={"question": f"What is number {number}?"})
                assert response.status_code == 200, response.text
                receipt: dict[str, Any] = response.json()
                return receipt

        return await asyncio.gather(*(one(number) for number in range(count)))


def get_from_each(running: Gateway, path: str) -> dict[int, httpx.Response]:
    """The same request to every worker."""
    return from_each_worker(running, WORKERS, lambda client: client.get(path))


def judged_by_each(running: Gateway) -> list[Any]:
    """The break-even that each worker reports; its figures are a second or more old."""
    return [reply.json() for reply in get_from_each(running, "/breakeven").values()]


def samples(text: str, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"fetchwise_{name}"
    }


def test_workers_count_and_judge_as_one(tmp_path: Path, upstream: PaperUpstream) -> None:
    """Every worker reports the same counters and the same break-even, and no file is left at the end."""
    with gateway(tmp_path, workers=str(WORKERS), **settings(upstream, tmp_path)) as running:
        # Every worker has started, so that each gets some of the questions.
        get_from_each(running, "/healthz")
        receipts = asyncio.run(ask_many(running.url, 300))
        by_k = Counter(str(receipt["k"]) for receipt in receipts)
        assert len(by_k) == 3
        scrapes = get_from_each(running, "/metrics")
        for reply in scrapes.values():
            assert sum(samples(reply.text, "requests_total").values()) == 300
            assert samples(reply.text, "gated_total") == {(k,): count for k, count in by_k.items()}
            assert samples(reply.text, "in_flight") == {(): 0.0}
            assert samples(reply.text, "upstream_up") == {("embedder",): 1, ("reader",): 1, ("vectors",): 1}
            assert len(samples(reply.text, "calibrator_info")) == 1
        wait_until(lambda: all(one["window"]["answers"] == 300 for one in judged_by_each(running)), "not all counted")
        judged = judged_by_each(running)
        for one in judged:
            # Only the age of the first question differs.
            del one["window"]["covered_seconds"]
        assert judged[0] == judged[1] == judged[2]
        assert judged[0]["window"] == {"seconds": 900, "answers": 300, "gated": 300, "workers": WORKERS}
        below = descendants(running.process.pid)
        directory = Path(_environment(below[0])["PROMETHEUS_MULTIPROC_DIR"]).parent
        assert directory.exists()
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(30) == 0
        wait_until_gone(below)
        assert not directory.exists()
        assert "Traceback" not in running.log.read_text()


def _environment(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def test_killed_worker_is_replaced_and_its_counts_stay(tmp_path: Path, upstream: PaperUpstream) -> None:
    """Its questions stay in the counters and in the window; its unfinished question is no longer in flight."""
    with gateway(tmp_path, workers=str(WORKERS), **settings(upstream, tmp_path)) as running:
        asyncio.run(ask_many(running.url, 60))
        before = set(get_from_each(running, "/healthz"))
        upstream.held = True
        with httpx.Client(base_url=running.url, timeout=60) as client, ThreadPoolExecutor(1) as pool:
            victim = client.get("/healthz").json()["worker"]
            asking = pool.submit(client.post, "/answer", json={"question": "What takes forever?"})
            wait_until(lambda: in_progress(running) == 1.0, "the question is not in progress")
            wait_until(lambda: on_dashboards(running) == [1] * WORKERS, "a dashboard misses another worker's question")
            os.kill(victim, signal.SIGKILL)
            assert isinstance(asking.exception(60), httpx.TransportError)
        wait_until(lambda: set(get_from_each(running, "/healthz")) - before != set(), "no worker took its place")
        for reply in get_from_each(running, "/metrics").values():
            assert sum(samples(reply.text, "requests_total").values()) == 60
            assert samples(reply.text, "in_flight") == {(): 0.0}
        wait_until(lambda: all(one["window"]["answers"] == 60 for one in judged_by_each(running)), "not all counted")


def on_dashboards(running: Gateway) -> list[int]:
    """Questions in flight on the dashboard of each worker."""
    return [reply.json()["in_flight"] for reply in get_from_each(running, "/dashboard/data").values()]


def in_progress(running: Gateway) -> float:
    return samples(httpx.get(f"{running.url}/metrics", timeout=30).text, "in_flight")[()]


def test_workers_end_with_their_supervisor(tmp_path: Path, upstream: PaperUpstream) -> None:
    """After kill -9 of the supervisor, all workers end."""
    with gateway(tmp_path, workers=str(WORKERS), **settings(upstream, tmp_path)) as running:
        below = descendants(running.process.pid)
        assert len([pid for pid in below if alive(pid)]) >= WORKERS
        running.process.kill()
        running.process.wait(10)
        wait_until_gone(below)


@pytest.mark.parametrize(
    ("part", "value"), [("reader", "embedded"), ("reader", "vllm"), ("vectors", "embedded")], ids=str
)
def test_workers_need_remote_upstreams(tmp_path: Path, part: str, value: str) -> None:
    """An upstream inside one process cannot serve several: the start is refused in one sentence."""
    remote = {"reader": "http://127.0.0.1:9", "reader_model": "m", "vectors": "http://127.0.0.1:9"}
    done = fetchwise("serve", "--workers", "2", env=command_environment(tmp_path, **(remote | {part: value})))
    assert done.returncode == 1
    assert f"FETCHWISE_{part.upper()}={value}" in done.stderr
    assert "Traceback" not in done.stderr


def test_invalid_settings_refuse_the_start(tmp_path: Path, upstream: PaperUpstream) -> None:
    """In one sentence, before any worker is started."""
    (tmp_path / "broken.json").write_text("{}")
    chosen = settings(upstream, tmp_path) | {"prompts": str(tmp_path / "broken.json"), "port": "0"}
    done = fetchwise("serve", "--workers", "2", env=command_environment(tmp_path, **chosen))
    assert done.returncode == 1
    assert "FETCHWISE_PROMPTS" in done.stderr
    assert "Traceback" not in done.stderr
