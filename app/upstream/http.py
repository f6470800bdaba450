"""The HTTP client for every upstream: sends JSON, returns bytes, and raises only `app.errors`.

This module checks that a whole reply with status 200 arrived; each adapter interprets it. The client handles thousands
of calls a second, so everything that calls have in common is built once.
"""

import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
from aiohttp.http_exceptions import HttpProcessingError

from app.correlation import outgoing
from app.errors import (
    BadRequest,
    ConfigurationError,
    FetchwiseError,
    UpstreamBadReply,
    UpstreamTimeout,
    UpstreamUnavailable,
)

UNIX = "unix:"
_CALLED = {"reader": "the reader", "embedder": "the embedder", "vectors": "the vector store"}
# Common servers close idle connections after five seconds. Close ours earlier, so that no request uses a dead one.
_KEEPALIVE_S = 3.0
# Larger than any reply that is useful here: thousands of vectors, or hundreds of passages.
_MAX_REPLY_BYTES = 64 * 2**20
# Where the explanation of a server begins to quote, or is more than a line.
_QUOTING = re.compile(r'["{\[\x00-\x1f\x7f-\x9f\u2028\u2029]')
_MAX_SHOWN_CHARS = 200
# An explanation with so many characters of what was sent repeats it.
_REPEATED_CHARS = 16
# Everything a failed call can raise. ValueError: bad headers, replies that are not HTTP, text that is not Unicode.
# HttpProcessingError: a line of a stream that is too long.
_FAILURES = (TimeoutError, aiohttp.ClientError, HttpProcessingError, ValueError, orjson.JSONEncodeError)


class Refused(Exception):
    """A reply other than 200 to what was `sent`, with secrets removed from its body. Adapters translate it."""

    def __init__(self, status: int, body: bytes, retry_after_s: int | None, sent: bytes = b"") -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.sent = sent
        self.retry_after_s = retry_after_s


class HttpClient:
    """A connection pool to one server, opened on first use; `upstream` is reader, embedder or vectors.

    `url` is an http(s) URL, or `unix:` and the path of a Unix socket.
    `timeout_s` bounds a whole call, connecting included. `secret` is removed from error messages, because some servers
    repeat the key that they received.
    """

    def __init__(
        self,
        upstream: str,
        url: str,
        *,
        headers: Mapping[str, str],
        secret: str | None,
        timeout_s: float,
        max_connections: int = 256,
    ) -> None:
        self.upstream, self.called = upstream, _CALLED[upstream]
        self._setting = f"FETCHWISE_{upstream.upper()}"
        self._socket = url.removeprefix(UNIX) if url.startswith(UNIX) else None
        self._url = "http://localhost" if self._socket else url
        # No compression: these servers are nearby, and decompressing would block the event loop.
        self._headers = {"content-type": "application/json", "accept-encoding": "identity", **headers}
        self._secret = secret
        # aiohttp rounds timeouts above five seconds up; turn that off.
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(5.0, timeout_s), ceil_threshold=math.inf)
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @classmethod
    def of_openai(
        cls, upstream: str, url: str, *, api_key: str | None, timeout_s: float, max_connections: int = 256
    ) -> "HttpClient":
        """The pool to a server that speaks OpenAI's API; `url` may be its root or its `/v1`."""
        return cls(
            upstream,
            url.rstrip("/").removesuffix("/v1"),
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            secret=api_key,
            timeout_s=timeout_s,
            max_connections=max_connections,
        )

    async def request(self, method: str, path: str, body: object = None) -> bytes:
        """Return the body of a 200; raise Refused for any other status, UpstreamError if there was no reply."""
        sent: bytes | None = None
        try:
            if body is not None:
                sent = orjson.dumps(body)
            # No redirects: a question and a key must not reach another server.
            response = await self._pool().request(
                method,
                self._url + path,
                data=sent,
                headers=outgoing.get(),
                allow_redirects=False,
            )
            # Reading releases the connection, or closes it on failure, so no context manager is needed.
            raw = await self._body(response)
        except _FAILURES as error:
            raise self._failure(error) from error
        if response.status != 200:
            raise self._refused(response, raw, sent or b"")
        return raw

    @asynccontextmanager
    async def stream(self, path: str, body: object) -> AsyncIterator[aiohttp.StreamReader]:
        """Post, and read the body of a 200 as it comes; leaving early drops the connection."""
        try:
            sent = orjson.dumps(body)
            async with self._pool().post(
                self._url + path,
                data=sent,
                # llama.cpp closes the connection after a stream without saying so; do not reuse it.
                headers={"connection": "close", **outgoing.get()},
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise self._refused(response, await self._body(response), sent)
                yield response.content
        except _FAILURES as error:
            raise self._failure(error) from error

    async def close(self) -> None:
        """Close the pool; later calls raise UpstreamUnavailable. Idempotent."""
        self._closed = True
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def parsed(self, raw: bytes) -> Any:  # noqa: ANN401 - whatever the server sent
        """Parse a reply as JSON; UpstreamBadReply if it is not."""
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise UpstreamBadReply(self.upstream, f"{self.called}'s reply is not JSON") from error

    def quotable(self, raw: bytes) -> bytes:
        """A reply without the API key, so that messages can quote it."""
        return raw.replace(self._secret.encode(), b"***") if self._secret else raw

    def _pool(self) -> aiohttp.ClientSession:
        if self._session is None:
            if self._closed:
                raise UpstreamUnavailable(self.upstream, f"{self.called} was closed")
            # Created on first use, because aiohttp binds a session to the running loop.
            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                headers=self._headers,
                timeout=self._timeout,
                # A cookie would leak from one caller's request to the next.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        """The whole body; UpstreamBadReply if it is larger than any useful one."""
        size = response.content_length
        if size is not None and size <= _MAX_REPLY_BYTES:
            return await response.read()
        raw = bytearray()
        async with response:
            if size is None:
                async for part in response.content.iter_any():
                    raw += part
                    if len(raw) > _MAX_REPLY_BYTES:
                        break
                else:
                    return bytes(raw)
        raise UpstreamBadReply(self.upstream, f"{self.called} sent more than {_MAX_REPLY_BYTES} bytes")

    def _connector(self) -> aiohttp.BaseConnector:
        if self._socket is None:
            return aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=_KEEPALIVE_S)
        return aiohttp.UnixConnector(self._socket, limit=self._max_connections, keepalive_timeout=_KEEPALIVE_S)

    def _refused(self, response: aiohttp.ClientResponse, raw: bytes, sent: bytes) -> Refused:
        wait = response.headers.get("retry-after", "")
        # Retry-After may also be a date; no upstream sends one, so it is ignored.
        seconds = int(wait) if wait.isdecimal() and len(wait) < 6 else None
        return Refused(response.status, self.quotable(raw), seconds, sent)

    def _failure(self, error: Exception) -> FetchwiseError:
        """Translate aiohttp's exceptions, most specific first."""
        match error:
            case TimeoutError():  # aiohttp's own timeouts inherit from it
                return UpstreamTimeout(self.upstream, f"{self.called} did not answer in time")
            case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
                return ConfigurationError(f"{self._setting} is not a URL that can be called")
            case aiohttp.ClientConnectorError():
                return UpstreamUnavailable(self.upstream, f"{self.called} cannot be reached: {error}")
            case aiohttp.ClientConnectionError() | aiohttp.ClientPayloadError():
                return UpstreamUnavailable(
                    self.upstream, f"{self.called} closed the connection: {type(error).__name__}"
                )
            case orjson.JSONEncodeError():
                # No fault of the upstream: a caller must not be able to open its breaker.
                return BadRequest(f"the request cannot be sent to {self.called} as JSON: {error}")
            case _:
                # Name only the type: the message may quote request headers, and so the key, or the reply.
                kind = type(error).__name__
                return UpstreamBadReply(self.upstream, f"{self.called} does not speak HTTP as expected: {kind}")


def meaning(upstream: str, refused: Refused, said: str, kind: str = "") -> FetchwiseError:
    """Translate a status that means the same at every server; `said` is its explanation, `kind` its type of error."""
    status, called = refused.status, _CALLED[upstream]
    shown = _shown(refused, said)
    message = f"{called} answered {status}" + (f" ({kind})" if kind else "") + (f": {shown}" if shown else "")
    if status in {408, 504}:
        return UpstreamTimeout(upstream, message)
    if status in {401, 403}:
        setting = f"FETCHWISE_{upstream.upper()}_API_KEY"
        return UpstreamUnavailable(upstream, f"{called} refused the key ({status}): set {setting}")
    if status == 429 or status >= 500:
        return UpstreamUnavailable(upstream, message, retry_after_s=refused.retry_after_s)
    return UpstreamBadReply(upstream, message)


def _shown(refused: Refused, said: str) -> str:
    """What callers and the log may see of an explanation: the beginning, for a 400 that repeats nothing that was sent.

    Others say nothing about the request, and may contain anything.
    """
    if refused.status != 400:
        return ""
    line = _QUOTING.split(said, maxsplit=1)[0].strip()[:_MAX_SHOWN_CHARS]
    windows = range(0, max(len(line) - _REPEATED_CHARS, 0) + 1, _REPEATED_CHARS // 2)
    parts = [line[at : at + _REPEATED_CHARS] for at in windows]
    return "" if any(len(part) == _REPEATED_CHARS and part.encode() in refused.sent for part in parts) else line
