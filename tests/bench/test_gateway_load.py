"""The simulated upstreams and the load on them, in one process."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from bench.gateway import replies, systems
from bench.gateway.load import Target, closed_loop, request
from bench.gateway.open_loop import open_loop
from bench.gateway.simulator import Slots, simulator


@pytest.mark.parametrize("path", replies.PATHS)
async def test_reader_confidence_follows_the_path(path: str) -> None:
    """The question's own words set it; with five passages the reader is sure of every answer."""
    async with simulator() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:

        async def logprob(content: str) -> float:
            asked = {"messages": [{"role": "user", "content": content}], "logprobs": True}
            reply = (await client.post("/v1/chat/completions", json=asked)).json()
            tokens = reply["choices"][0]["logprobs"]["content"]
            assert all(len(token["top_logprobs"]) == 20 for token in tokens)
            return float(tokens[0]["logprob"])

        question = replies.question(path, 7)
        assert await logprob(question) == pytest.approx(replies.SURE[path] - 1.0)
        assert await logprob(f"[1] A title: a text\n\n{question}") == pytest.approx(replies.SURE[path] - 1.0)
        assert await logprob(f"[1] A title: a text\n[5] Another\n\n{question}") == pytest.approx(-0.05)


async def test_vectors_return_the_requested_number_of_passages() -> None:
    """An unknown path is a 404."""
    async with simulator() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for limit in (1, 5):
            query = {"query": [0.1] * replies.DIMENSION, "limit": limit}
            found = await client.post(f"/collections/{replies.COLLECTION}/points/query", json=query)
            assert len(found.json()["result"]["points"]) == limit
        embedded = (await client.post("/v1/embeddings", json={"input": ["a"]})).json()
        assert len(embedded["data"][0]["embedding"]) == replies.DIMENSION
        assert (await client.get("/nowhere")).status_code == 404


async def test_good_replies_and_errors_are_distinguished() -> None:
    """Another status, or a reply without the expected content, is an error; the first one is reported."""
    async with simulator() as port:
        good = systems.direct(port)
        sample = await closed_loop(good, connections=4, seconds=0.2, warm_up_s=0.05)
        assert sample.errors == 0
        assert len(sample.latencies) == len(sample.at) > 4
        assert sample.rps == len(sample.latencies) / sample.seconds
        for bad in (Target(port, good.requests, b"what it never says"), Target(port, (request("/no", b""),), b"")):
            sample = await closed_loop(bad, connections=2, seconds=0.05)
            assert sample.errors > 0
            assert not sample.latencies
            assert sample.complaint


class Waiting:
    """A connection that waits for an answer."""

    def __init__(self, *, gone: bool = False) -> None:
        self.gone = gone
        self.answered = asyncio.Event()

    def send(self, reply: bytes) -> None:
        assert reply == b"an answer"
        self.answered.set()


async def test_slots_limit_the_answers_in_progress() -> None:
    """Two run at once and the others queue; a client that has disconnected takes no slot."""
    slots = Slots(2, 0.01)
    first, second, left, last = connections = [Waiting(), Waiting(), Waiting(gone=True), Waiting()]
    for connection in connections:
        slots.take(connection, b"an answer")  # type: ignore[arg-type]
    assert (slots.busy, len(slots.waiting)) == (2, 2)
    for connection in (first, second, last):
        await asyncio.wait_for(connection.answered.wait(), 30)
    assert not left.answered.is_set()
    assert (slots.busy, len(slots.waiting)) == (0, 0)


@asynccontextmanager
async def answering(*replies_in_turn: bytes) -> AsyncIterator[int]:
    """A server that sends these replies in turn to any request; an empty one closes the connection."""
    turn = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                reply = replies_in_turn[turn % len(replies_in_turn)]
                turn += 1
                if not reply:
                    break
                writer.write(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has disconnected
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_open_loop_counts_outcomes() -> None:
    """Served, refused and failed replies by the second, every request once."""
    served, refused = replies.http(json.dumps({"k": 0}).encode()), replies.http(b"{}", "429 Too Many Requests")
    async with answering(served, refused, b"") as port:
        flood = await open_loop(Target(port, (request("/answer", b""),), b'"k": 0'), rate=300.0, seconds=1.0)
    counts = {outcome: len(at) for outcome, at in flood.at.items()}
    assert sum(counts.values()) == flood.sent
    assert min(counts.values()) > 0
    assert flood.complaint.startswith("0: the connection was closed")
    assert sum(sum(flood.by_second(outcome, 10)) for outcome in counts) == flood.sent
