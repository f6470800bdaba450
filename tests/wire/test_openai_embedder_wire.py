"""The remote embedder with a real server that breaks off, refuses, or sends wrong replies."""

import json
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from app.errors import UpstreamBadReply, UpstreamError, UpstreamUnavailable
from app.upstream.embedders.openai import PASSAGES_PER_REQUEST, OpenAIEmbedder
from tests.wire.embedding_server import EmbeddingServer, embedding_server, says, vectors
from tests.wire.servers import direct

KEY = "sk-very-secret"


@pytest.fixture
async def server() -> AsyncIterator[EmbeddingServer]:
    async with embedding_server() as running:
        yield running


@pytest.fixture
async def embedder(server: EmbeddingServer) -> AsyncIterator[OpenAIEmbedder]:
    client = OpenAIEmbedder(server.url, "bge", link=direct("embedder"), api_key=KEY)
    yield client
    await client.close()


def status(code: int, text: str = "") -> Callable[..., web.Response]:
    return lambda request, texts: web.Response(status=code, text=text)


def raw(text: str) -> Callable[..., web.Response]:
    return lambda request, texts: web.Response(text=text, content_type="application/json")


def with_embedding(embedding: Any) -> Callable[..., web.Response]:
    return raw(json.dumps({"data": [{"index": 0, "embedding": embedding}]}))


FAULTS = {
    "404": (status(404, "no such model"), UpstreamUnavailable),
    "no data": (raw("{}"), UpstreamBadReply),
    "data of no list": (raw('{"data": 7}'), UpstreamBadReply),
    "too few": (lambda request, texts: says([]), UpstreamBadReply),
    "too many": (lambda request, texts: says(vectors([*texts, "more"])), UpstreamBadReply),
    "same index twice": (lambda request, texts: says(vectors(texts) * 2), UpstreamBadReply),
    "NaN": (with_embedding([math.nan, 1.0]), UpstreamBadReply),
    "infinite": (raw('{"data": [{"index": 0, "embedding": [1e999, 1.0]}]}'), UpstreamBadReply),
    "null": (with_embedding([None, 1.0]), UpstreamBadReply),
    "boolean": (with_embedding([True, 1.0]), UpstreamBadReply),
    "text": (with_embedding(["1.0", 1.0]), UpstreamBadReply),
    "base64": (with_embedding("AAAA"), UpstreamBadReply),
    "no numbers": (with_embedding([]), UpstreamBadReply),
    "zero": (with_embedding([0.0, 0.0]), UpstreamBadReply),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_fault_is_translated(server: EmbeddingServer, embedder: OpenAIEmbedder, fault: str) -> None:
    """Each server fault becomes one of our exceptions, which names the embedder and hides the key."""
    server.behave, expected = FAULTS[fault]
    with pytest.raises(UpstreamError) as caught:
        await embedder.embed_query("who?")
    assert type(caught.value) is expected
    assert caught.value.upstream == "embedder"
    assert KEY not in str(caught.value)


async def test_recovers_after_a_fault(server: EmbeddingServer, embedder: OpenAIEmbedder) -> None:
    """After a failed call the next one succeeds."""
    well, server.behave = server.behave, raw("<html>")
    with pytest.raises(UpstreamBadReply):
        await embedder.embed_query("who?")
    server.behave = well
    assert len(await embedder.embed_query("who?")) == 256


async def test_vectors_are_normalised(server: EmbeddingServer, embedder: OpenAIEmbedder) -> None:
    """A vector of unit length is unchanged to the last digit; any other is scaled to unit length."""
    server.behave = with_embedding([0.6000000238418579, 0.800000011920929])
    assert await embedder.embed_query("who?") == [0.6000000238418579, 0.800000011920929]
    server.behave = with_embedding([3, 4.0])
    assert await embedder.embed_query("who?") == [0.6, 0.8]


async def test_changed_dimension_is_refused(server: EmbeddingServer, embedder: OpenAIEmbedder) -> None:
    """If the length of the vectors changes (another model under the same name), the reply is refused."""
    await embedder.start()
    assert embedder.dimension == 256
    server.behave = with_embedding([1.0, 0.0])
    with pytest.raises(UpstreamBadReply, match="2 numbers, before of 256"):
        await embedder.embed_query("who?")


async def test_dimension_is_unknown_before_start(embedder: OpenAIEmbedder) -> None:
    """The dimension is known only after the server's first reply."""
    with pytest.raises(UpstreamUnavailable):
        _ = embedder.dimension


async def test_start_does_not_need_the_server(server: EmbeddingServer, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, whoever needs the dimension gets the reason, and the next ping learns it."""
    well, server.behave = server.behave, status(503, "loading")
    embedder = OpenAIEmbedder(server.url, "bge", link=direct("embedder"))
    await embedder.start()
    assert "does not answer yet" in caplog.text
    with pytest.raises(UpstreamUnavailable, match="503"):
        _ = embedder.dimension
    server.behave = well
    await embedder.ping()
    assert embedder.dimension == 256
    await embedder.close()


async def test_request_body_and_key(server: EmbeddingServer, embedder: OpenAIEmbedder) -> None:
    """The request names the model, asks for plain numbers, and carries the key as a bearer token."""
    await embedder.embed_query("who?")
    assert server.requests == [{"model": "bge", "input": ["who?"], "encoding_format": "float"}]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


async def test_url_may_end_in_v1(server: EmbeddingServer) -> None:
    """The final /v1 is optional."""
    embedder = OpenAIEmbedder(server.url + "/v1/", "bge", link=direct("embedder"))
    await embedder.start()
    await embedder.close()
    assert len(server.requests) == 1


async def test_connections_are_reused(server: EmbeddingServer, embedder: OpenAIEmbedder) -> None:
    """Successive calls share one connection."""
    for _ in range(5):
        await embedder.embed_query("who?")
    assert len(server.connections) == 1


async def test_passages_are_sent_in_bounded_requests(server: EmbeddingServer, embedder: OpenAIEmbedder) -> None:
    """Many passages are split into requests that every server accepts."""
    await embedder.embed_passages([f"passage {i}" for i in range(2 * PASSAGES_PER_REQUEST + 1)])
    assert [len(request["input"]) for request in server.requests] == [PASSAGES_PER_REQUEST, PASSAGES_PER_REQUEST, 1]


async def test_open_breaker_refuses_questions_but_not_ingestion(server: EmbeddingServer) -> None:
    """While the breaker is open, questions are refused, passages are still embedded, and a ping calls the server."""
    embedder = OpenAIEmbedder(server.url, "bge", link=direct("embedder", failures=1))
    working, server.behave = server.behave, status(500, "boom")
    with pytest.raises(UpstreamUnavailable, match="answered 500"):
        await embedder.embed_query("a question")
    server.behave = working
    with pytest.raises(UpstreamUnavailable, match="is open: "):
        await embedder.embed_query("a question")
    assert len(await embedder.embed_passages(["a", "b"])) == 2
    await embedder.ping()
    await embedder.close()
