"""A remote embedder over the OpenAI API: any server that answers `/v1/embeddings`."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import aiohttp
import orjson

from app.correlation import outgoing
from app.errors import ConfigurationError, UpstreamBadReply, UpstreamTimeout, UpstreamUnavailable

# Servers refuse large batches (text-embeddings-inference: more than 32 by default).
PASSAGES_PER_REQUEST = 32
# Common servers close idle connections after five seconds; ours must go first, or a request meets a closed one.
KEEPALIVE_S = 3.0

Vector = list[float]


class OpenAIEmbedder:
    """Embeds on another machine; `start` asks it once, because only its vectors tell their length.

    `url` is the server with or without its final `/v1`. All calls share one connection pool, opened on first use.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        query_prefix: str = "",
        timeout_s: float = 10.0,
        max_connections: int = 256,
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1/embeddings"
        self._model = model
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._query_prefix = query_prefix
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(5.0, timeout_s))
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._dimension: int | None = None

    async def start(self) -> None:
        """Learn the dimension from a first call; UpstreamError where the server does not give one."""
        await self.ping()

    @property
    def name(self) -> str:
        """The model's name at the server, and any query prefix."""
        return f"{self._model}+{self._query_prefix!r}" if self._query_prefix else self._model

    @property
    def dimension(self) -> int:
        """The length of every vector; known once the server has answered."""
        if self._dimension is None:
            raise UpstreamUnavailable("embedder", "the embedder has not been started")
        return self._dimension

    async def embed_query(self, text: str) -> Sequence[float]:
        """Embed one question after the query prefix."""
        (vector,) = await self._embed([self._query_prefix + text])
        return vector

    async def embed_passages(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Embed passages in order, some to a request, one request after the other."""
        vectors: list[Vector] = []
        for first in range(0, len(texts), PASSAGES_PER_REQUEST):
            vectors += await self._embed(texts[first : first + PASSAGES_PER_REQUEST])
        return vectors

    async def ping(self) -> None:
        """Embed a word."""
        await self._embed(["ping"])

    async def close(self) -> None:
        """Close the connection pool; whoever asks afterwards gets UpstreamUnavailable. Idempotent."""
        self._closed = True
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _embed(self, texts: Sequence[str]) -> list[Vector]:
        with _translated():
            body = orjson.dumps({"model": self._model, "input": list(texts), "encoding_format": "float"})
            # No redirects: the key is meant for this server alone.
            async with self._pool().post(
                self._url, data=body, headers=outgoing.get(), allow_redirects=False
            ) as response:
                raw = await response.read()
                _check(response.status, self._model)
        vectors = _vectors(raw, expected=len(texts))
        for vector in vectors:
            if self._dimension is None:
                self._dimension = len(vector)
            if len(vector) != self._dimension:
                raise UpstreamBadReply(
                    "embedder", f"the embedder gave a vector of {len(vector)} numbers, before of {self._dimension}"
                )
        return vectors

    def _pool(self) -> aiohttp.ClientSession:
        if self._closed:
            raise UpstreamUnavailable("embedder", "the embedder was closed")
        # Made on first use because aiohttp ties a session to the running loop.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=KEEPALIVE_S),
                headers=self._headers,
                timeout=self._timeout,
            )
        return self._session


@contextmanager
def _translated() -> Iterator[None]:
    """Turn aiohttp's exceptions into ours, most specific first."""
    try:
        yield
    except TimeoutError as error:  # aiohttp's own timeouts inherit from it
        raise UpstreamTimeout("embedder", "the embedder did not answer in time") from error
    except aiohttp.InvalidURL as error:
        raise ConfigurationError("the embedder's URL cannot be called: set FETCHWISE_EMBEDDER") from error
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise UpstreamUnavailable("embedder", f"the embedder broke the connection off: {error}") from error
    except orjson.JSONEncodeError as error:
        raise UpstreamBadReply("embedder", f"a text cannot be sent to the embedder: {error}") from error
    except (aiohttp.ClientError, ValueError) as error:
        # By its type alone: the text of these may quote the request's headers, and so the key.
        raise UpstreamBadReply(
            "embedder", f"the embedder does not speak HTTP as expected: {type(error).__name__}"
        ) from error


def _check(status: int, model: str) -> None:
    """Refuse every status but 200, without quoting a body that may repeat the key."""
    if status == 200:
        return
    if status in {401, 403}:
        raise UpstreamUnavailable("embedder", f"the embedder refused the key ({status})")
    if status == 404:
        raise UpstreamUnavailable("embedder", f"the embedder has no /v1/embeddings or does not serve {model!r} (404)")
    if status in {408, 504}:
        raise UpstreamTimeout("embedder", f"the embedder answered {status}")
    if status == 429 or status >= 500:
        raise UpstreamUnavailable("embedder", f"the embedder answered {status}")
    raise UpstreamBadReply("embedder", f"the embedder answered {status}")


def _vectors(raw: bytes, *, expected: int) -> list[Vector]:
    """The reply's vectors in the order of the texts, at unit length."""
    try:
        reply = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise UpstreamBadReply("embedder", "the embedder's reply is not JSON") from error
    try:
        by_index = {int(entry["index"]): _unit(entry["embedding"]) for entry in reply["data"]}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UpstreamBadReply("embedder", f"the embedder's reply makes no sense: {error!r}") from error
    if len(reply["data"]) != expected or sorted(by_index) != list(range(expected)):
        raise UpstreamBadReply("embedder", f"the embedder gave {len(reply['data'])} vectors for {expected} texts")
    return [by_index[i] for i in range(expected)]


def _unit(embedding: Any) -> Vector:  # noqa: ANN401 - whatever the server sent
    if not isinstance(embedding, list) or not embedding:
        raise ValueError("an embedding is not a list of numbers")
    if not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in embedding):
        raise ValueError("an embedding holds what is not a number")
    length = math.hypot(*embedding)
    if length == 0.0 or not math.isfinite(length):
        raise ValueError("an embedding has no direction")
    return [x / length for x in embedding]
