"""A question whose time is up stops the generation on the server: it must not go on for nobody."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.adapters.openai_reader import OpenAIReader
from app.answer import Answerer
from app.decision.policy import Ask, Gate, Policy
from app.errors import UpstreamTimeout
from app.prompts import DEFAULT
from app.question import Question
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gateway import filled
from tests.fakes.retriever import FakeRetriever
from tests.waiting import until
from tests.wire.reader_server import MODEL, Dialect, ReaderServer, reader_server


class NoGate:
    def gate(self, **_: object) -> Gate:
        return Gate()


class Deaf:
    """A listener, so that the answer is streamed."""

    def decided(self, *_: object) -> None:
        pass

    found = token = decided


@pytest.fixture
async def server() -> AsyncIterator[ReaderServer]:
    async with reader_server(Dialect.VLLM) as running:
        yield running


@pytest.mark.parametrize("listener", [None, Deaf()], ids=["whole", "streamed"])
async def test_the_server_sees_the_client_leave(server: ReaderServer, listener: Any) -> None:
    """The connection is closed in the middle of the generation, which ends there."""
    server.answer = lambda _: "word " * 400
    server.token_delay_s = 0.05
    embedder, vectors = FakeEmbedder(), FakeRetriever()
    await filled(vectors, embedder)
    reader = OpenAIReader(server.url, MODEL, prompts=DEFAULT)
    answerer = Answerer(reader=reader, embedder=embedder, retriever=vectors, gatekeeper=NoGate())
    loop = asyncio.get_running_loop()
    question = Question("What?", "demo", 400, Ask(policy=Policy.ALWAYS), deadline=loop.time() + 1.0)
    try:
        with pytest.raises(UpstreamTimeout) as caught:
            await answerer.answer(question, listener)
        assert caught.value.upstream == "reader"
        await until(lambda: server.dropped)
        assert server.generated < 400
    finally:
        await reader.close()
