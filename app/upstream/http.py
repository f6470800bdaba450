"""One HTTP client for every part behind the gateway: JSON out, bytes back, and only errors of ours.

What a reply means is its adapter's to say; that it came, whole, from this server and with 200 is said here. Calls go
out by the thousand a second, so all that is the same for every one of them is made once.
"""

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from app.correlation import outgoing
from app.errors import ConfigurationError, FetchwiseError, UpstreamBadReply, UpstreamTimeout, UpstreamUnavailable

_CALLED = {"reader": "the reader", "embedder": "the embedder", "vectors": "the vector store"}
# Common servers close idle connections after five seconds; ours must go first, or a request meets a closed one.
_KEEPALIVE_S = 3.0
# What a call can end in that is no answer. The last are headers and replies that are not HTTP, texts not Unicode.
_FAILURES = (TimeoutError, aiohttp.ClientError, ValueError, orjson.JSONEncodeError)


class Refused(Exception):
    """A reply other than 200, its body fit to be quoted; never leaves the adapter that asked."""

    def __init__(self, status: int, body: bytes, retry_after_s: int | None) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s


class HttpClient:
    """A connection pool to one server, opened on first use; `upstream` is reader, embedder or vectors.

    `timeout_s` bounds a whole call, connecting included. `secret` is struck out of whatever the server says: some
    repeat the key that they were given.
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
        self._url = url
        # Not compressed: these servers are near, and unpacking would hold up the event loop.
        self._headers = {"content-type": "application/json", "accept-encoding": "identity", **headers}
        self._secret = secret
        # To the fraction of a second: aiohttp would round five seconds and more up.
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
        """Return the body of a 200; raise Refused for any other status, an error of ours where no reply came."""
        try:
            # No redirects: question and key are meant for this server alone.
            response = await self._pool().request(
                method,
                self._url + path,
                data=None if body is None else orjson.dumps(body),
                headers=outgoing.get(),
                allow_redirects=False,
            )
            # Gives the connection back, or closes it where this fails: no context manager has to.
            raw = await response.read()
        except _FAILURES as error:
            raise self._failure(error) from error
        if response.status != 200:
            raise self._refused(response, raw)
        return raw

    @asynccontextmanager
    async def stream(self, path: str, body: object) -> AsyncIterator[aiohttp.StreamReader]:
        """Post, and read the body of a 200 as it comes; leaving early drops the connection."""
        try:
            async with self._pool().post(
                self._url + path,
                data=orjson.dumps(body),
                # llama.cpp hangs up after a stream without announcing it: the next question must not be sent there.
                headers={"connection": "close", **outgoing.get()},
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise self._refused(response, await response.read())
                yield response.content
        except _FAILURES as error:
            raise self._failure(error) from error

    async def close(self) -> None:
        """Close the pool; whoever asks afterwards gets UpstreamUnavailable. Idempotent."""
        self._closed = True
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def parsed(self, raw: bytes) -> Any:  # noqa: ANN401 - whatever the server sent
        """A reply's JSON value; UpstreamBadReply where it is none."""
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise UpstreamBadReply(self.upstream, f"{self.called}'s reply is not JSON") from error

    def quotable(self, raw: bytes) -> bytes:
        """What the server said, without the key."""
        return raw.replace(self._secret.encode(), b"***") if self._secret else raw

    def _pool(self) -> aiohttp.ClientSession:
        if self._session is None:
            if self._closed:
                raise UpstreamUnavailable(self.upstream, f"{self.called} was closed")
            # Made on first use because aiohttp ties a session to the running loop.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=_KEEPALIVE_S),
                headers=self._headers,
                timeout=self._timeout,
                # A cookie would travel from one caller's question to the next one's.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    def _refused(self, response: aiohttp.ClientResponse, raw: bytes) -> Refused:
        wait = response.headers.get("retry-after", "")
        # It may also be a date, which nobody needs.
        return Refused(response.status, self.quotable(raw), int(wait) if wait.isdecimal() and len(wait) < 6 else None)

    def _failure(self, error: Exception) -> FetchwiseError:
        """Turn aiohttp's exceptions into ours, most specific first."""
        match error:
            case TimeoutError():  # aiohttp's own timeouts inherit from it
                return UpstreamTimeout(self.upstream, f"{self.called} did not answer in time")
            case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
                return ConfigurationError(f"{self._setting} is not a URL that can be called")
            case aiohttp.ClientConnectorError():
                return UpstreamUnavailable(self.upstream, f"{self.called} cannot be reached: {error}")
            case aiohttp.ClientConnectionError() | aiohttp.ClientPayloadError():
                return UpstreamUnavailable(self.upstream, f"{self.called} broke the connection off: {error}")
            case orjson.JSONEncodeError():
                return UpstreamBadReply(self.upstream, f"a text cannot be sent to {self.called}: {error}")
            case _:
                # By its type alone: the text of these may quote the request's headers, and so the key.
                kind = type(error).__name__
                return UpstreamBadReply(self.upstream, f"{self.called} does not speak HTTP as expected: {kind}")


def meaning(upstream: str, refused: Refused, said: str) -> FetchwiseError:
    """What a status means at any server; `said` is the explanation that came with it."""
    status, called = refused.status, _CALLED[upstream]
    message = f"{called} answered {status}: {said}" if said else f"{called} answered {status}"
    if status in {408, 504}:
        return UpstreamTimeout(upstream, message)
    if status in {401, 403}:
        setting = f"FETCHWISE_{upstream.upper()}_API_KEY"
        return UpstreamUnavailable(upstream, f"{called} refused the key ({status}): set {setting}")
    if status == 429 or status >= 500:
        return UpstreamUnavailable(upstream, message, retry_after_s=refused.retry_after_s)
    return UpstreamBadReply(upstream, message)
