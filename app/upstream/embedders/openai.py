"""A remote embedder over the OpenAI API: any server that answers `/v1/embeddings`."""

import logging
import math
from collections.abc import Sequence
from typing import Any

from app.errors import UpstreamBadReply, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from app.upstream.http import HttpClient, Refused
from app.upstream.openai_replies import refusal
from app.upstream.resilience import Link

logger = logging.getLogger(__name__)

# Servers refuse large batches (text-embeddings-inference: more than 32 by default).
PASSAGES_PER_REQUEST = 32
# Tolerated deviation from unit length: the rounding of a server that normalises 32-bit floats.
_UNIT = 1e-6

Vector = list[float]


class OpenAIEmbedder:
    """A remote embedder; its first reply gives the length of its vectors.

    `url` is the server with or without its final `/v1`. All calls share one connection pool, opened on first use.
    Queries go through `link`; ingestion does not, so that it sees every failure.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        link: Link,
        api_key: str | None = None,
        query_prefix: str = "",
        timeout_s: float = 10.0,
    ) -> None:
        self._http = HttpClient.of_openai("embedder", url, api_key=api_key, timeout_s=timeout_s)
        self._link = link
        self._model = model
        self._query_prefix = query_prefix
        self._dimension: int | None = None
        self._failure: UpstreamError | None = None

    async def start(self) -> None:
        """Learn the dimension from a first call. A server that is down may come up later: pings go on."""
        try:
            await self.ping()
        except (UpstreamUnavailable, UpstreamTimeout) as error:
            logger.warning("the embedder does not answer yet, starting without it: %s", error)
            self._failure = error

    @property
    def name(self) -> str:
        """The model's name at the server, and any query prefix."""
        return f"{self._model}+{self._query_prefix!r}" if self._query_prefix else self._model

    @property
    def dimension(self) -> int:
        """The length of every vector; known once the server has answered."""
        if self._dimension is None:
            raise self._failure or UpstreamUnavailable("embedder", "the embedder has not been started")
        return self._dimension

    async def embed_query(self, text: str) -> Sequence[float]:
        """Embed one question with the query prefix."""
        (vector,) = await self._link.call(lambda: self._embed([self._query_prefix + text]))
        return vector

    async def embed_passages(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Embed passages in order, in batches, one request after the other."""
        vectors: list[Vector] = []
        for first in range(0, len(texts), PASSAGES_PER_REQUEST):
            vectors += await self._embed(texts[first : first + PASSAGES_PER_REQUEST])
        return vectors

    async def ping(self) -> None:
        """Embed a word."""
        await self._link.ping(lambda: self._embed(["ping"]))

    async def close(self) -> None:
        """Close the connection pool; later calls raise UpstreamUnavailable. Idempotent."""
        await self._http.close()

    async def _embed(self, texts: Sequence[str]) -> list[Vector]:
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        try:
            reply = self._http.parsed(await self._http.request("POST", "/v1/embeddings", body))
        except Refused as refused:
            raise refusal(self._http, refused, self._model) from refused
        vectors = _vectors(reply, expected=len(texts))
        for vector in vectors:
            if self._dimension is None:
                self._dimension = len(vector)
            if len(vector) != self._dimension:
                raise UpstreamBadReply(
                    "embedder", f"the embedder gave a vector of {len(vector)} numbers, before of {self._dimension}"
                )
        return vectors


def _vectors(reply: Any, *, expected: int) -> list[Vector]:  # noqa: ANN401 - whatever the server sent
    """The reply's vectors in the order of the texts, at unit length."""
    try:
        entries = reply["data"]
        by_index = {int(entry["index"]): _unit(entry["embedding"]) for entry in entries}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UpstreamBadReply("embedder", f"the embedder's reply is malformed: {type(error).__name__}") from error
    if len(entries) != expected or sorted(by_index) != list(range(expected)):
        raise UpstreamBadReply("embedder", f"the embedder gave {len(entries)} vectors for {expected} texts")
    return [by_index[i] for i in range(expected)]


def _unit(embedding: Any) -> Vector:  # noqa: ANN401 - whatever the server sent
    if not isinstance(embedding, list):
        raise TypeError("an embedding is not a list of numbers")
    # Raises TypeError if one is not a number; faster than a Python loop over hundreds of values.
    length = math.hypot(*embedding)
    if bool in map(type, embedding):
        raise TypeError("an embedding contains a value that is not a number")
    if length == 0.0 or not math.isfinite(length):
        raise ValueError("an embedding has length zero")
    return embedding if abs(length - 1.0) < _UNIT else [x / length for x in embedding]
