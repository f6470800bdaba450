"""The Qdrant client with servers that are correct, slow, broken or down: it raises only our own errors."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import grpc as protocol
from qdrant_client.conversions.conversion import payload_to_grpc

from app.core.available import Passage
from app.errors import (
    ConfigurationError,
    FetchwiseError,
    UnknownCollection,
    UpstreamBadReply,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.upstream.resilience import Link
from app.upstream.vectors.qdrant import Qdrant
from tests.wire import fault_proxy as faults
from tests.wire.fault_proxy import Fault, answer, answer_json
from tests.wire.servers import Server, direct, free_port, serving

VECTOR = [1.0, 0.0]
PAYLOAD = {"id": "a", "title": "A", "text": "text", "fields": {"lang": "en"}, "terms": ['["lang","en"]']}
POINT = {"id": "0b6e3e6e-1f0e-5f0e-9a5e-3b1f5a0c9d11", "version": 1, "score": 0.5, "payload": PAYLOAD}
FOUND = {"result": {"points": [POINT]}, "status": "ok", "time": 0.001}
# The server's own wording.
NOT_FOUND = {"status": {"error": "Not found: Collection `docs` doesn't exist!"}, "time": 0.00001}


def failure(message: str) -> dict[str, object]:
    """The body of an error reply."""
    return {"status": {"error": message}, "time": 0.0}


def found(**changes: object) -> bytes:
    """The body of a successful search, with changes to its one point."""
    return json.dumps({**FOUND, "result": {"points": [{**POINT, **changes}]}}).encode()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server that finds one passage by default."""
    async with serving(answer_json(200, FOUND)) as running:
        yield running


@asynccontextmanager
async def connected(
    url: str, api_key: str | None = None, *, timeout_s: float = 5.0, link: Link | None = None
) -> AsyncIterator[Qdrant]:
    """An adapter; closed at the end."""
    qdrant = Qdrant(url, api_key, link=link or direct("vectors"), timeout_s=timeout_s)
    try:
        yield qdrant
    finally:
        await qdrant.close()


@pytest.fixture
async def qdrant(server: Server) -> AsyncIterator[Qdrant]:
    """An adapter for that server."""
    async with connected(server.url) as adapter:
        yield adapter


async def search(server: Server, *, timeout_s: float = 5.0) -> list[Passage]:
    """One search with a new adapter."""
    async with connected(server.url, timeout_s=timeout_s) as qdrant:
        return await qdrant.search("docs", VECTOR, limit=5)


async def test_search_request(server: Server) -> None:
    """A search is one request: the vector, the filter as conditions that must all hold, payload but no vectors."""
    server.reply = answer(200, found(payload={**PAYLOAD, "fields": {"lang": "en", "draft": False}}))
    async with connected(server.url, "s3cret") as qdrant:
        await qdrant.search("docs", VECTOR, limit=5, where={"lang": "en", "draft": False})
    [request] = server.requests
    assert (request.method, request.path) == ("POST", "/collections/docs/points/query")
    assert request.headers["api-key"] == "s3cret"
    body = {key: value for key, value in request.json.items() if value is not None}
    assert body == {
        "query": {"nearest": VECTOR},
        "filter": {
            "must": [
                {"key": "terms", "match": {"value": '["lang","en"]'}},
                {"key": "terms", "match": {"value": '["draft",false]'}},
            ]
        },
        "limit": 5,
        "with_payload": ["id", "title", "text", "fields"],
        "with_vector": False,
    }


async def test_search_without_filter_or_key(server: Server) -> None:
    """Without a filter none is sent, without a key no header; a path in the URL is kept."""
    async with connected(f"{server.url}/behind/proxy") as qdrant:
        await qdrant.search("docs", VECTOR, limit=1)
    [request] = server.requests
    assert request.path == "/behind/proxy/collections/docs/points/query"
    assert request.json.get("filter") is None
    assert "api-key" not in request.headers


async def test_more_points_than_asked_for_are_cut(server: Server) -> None:
    """A store that returns more than the limit does not get more passages read."""
    points = [{**POINT, "payload": {**PAYLOAD, "id": str(number)}} for number in range(51)]
    server.reply = answer_json(200, {**FOUND, "result": {"points": points}})
    async with connected(server.url) as qdrant:
        passages = await qdrant.search("docs", VECTOR, limit=1)
    assert [passage.id for passage in passages] == ["0"]


@pytest.mark.parametrize("fields", [{"tenant": "b"}, {}, {"tenant": ["a"]}, {"tenant": True}])
async def test_a_passage_outside_the_filter_is_a_bad_reply(server: Server, fields: dict[str, object]) -> None:
    """A store that ignores the filter cannot show one tenant the passages of another."""
    server.reply = answer(200, found(payload={**PAYLOAD, "text": "private", "fields": fields}))
    async with connected(server.url) as qdrant:
        with pytest.raises(UpstreamBadReply, match="filter") as raised:
            await qdrant.search("docs", VECTOR, limit=5, where={"tenant": "a"})
    assert "private" not in str(raised.value)


async def test_adapter_connects_at_the_first_call(server: Server) -> None:
    """Creating an adapter sends no request, not even for the version."""
    async with connected(server.url, "s3cret"):
        await asyncio.sleep(0.05)
    assert server.requests == []


# For our own search and for a call through the vendor's client; some messages differ between the two.
FAULTS: dict[str, tuple[Fault, type[FetchwiseError], str]] = {
    "unknown collection": (answer_json(404, NOT_FOUND), UnknownCollection, "docs"),
    "404 of another server": (answer(404, b"<h1>Not Found</h1>", "text/html"), UpstreamBadReply, "404"),
    "404 of another API": (answer_json(404, {"detail": "Not Found"}), UpstreamBadReply, "404"),
    "wrong dimension": (
        answer_json(400, failure("Wrong input: Vector dimension error: expected dim: 4, got 2")),
        UpstreamBadReply,
        "expected dim: 4",
    ),
    "no key": (answer(401, b"Must provide an API key", "text/plain"), UpstreamUnavailable, "VECTORS_API_KEY"),
    "wrong key": (answer_json(403, failure("Forbidden")), UpstreamUnavailable, "VECTORS_API_KEY"),
    "rate limit": (answer_json(429, failure("Rate limit exceeded")), UpstreamUnavailable, "429"),
    "rate limit, when": (answer(429, b"", retry_after="3"), UpstreamUnavailable, "429|no more requests"),
    "500": (answer_json(500, failure("Service internal error: boom")), UpstreamUnavailable, "answered 500$"),
    "redirect": (answer(307, b"", location="http://127.0.0.1:1/"), UpstreamBadReply, "307"),
    "empty": (answer(200, b""), UpstreamBadReply, "malformed|not JSON"),
    "null": (answer(200, b"null"), UpstreamBadReply, "malformed"),
    "no result": (answer_json(200, {"status": "ok", "time": 0.0}), UpstreamBadReply, "malformed"),
    "result of another type": (answer_json(200, {**FOUND, "result": 3}), UpstreamBadReply, "malformed"),
    "closed": (faults.closed_without_reply, UpstreamUnavailable, "cannot be reached|closed the connection"),
    "cut short": (faults.cut_in_the_body, UpstreamUnavailable, "cannot be reached|closed the connection"),
}
NONSENSE: dict[str, tuple[bytes, str]] = {
    "points of another type": (b'{"result": {"points": 3}}', "malformed"),
    "point of another type": (b'{"result": {"points": [3]}}', "malformed"),
    "score of another type": (found(score="high"), "score"),
    "score that is a boolean": (found(score=True), "score"),
    "no payload": (found(payload=None), "without id"),
    "payload that is a list": (found(payload=[1]), "without id"),
    "payload of another writer": (found(payload={"page_content": "x"}), "without id"),
    "text of another type": (found(payload={**PAYLOAD, "text": 3}), "without id"),
    "fields of another type": (found(payload={**PAYLOAD, "fields": []}), "without id"),
}


async def count(server: Server, *, timeout_s: float = 5.0) -> int:
    """One count with a new adapter."""
    async with connected(server.url, timeout_s=timeout_s) as qdrant:
        return await qdrant.count("docs")


@pytest.mark.parametrize("ask", [search, count])
@pytest.mark.parametrize("fault", FAULTS)
async def test_fault(server: Server, fault: str, ask: Any) -> None:
    """Each failure becomes the error that says who must fix it, with the original exception as its cause."""
    server.reply, error, message = FAULTS[fault]
    with pytest.raises(error, match=message) as raised:
        await ask(server)
    assert raised.value.__cause__ is not None
    if isinstance(raised.value, UpstreamError):
        assert raised.value.upstream == "vectors"


@pytest.mark.parametrize("reply", NONSENSE)
async def test_malformed_point_is_a_bad_reply(server: Server, reply: str) -> None:
    """A point that is not a complete passage is a bad reply."""
    body, message = NONSENSE[reply]
    server.reply = answer(200, body)
    with pytest.raises(UpstreamBadReply, match=message):
        await search(server)


@pytest.mark.parametrize("ask", [search, count])
async def test_timeout(server: Server, ask: Any) -> None:
    """The timeout covers the whole call, wherever the server spends the time."""
    server.reply = faults.dripping
    with pytest.raises(UpstreamTimeout):
        await ask(server, timeout_s=0.3)


async def test_refused_connection_is_unavailable() -> None:
    """If no server listens, every call says that the store is unavailable."""
    async with connected(f"http://127.0.0.1:{free_port()}") as qdrant:
        for call in (
            qdrant.ping(),
            qdrant.search("docs", VECTOR, limit=1),
            qdrant.count("docs"),
            qdrant.known("docs", ["a"]),
            qdrant.create("docs", dimension=2),
            qdrant.add("docs", [Passage("a", "", "")], [VECTOR]),
        ):
            with pytest.raises(UpstreamUnavailable, match="cannot be reached"):
                await call


async def test_open_breaker_refuses_searches_but_not_writes(server: Server) -> None:
    """While the breaker is open, searches are refused; writes and pings call the store and report its failures."""
    server.reply = answer_json(500, failure("boom"))
    async with connected(server.url, link=direct("vectors", failures=1)) as qdrant:
        with pytest.raises(UpstreamUnavailable, match=r"answered 500$"):
            await qdrant.search("docs", VECTOR, limit=1)
        server.requests.clear()
        with pytest.raises(UpstreamUnavailable, match="is open: "):
            await qdrant.search("docs", VECTOR, limit=1)
        assert server.requests == []
        for call in (qdrant.count("docs"), qdrant.known("docs", ["a"]), qdrant.create("docs", dimension=2)):
            with pytest.raises(UpstreamUnavailable, match=r"answered 500$"):
                await call
        with pytest.raises(UpstreamUnavailable, match=r"answered 500$"):
            await qdrant.ping()


async def test_invalid_collection_name_is_refused(server: Server) -> None:
    """An invalid collection name is refused before anything is sent."""
    async with connected(server.url) as qdrant:
        with pytest.raises(UnknownCollection):
            await qdrant.search("../../cluster", VECTOR, limit=1)
    assert server.requests == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["result", "points", "payload", "status", "id", "score"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(value=json_values, status=st.sampled_from([200, 200, 200, 400, 404, 429, 500]))
async def test_search_handles_any_json(server: Server, qdrant: Qdrant, value: object, status: int) -> None:
    """For any JSON that a server sends, a search returns passages or raises an error of the store."""
    server.reply = answer_json(status, value)
    try:
        assert isinstance(await qdrant.search("docs", VECTOR, limit=5), list)
    except UpstreamError as error:
        assert error.upstream == "vectors"  # noqa: PT017 - most replies raise, a few do not


@pytest.mark.parametrize("url", ["", "qdrant", "qdrant:6333", "ftp://qdrant", "http://", "http://qdrant:port"])
def test_invalid_url_is_refused(url: str) -> None:
    """An invalid server URL is refused at the start, not at the first question."""
    with pytest.raises(ConfigurationError, match="URL"):
        Qdrant(url, link=direct("vectors"))


@pytest.mark.parametrize(
    "url",
    [
        "http://qdrant.example",
        "https://qdrant.example",
        "http://127.0.0.1:1234",
        "https://qdrant.example:443/behind/proxy",
        "http://[::1]:6333",
        "http://[::1]",
        "http://someone:pass@qdrant.example/path",
    ],
)
async def test_search_uses_the_vendor_clients_address(url: str) -> None:
    """A search uses the same host, port and path as the vendor's client."""
    qdrant = Qdrant(url, link=direct("vectors"))
    assert qdrant._http is not None
    assert qdrant._http._url == qdrant._client._client.rest_uri
    await qdrant.close()


@pytest.mark.parametrize(
    ("url", "warned"),
    [("http://qdrant.example", True), ("http://127.0.0.1:1", False), ("https://qdrant.example", False)],
)
async def test_key_without_tls_logs_a_warning(url: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Sending a key to another machine without TLS logs a warning that does not contain the key."""
    with caplog.at_level(logging.WARNING):
        await Qdrant(url, "s3cret", link=direct("vectors")).close()
    assert ("unencrypted" in caplog.text) == warned
    assert "s3cret" not in caplog.text


class Points(protocol.PointsServicer):  # type: ignore[misc]
    """A gRPC server that refuses every search with `code`."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.code, self.details = code, details

    async def Query(self, request: Any, context: Any) -> None:  # noqa: N802 - the protocol's name
        await context.abort(self.code, self.details)


@asynccontextmanager
async def over_grpc(points: protocol.PointsServicer) -> AsyncIterator[Qdrant]:
    """An adapter that uses gRPC to call these points."""
    server = grpc.aio.server()
    protocol.add_PointsServicer_to_server(points, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    qdrant = Qdrant(f"http://127.0.0.1:{port}", "s3cret", link=direct("vectors"), grpc=True)
    try:
        yield qdrant
    finally:
        await qdrant.close()
        await server.stop(None)


class Careless(protocol.PointsServicer):  # type: ignore[misc]
    """A gRPC server that ignores the limit and the filter of a search."""

    def __init__(self, score: float) -> None:
        self.score = score

    async def Query(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        payload = payload_to_grpc(PAYLOAD)
        point = protocol.ScoredPoint(id=protocol.PointId(num=1), score=self.score, payload=payload)
        return protocol.QueryResponse(result=[point] * 3)


async def test_grpc_replies_are_checked_too() -> None:
    """Over gRPC, too, points beyond the limit are cut; one outside the filter or without a score is a bad reply."""
    async with over_grpc(Careless(0.5)) as qdrant:
        assert len(await qdrant.search("docs", VECTOR, limit=2, where={"lang": "en"})) == 2
        with pytest.raises(UpstreamBadReply, match="filter"):
            await qdrant.search("docs", VECTOR, limit=2, where={"lang": "fr"})
    async with over_grpc(Careless(math.nan)) as qdrant:
        with pytest.raises(UpstreamBadReply, match="score"):
            await qdrant.search("docs", VECTOR, limit=2)


@pytest.mark.parametrize(
    ("code", "details", "error"),
    [
        (grpc.StatusCode.NOT_FOUND, "Not found: Collection `docs` doesn't exist!", UnknownCollection),
        (grpc.StatusCode.NOT_FOUND, "no such route", UpstreamBadReply),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", UpstreamTimeout),
        (grpc.StatusCode.UNAUTHENTICATED, "Must provide an API key", UpstreamUnavailable),
        (grpc.StatusCode.UNAVAILABLE, "", UpstreamUnavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "", UpstreamUnavailable),
        (grpc.StatusCode.INTERNAL, "boom", UpstreamUnavailable),
        (grpc.StatusCode.INVALID_ARGUMENT, "expected dim: 4, got 2", UpstreamBadReply),
        (grpc.StatusCode.UNIMPLEMENTED, "", UpstreamBadReply),
    ],
)
async def test_grpc_fault(code: grpc.StatusCode, details: str, error: type[FetchwiseError]) -> None:
    """Each gRPC status becomes the same error as that failure over REST."""
    async with over_grpc(Points(code, details)) as qdrant:
        with pytest.raises(error):
            await qdrant.search("docs", VECTOR, limit=5)


async def test_refused_grpc_connection_is_unavailable() -> None:
    """If no gRPC server listens, the store is unavailable."""
    qdrant = Qdrant(f"http://127.0.0.1:{free_port()}", link=direct("vectors"), grpc=True)
    try:
        with pytest.raises(UpstreamUnavailable):
            await qdrant.ping()
    finally:
        await qdrant.close()
