"""The gateway and ingestion on a real Qdrant server: killed, restarted, with a key, and with many passages."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.core.available import Passage
from tests.e2e.processes import REPO, command_environment, fetchwise, gateway
from tests.e2e.qdrant import QdrantProcess
from tests.e2e.upstreams import upstreams
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

COLLECTION = "demo"
QUESTION = "What is the capital of Freedonia7?"


@pytest.fixture(scope="module")
def parts() -> Iterator[dict[str, str]]:
    """Settings of a gateway whose reader and embedder answer at once."""
    with upstreams() as settings:
        yield settings | {"calibrators": "none", "breaker_retry_s": "0.2"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[QdrantProcess]:
    """A server that the test may kill."""
    running = QdrantProcess(tmp_path / "qdrant")
    running.start()
    try:
        yield running
    finally:
        running.kill()


def corpus(path: Path, passages: int) -> Path:
    """A file of passages, each about another country."""
    rows = ({"title": f"Freedonia{n}", "text": f"The capital of Freedonia{n} is City{n}."} for n in range(passages))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def count(server: QdrantProcess) -> int:
    """The number of passages on the server."""

    async def ask() -> int:
        client = server.client()
        try:
            return await client.count(COLLECTION)
        finally:
            await client.close()

    return asyncio.run(ask())


def test_kill_9_during_ingestion(tmp_path: Path, parts: dict[str, str], server: QdrantProcess) -> None:
    """Whichever process is killed, stored passages stay, and another run adds the rest without duplicates."""
    total = 12_000
    path = corpus(tmp_path / "corpus.jsonl", total)
    env = command_environment(tmp_path / "data", **parts, vectors=server.url)
    command = [sys.executable, "-c", "from app.cli import main; main()", "ingest", str(path)]

    def started() -> "subprocess.Popen[str]":
        return subprocess.Popen(command, cwd=REPO, env=env, stderr=subprocess.PIPE, text=True)

    assert fetchwise("ingest", str(corpus(tmp_path / "first.jsonl", 10)), env=env).returncode == 0
    with started() as ingesting:
        wait_until(lambda: count(server) >= 500, "nothing was stored")
        ingesting.send_signal(signal.SIGKILL)
    before = count(server)
    assert before < total

    with started() as ingesting:
        wait_until(lambda: count(server) >= before + 500, "nothing was added")
        stored = count(server)
        server.kill()
        _, said = ingesting.communicate(timeout=60)
    assert (ingesting.returncode, "Traceback" in said) == (1, False)
    assert "vector store" in said

    server.start()
    assert stored <= count(server) < total
    finished = fetchwise("ingest", str(path), env=env)
    assert finished.returncode == 0, finished.stderr
    assert count(server) == total


@pytest.mark.parametrize("grpc", [False, True])
def test_kill_9_during_questions(tmp_path: Path, parts: dict[str, str], server: QdrantProcess, grpc: bool) -> None:
    """While the server is down, questions fail with 503; once it is back, they are answered from passages again."""
    seed = corpus(tmp_path / "corpus.jsonl", 50)
    url = server.grpc_url if grpc else server.url
    with gateway(tmp_path / "data", **parts, vectors=url, vectors_grpc=str(grpc), seed=str(seed)) as running:

        def answered() -> bool:
            response = running.ask(QUESTION, policy="always")
            if response.status_code == 200:
                assert response.json()["citations"][0]["title"] == "Freedonia7"
                return True
            assert response.status_code == 503, response.text
            assert response.json()["error"]["type"].startswith("upstream"), response.text
            return False

        for _ in range(2):
            assert all(answered() for _ in range(20))
            server.kill()
            assert not any(answered() for _ in range(20))
            server.start()
            wait_until(answered, "questions still fail")


@pytest.mark.parametrize("grpc", [False, True])
def test_key_is_required(tmp_path: Path, parts: dict[str, str], grpc: bool) -> None:
    """Without the server's key, ingestion names the setting to set; with it, ingestion works."""
    server = QdrantProcess(tmp_path / "qdrant", api_key="s3cret")
    server.start()
    try:
        url = server.grpc_url if grpc else server.url
        env = command_environment(tmp_path / "data", **parts, vectors=url, vectors_grpc=str(grpc))
        path = str(corpus(tmp_path / "corpus.jsonl", 10))
        for key in ({}, {"FETCHWISE_VECTORS_API_KEY": "wrong"}):
            refused = fetchwise("ingest", path, env=env | key)
            assert refused.returncode == 1
            assert "FETCHWISE_VECTORS_API_KEY" in refused.stderr
        taken = fetchwise("ingest", path, env=env | {"FETCHWISE_VECTORS_API_KEY": "s3cret"})
        assert taken.returncode == 0, taken.stderr
        assert count(server) == 10
    finally:
        server.kill()


async def test_filtered_search_among_100_000_passages(qdrant_process: QdrantProcess) -> None:
    """A filter that few passages match finds the nearest of exactly these, and all of them."""
    size, dimension, shelves, name = 100_000, 16, 500, "many"
    vectors = np.random.default_rng(7).normal(size=(size, dimension))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    passages = [Passage(str(n), "", "", payload={"shelf": n % shelves}) for n in range(size)]
    client = qdrant_process.client(grpc=True)
    try:
        await client.create(name, dimension=dimension)
        rows = vectors.tolist()
        for start in range(0, size, 10_000):
            await client.add(name, passages[start : start + 10_000], rows[start : start + 10_000])
        assert await client.count(name) == size
        took = []
        for shelf in random.Random(7).sample(range(shelves), 50):
            wanted = vectors[(shelf + 1) % size]
            begun = time.perf_counter()
            found = await client.search(name, wanted.tolist(), limit=5, where={"shelf": shelf})
            took.append(time.perf_counter() - begun)
            members = np.arange(shelf, size, shelves)
            nearest = members[np.argsort(-(vectors[members] @ wanted))][:5]
            assert [int(passage.id) for passage in found] == nearest.tolist()
        print(f"median filtered search among {size} passages: {1000 * sorted(took)[len(took) // 2]:.1f} ms")
    finally:
        await client.close()
