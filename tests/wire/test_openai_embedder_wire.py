"""The remote embedder against a real server that is slow, broken off, or wrong."""

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from app.adapters.openai_embedder import PASSAGES_PER_REQUEST, OpenAIEmbedder
from app.errors import ConfigurationError, UpstreamBadReply, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from tests.wire.embedding_server import EmbeddingServer, embedding_server, says, vectors

KEY = "sk-very-secret"


@pytest.fixture
async def server() -> AsyncIterator[EmbeddingServer]:
    async with embedding_server() as running:
        yield running


@pytest.fixture
async def embedder(server: EmbeddingServer) -> AsyncIterator[OpenAIEmbedder]:
    client = OpenAIEmbedder(server.url, "bge", api_key=KEY, timeout_s=0.5)
    yield client
    await client.close()


def status(code: int, text: str = "") -> Callable[..., web.Response]:
    return lambda request, texts: web.Response(status=code, text=text)


async def slow(request: web.Request, texts: list[str]) -> web.Response:
    await asyncio.sleep(30)
    raise AssertionError("nobody waits this long")


def reset(request: web.Request, texts: list[str]) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def torn(request: web.Request, texts: list[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-length": "1000"})
    await response.prepare(request)
    await response.write(b'{"data": [')
    assert request.transport is not None
    request.transport.abort()
    return response


def raw(text: str) -> Callable[..., web.Response]:
    return lambda request, texts: web.Response(text=text, content_type="application/json")


def with_embedding(embedding: Any) -> Callable[..., web.Response]:
    return raw(json.dumps({"data": [{"index": 0, "embedding": embedding}]}))


FAULTS = {
    "slow": (slow, UpstreamTimeout),
    "gateway timeout": (status(504), UpstreamTimeout),
    "reset": (reset, UpstreamUnavailable),
    "torn": (torn, UpstreamUnavailable),
    "500": (status(500, "boom"), UpstreamUnavailable),
    "503": (status(503), UpstreamUnavailable),
    "429": (status(429), UpstreamUnavailable),
    "404": (status(404, "no such model"), UpstreamUnavailable),
    "401": (status(401, f"Incorrect API key provided: {KEY}"), UpstreamUnavailable),
    "400": (status(400), UpstreamBadReply),
    "redirect": (status(307), UpstreamBadReply),
    "empty": (raw(""), UpstreamBadReply),
    "not JSON": (raw("<html>"), UpstreamBadReply),
    "not an object": (raw("[1, 2]"), UpstreamBadReply),
    "no data": (raw("{}"), UpstreamBadReply),
    "data of no list": (raw('{"data": 7}'), UpstreamBadReply),
    "too few": (lambda request, texts: says([]), UpstreamBadReply),
    "too many": (lambda request, texts: says(vectors([*texts, "more"])), UpstreamBadReply),
    "same index twice": (lambda request, texts: says(vectors(texts) * 2), UpstreamBadReply),
    "NaN": (with_embedding([math.nan, 1.0]), UpstreamBadReply),
    "infinite": (raw('{"data": [{"index": 0, "embedding": [1e999, 1.0]}]}'), UpstreamBadReply),
    "null": (with_embedding([None, 1.0]), UpstreamBadReply),
    "boolean": (with_embedding([True, 1.0]), UpstreamBadReply),
    "base64": (with_embedding("AAAA"), UpstreamBadReply),
    "no numbers": (with_embedding([]), UpstreamBadReply),
    "zero": (with_embedding([0.0, 0.0]), UpstreamBadReply),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_fault_is_translated(server: EmbeddingServer, embedder: OpenAIEmbedder, fault: str) -> None:
    """Whatever the server does wrong becomes one of our exceptions, names the embedder, and keeps the key."""
    server.behave, expected = FAULTS[fault]
    with pytest.raises(UpstreamError) as caught:
        await embedder.embed_query("who?")
    assert type(caught.value) is expected
    assert caught.value.upstream == "embedder"
    assert KEY not in str(caught.value)


async def test_recovers_after_a_fault(server: EmbeddingServer, embedder: OpenAIEmbedder) -> None:
    """A broken call leaves the next one unharmed."""
    well, server.behave = server.behave, reset
    with pytest.raises(UpstreamUnavailable):
        await embedder.embed_query("who?")
    server.behave = well
    assert len(await embedder.embed_query("who?")) == 256


async def test_nobody_listening() -> None:
    """A port where nothing listens is unavailable, from start on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        embedder = OpenAIEmbedder(f"http://127.0.0.1:{unused.getsockname()[1]}", "bge", api_key=KEY)
        with pytest.raises(UpstreamUnavailable) as caught:
            await embedder.start()
        await embedder.close()
    assert KEY not in str(caught.value)


async def test_a_url_that_is_none() -> None:
    """What is not a URL is a configuration error and says which setting to mend."""
    embedder = OpenAIEmbedder("nonsense", "bge")
    with pytest.raises(ConfigurationError, match="FETCHWISE_EMBEDDER"):
        await embedder.start()
    await embedder.close()


async def test_a_key_that_no_header_can_carry(server: EmbeddingServer) -> None:
    """A key with a line break is refused without being quoted."""
    embedder = OpenAIEmbedder(server.url, "bge", api_key="sk-1\r\nx: y")
    with pytest.raises(UpstreamBadReply) as caught:
        await embedder.start()
    await embedder.close()
    assert "sk-1" not in str(caught.value)


async def test_another_dimension_is_refused(server: EmbeddingServer, embedder: OpenAIEmbedder) -> None:
    """A server whose vectors change their length (another model behind the name) is not believed."""
    await embedder.start()
    assert embedder.dimension == 256
    server.behave = with_embedding([1.0, 0.0])
    with pytest.raises(UpstreamBadReply, match="2 numbers, before of 256"):
        await embedder.embed_query("who?")


async def test_dimension_is_unknown_before_start(embedder: OpenAIEmbedder) -> None:
    """Nobody can be told a dimension that the server has not shown."""
    with pytest.raises(UpstreamUnavailable):
        _ = embedder.dimension


async def test_what_is_sent(server: EmbeddingServer, embedder: OpenAIEmbedder) -> None:
    """The request names the model, asks for plain numbers, and carries the key as a bearer token."""
    await embedder.embed_query("who?")
    assert server.requests == [{"model": "bge", "input": ["who?"], "encoding_format": "float"}]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


async def test_a_text_that_cannot_be_sent(embedder: OpenAIEmbedder) -> None:
    """Half a character (a lone surrogate) is refused before it is sent."""
    with pytest.raises(UpstreamBadReply):
        await embedder.embed_query("who \ud800?")


async def test_a_url_with_v1_is_the_same(server: EmbeddingServer) -> None:
    """The final /v1 may be written or left out."""
    embedder = OpenAIEmbedder(server.url + "/v1/", "bge")
    await embedder.start()
    await embedder.close()
    assert len(server.requests) == 1


async def test_connections_are_kept(server: EmbeddingServer, embedder: OpenAIEmbedder) -> None:
    """Calls one after the other share one connection."""
    for _ in range(5):
        await embedder.embed_query("who?")
    assert len(server.connections) == 1


async def test_passages_are_sent_in_bounded_requests(server: EmbeddingServer, embedder: OpenAIEmbedder) -> None:
    """Many passages are split over requests that every server accepts."""
    await embedder.embed_passages([f"passage {i}" for i in range(2 * PASSAGES_PER_REQUEST + 1)])
    assert [len(request["input"]) for request in server.requests] == [PASSAGES_PER_REQUEST, PASSAGES_PER_REQUEST, 1]


async def test_closed_is_unavailable(embedder: OpenAIEmbedder) -> None:
    """After close no new pool is opened behind the owner's back."""
    await embedder.close()
    with pytest.raises(UpstreamUnavailable):
        await embedder.embed_query("who?")
