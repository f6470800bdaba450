"""The HTTP client of the upstreams, with servers that are correct, slow, broken or not HTTP at all."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from app.correlation import outgoing
from app.errors import (
    BadRequest,
    ConfigurationError,
    FetchwiseError,
    UpstreamBadReply,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.upstream import http
from app.upstream.http import HttpClient, Refused, meaning
from tests.wire import fault_proxy as faults
from tests.wire.fault_proxy import Fault, answer, answer_json
from tests.wire.servers import Server, free_port, handling, serving

KEY = "sk-very-secret"
AskOptions = Callable[[HttpClient], Awaitable[bytes]]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server that answers with a JSON object by default."""
    async with serving(answer_json(200, {"well": True})) as running:
        yield running


@asynccontextmanager
async def connected(
    url: str, *, upstream: str = "reader", key: str = KEY, timeout_s: float = 30.0
) -> AsyncIterator[HttpClient]:
    """A client with a key; closed at the end."""
    client = HttpClient(upstream, url, headers={"authorization": f"Bearer {key}"}, secret=key, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[HttpClient]:
    """A client of that server."""
    async with connected(server.url) as made:
        yield made


async def whole(client: HttpClient) -> bytes:
    """Request a reply in one piece."""
    return await client.request("POST", "/ask", {"question": "who?"})


async def streamed(client: HttpClient) -> bytes:
    """Request a streamed reply."""
    async with client.stream("/ask", {"question": "who?"}) as lines:
        return b"".join([line async for line in lines])


BOTH_WAYS = pytest.mark.parametrize("ask", [whole, streamed])


@BOTH_WAYS
async def test_call_posts_json_with_the_key(server: Server, client: HttpClient, ask: AskOptions) -> None:
    """A call posts JSON with the key to the path below the address, and asks for an uncompressed reply."""
    assert await ask(client) == b'{"well": true}'
    [request] = server.requests
    assert (request.method, request.path, request.json) == ("POST", "/ask", {"question": "who?"})
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["accept-encoding"] == "identity"


@BOTH_WAYS
async def test_unix_socket(tmp_path: Path, ask: AskOptions) -> None:
    """`unix:` and a path call the server that listens there; without one, it cannot be reached."""

    async def reply(request: web.Request) -> web.Response:
        return web.Response(body=request.path.encode())

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", reply)
    runner = web.AppRunner(app)
    await runner.setup()
    async with connected(f"unix:{tmp_path}/http.sock") as client:
        with pytest.raises(UpstreamUnavailable, match="cannot be reached"):
            await ask(client)
        await web.UnixSite(runner, tmp_path / "http.sock").start()
        assert await ask(client) == b"/ask"
    await runner.cleanup()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("status", [200, 500])
async def test_size_of_a_reply_is_bounded(monkeypatch: pytest.MonkeyPatch, status: int, *, chunked: bool) -> None:
    """A larger reply is not read to its end; the next one may be as large as the limit."""
    monkeypatch.setattr(http, "_MAX_REPLY_BYTES", 1000)
    sizes = [1001, 1000]

    async def reply(_: web.Request) -> web.StreamResponse:
        response = web.Response(body=b"x" * sizes.pop(0), status=status)
        if chunked:
            response.enable_chunked_encoding()
        return response

    async with handling(reply) as url, connected(url) as client:
        with pytest.raises(UpstreamBadReply, match="more than 1000 bytes"):
            await whole(client)
        if status == 200:
            assert await whole(client) == b"x" * 1000
        else:
            with pytest.raises(Refused):
                await whole(client)


async def test_line_of_a_stream_is_bounded() -> None:
    """A line without an end is a bad reply."""
    async with serving(answer(200, b"x" * 2**20)) as server, connected(server.url) as client:
        with pytest.raises(UpstreamBadReply, match="LineTooLong"):
            await streamed(client)


async def test_stream_closes_its_connection(server: Server, client: HttpClient) -> None:
    """A connection is closed after a stream and kept after a complete reply."""
    await whole(client)
    await streamed(client)
    assert [request.headers.get("connection") for request in server.requests] == [None, "close"]


@BOTH_WAYS
async def test_trace_headers_are_sent_with_each_call(server: Server, client: HttpClient, ask: AskOptions) -> None:
    """The headers that link the calls of one request are sent with each of its calls, and with no other."""
    token = outgoing.set({"traceparent": "00-1-2-01"})
    await ask(client)
    outgoing.reset(token)
    await ask(client)
    assert [request.headers.get("traceparent") for request in server.requests] == ["00-1-2-01", None]


async def test_get_sends_no_body(server: Server, client: HttpClient) -> None:
    """A GET carries the key and no body."""
    assert client.parsed(await client.request("GET", "/v1/models")) == {"well": True}
    [request] = server.requests
    assert (request.method, request.path, request.body) == ("GET", "/v1/models", b"")
    assert request.headers["authorization"] == f"Bearer {KEY}"


async def test_cookies_are_not_kept(server: Server, client: HttpClient) -> None:
    """A cookie set in reply to one call is not sent with the next."""
    server.reply = answer(200, b"{}", set_cookie="session=1")
    await whole(client)
    await whole(client)
    assert all("cookie" not in request.headers for request in server.requests)


@BOTH_WAYS
async def test_redirect_is_not_followed(server: Server, client: HttpClient, ask: AskOptions) -> None:
    """Question and key are not sent to the target of a redirect."""
    server.reply = answer(307, b"", location=f"{server.url}/elsewhere")
    with pytest.raises(Refused) as caught:
        await ask(client)
    assert caught.value.status == 307
    assert len(server.requests) == 1


@BOTH_WAYS
async def test_error_quotes_the_server_without_the_key(server: Server, client: HttpClient, ask: AskOptions) -> None:
    """The error for a status other than 200 quotes the server's reply with the key masked."""
    server.reply = answer(401, f"Incorrect API key provided: {KEY}".encode())
    with pytest.raises(Refused) as caught:
        await ask(client)
    assert caught.value.body == b"Incorrect API key provided: ***"


MEANINGS: dict[int, type[UpstreamError]] = {
    201: UpstreamBadReply,
    307: UpstreamBadReply,
    400: UpstreamBadReply,
    401: UpstreamUnavailable,
    403: UpstreamUnavailable,
    404: UpstreamBadReply,
    408: UpstreamTimeout,
    422: UpstreamBadReply,
    429: UpstreamUnavailable,
    500: UpstreamUnavailable,
    502: UpstreamUnavailable,
    503: UpstreamUnavailable,
    504: UpstreamTimeout,
}


@pytest.mark.parametrize("status", MEANINGS)
@pytest.mark.parametrize("upstream", ["reader", "embedder", "vectors"])
def test_status_maps_to_an_error(upstream: str, status: int) -> None:
    """Each status becomes one error that names the upstream; for a rejected key it says which setting to fix.

    Only the explanation of a 400 is about the request, and is shown.
    """
    error = meaning(upstream, Refused(status, b"", None), "so it said", "SomeError")
    assert isinstance(error, UpstreamError)
    assert (type(error), error.upstream) == (MEANINGS[status], upstream)
    said = f"FETCHWISE_{upstream.upper()}_API_KEY" if status in {401, 403} else f"{status} (SomeError)"
    assert str(status) in str(error)
    assert said in str(error)
    assert ("so it said" in str(error)) == (status == 400)


SENT = orjson.dumps({"prompt": "[1] Jamaica: The capital of Jamaica is Kingston, a port.\n\nWhat is its capital?"})


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("temperature must be at most 2", ": temperature must be at most 2"),
        ("not valid: The capital of Jamaica is Kingston, a port.", ""),
        ("cannot parse What is its capital?", ""),
        ('bad input: "The capital of Jamaica is Kingston"', ": bad input:"),
        ("1 validation error [input=The capital of Jamaica]", ": 1 validation error"),
        ("one\nERROR forged", ": one"),
        ("one\x1b[2Jtwo", ": one"),
        ("x" * 1000, f": {'x' * 200}"),
        ("", ""),
    ],
)
def test_explanation_without_what_was_sent(said: str, shown: str) -> None:
    """The explanation of a 400 is shown without quotes, control characters and texts of the request."""
    assert str(meaning("reader", Refused(400, b"", None, SENT), said)) == f"the reader answered 400{shown}"


@pytest.mark.parametrize(
    ("header", "wait"), [("3", 3), ("", None), ("-1", None), ("Fri, 01 Jan 2027", None), ("9" * 40, None)]
)
async def test_retry_after_is_passed_on(server: Server, client: HttpClient, header: str, wait: int | None) -> None:
    """The seconds that an overloaded server asks for are passed on; a date or an invalid value is not."""
    server.reply = answer(429, b"", retry_after=header)
    with pytest.raises(Refused) as caught:
        await whole(client)
    error = meaning(client.upstream, caught.value, "")
    assert isinstance(error, UpstreamUnavailable)
    assert error.retry_after_s == wait


BROKEN: dict[str, tuple[Fault, type[UpstreamError], str]] = {
    "silent": (faults.late, UpstreamTimeout, "in time"),
    "dripping": (faults.dripping, UpstreamTimeout, "in time"),
    "closes the connection": (faults.closed_without_reply, UpstreamUnavailable, "closed the connection"),
    "reset": (faults.reset_before_the_head, UpstreamUnavailable, "closed the connection"),
    "cut short": (faults.cut_in_the_body, UpstreamUnavailable, "closed the connection"),
    "not HTTP": (faults.not_http, UpstreamBadReply, "HTTP"),
}


@BOTH_WAYS
@pytest.mark.parametrize("fault", BROKEN)
async def test_incomplete_reply_is_an_upstream_error(server: Server, fault: str, ask: AskOptions) -> None:
    """Anything that prevents a complete reply in time raises one of our errors, without the key."""
    server.reply, expected, message = BROKEN[fault]
    # A long timeout for busy machines, except where the timeout is what is tested.
    async with connected(server.url, timeout_s=0.5 if expected is UpstreamTimeout else 30.0) as client:
        with pytest.raises(UpstreamError, match=message) as caught:
            await ask(client)
    assert (type(caught.value), caught.value.upstream) == (expected, "reader")
    assert caught.value.__cause__ is not None
    assert KEY not in str(caught.value)


@BOTH_WAYS
async def test_port_without_a_server_is_unavailable(ask: AskOptions) -> None:
    """A refused connection is an unavailable upstream."""
    async with connected(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(UpstreamUnavailable, match="cannot be reached") as caught:
            await ask(client)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("url", ["http://", "http://[", "no-url", "ftp://reader"])
@pytest.mark.parametrize("upstream", ["reader", "embedder", "vectors"])
async def test_malformed_address_names_the_setting(url: str, upstream: str) -> None:
    """The operator must fix a malformed address, so the message names the setting."""
    async with connected(url, upstream=upstream) as client:
        with pytest.raises(ConfigurationError, match=f"FETCHWISE_{upstream.upper()}"):
            await whole(client)


async def test_key_with_a_line_break_is_refused(server: Server) -> None:
    """The refusal does not quote the key."""
    async with connected(server.url, key="sk-1\r\nx: y") as client:
        with pytest.raises(UpstreamBadReply) as caught:
            await whole(client)
    assert "sk-1" not in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize("value", ["who \ud800?", 2**70], ids=["surrogate", "number"])
async def test_what_is_no_json_is_refused(server: Server, client: HttpClient, value: Any) -> None:
    """What cannot be encoded is refused before anything is sent, and is no failure of the upstream."""
    with pytest.raises(BadRequest, match="cannot be sent"):
        await client.request("POST", "/ask", {"question": value})
    assert server.requests == []


@pytest.mark.parametrize("raw", [b"", b"<html>", b'{"half": ', b"\xff\xfe{}", b"[" * 100_000], ids=lambda raw: raw[:9])
def test_invalid_json_is_a_bad_reply(raw: bytes) -> None:
    """A body that is not JSON is a bad reply of the upstream that sent it."""
    client = HttpClient("embedder", "http://127.0.0.1:1", headers={}, secret=None, timeout_s=1.0)
    with pytest.raises(UpstreamBadReply, match="the embedder's reply is not JSON"):
        client.parsed(raw)


async def test_compressed_reply_is_not_decompressed(server: Server, client: HttpClient) -> None:
    """If a server compresses against the request, the bytes are passed on as they are."""
    server.reply = answer(200, b"\x1f\x8b", content_encoding="gzip")
    assert await whole(client) == b"\x1f\x8b"


async def test_cancelling_is_not_a_failure(server: Server, client: HttpClient) -> None:
    """A caller that cancels gets its cancellation back, not an upstream error."""
    server.reply = faults.late
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(whole(client), 0.2)


@BOTH_WAYS
async def test_closed_client_is_unavailable(server: Server, ask: AskOptions) -> None:
    """Closing twice is allowed, with or without a call before, and a later call opens no new pool."""
    for calls in (0, 1):
        async with connected(server.url) as client:
            for _ in range(calls):
                await ask(client)
            await client.close()
            with pytest.raises(UpstreamUnavailable, match="closed"):
                await ask(client)
    assert len(server.requests) == 1


def vendor_exceptions() -> list[type[Exception]]:
    """Every exception class that aiohttp's client can raise over HTTP."""
    found = [
        value
        for name, value in vars(aiohttp.client_exceptions).items()
        if isinstance(value, type)
        and issubclass(value, Exception)
        and value.__module__.startswith("aiohttp")
        and not name.startswith("_")
    ]
    # Raised only by WebSockets, which this client never opens.
    return [kind for kind in found if kind is not aiohttp.client_exceptions.WSMessageTypeError]


def made(kind: type[Exception]) -> Exception:
    """An instance, with the arguments that the class takes."""
    url = URL("http://reader/")
    request = aiohttp.RequestInfo(url, "POST", CIMultiDictProxy(CIMultiDict()), url)
    key = ConnectionKey("reader", 80, False, True, None, None, None)
    for arguments in (
        (request, ()),
        (key, OSError(111, "refused")),
        ("/socket", key, OSError(111, "refused")),
        (b"a", b"b", "reader", 80),
        (url,),
        (111, "refused"),
        ("message",),
        (),
    ):
        try:
            error = kind(*arguments)
            str(error)
        except (TypeError, AttributeError):
            continue
        return error
    raise AssertionError(f"cannot make an instance of {kind}")


def test_there_are_vendor_exceptions_to_map() -> None:
    """The list holds the whole tree of exceptions."""
    assert {aiohttp.ClientError, aiohttp.ServerTimeoutError, aiohttp.ClientPayloadError} <= set(vendor_exceptions())


class Breaking:
    """A pool in which every call raises the same exception."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def request(self, *_: object, **__: object) -> None:
        raise self.error

    async def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("kind", [*vendor_exceptions(), TimeoutError], ids=lambda kind: kind.__name__)
async def test_every_vendor_exception_is_mapped(kind: type[Exception]) -> None:
    """The HTTP client's own exceptions never reach the caller."""
    async with connected("http://reader") as client:
        client._session = Breaking(made(kind))  # type: ignore[assignment]
        with pytest.raises(FetchwiseError) as caught:
            await whole(client)
    assert caught.value.__cause__ is not None
    if issubclass(kind, TimeoutError):
        assert type(caught.value) is UpstreamTimeout
