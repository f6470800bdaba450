"""The whole gateway on real vLLM: a question over HTTP, and a client that disconnects."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.api.receipt import Receipt
from app.upstream.child import ChildServer
from tests.e2e.processes import REPO, Gateway, gateway
from tests.vllm.conftest import MODEL
from tests.vllm.test_vllm_server import AS_GIVEN, ENDLESS, generated_tokens, pytestmark, settled, until

__all__ = ["pytestmark"]


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    """A few passages to search."""
    lines = (REPO / "demo/passages.jsonl").read_text().splitlines()
    path = tmp_path / "seed.jsonl"
    path.write_text("\n".join([line for line in lines if "Jamaica" in line] + lines[:10]) + "\n")
    return path


@pytest.fixture
def running(tmp_path: Path, vllm: ChildServer, seed: Path) -> Iterator[Gateway]:
    """`fetchwise serve` with vLLM as its reader, and prompts that are just the question."""
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps({"closed_book": AS_GIVEN.closed_book, "open_book": AS_GIVEN.open_book}))
    with gateway(
        tmp_path / "data",
        reader=vllm.url,
        reader_model=MODEL,
        reader_timeout_s="120",
        request_timeout_s="240",
        prompts=str(prompts),
        seed=str(seed),
    ) as one:
        yield one


async def test_questions_are_answered_and_a_disconnect_stops_vllm(vllm: ChildServer, running: Gateway) -> None:
    """Closed-book and with five passages, each with a receipt; a dropped connection ends the generation."""
    url = f"{running.url}/answer"
    async with httpx.AsyncClient(timeout=240) as client:
        closed = await client.post(url, json={"question": "What is the capital of France?", "policy": "never"})
        receipt = Receipt.model_validate(closed.json())
        assert receipt.k == 0
        assert {"k0.seq_logprob", "k0.neg_entropy", "k0.margin"} <= receipt.decision.evidence.keys()
        opened = await client.post(url, json={"question": "What is the capital of Jamaica?"})
        receipt = Receipt.model_validate(opened.json())
        assert (receipt.k, receipt.decision.reason.value, receipt.usage.passages) == (5, "not_calibrated", 5)

        before = await settled(vllm.url)
        endless = {"question": ENDLESS.question, "policy": "never", "max_tokens": 512}
        asking = asyncio.create_task(client.post(url, json=endless))
        await until(lambda: generated_tokens(vllm.url) > before, within_s=60)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert await settled(vllm.url) - before < 300
