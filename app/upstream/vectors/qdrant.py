"""A Qdrant server or cluster over REST or gRPC; raises only `app.errors`.

All calls use qdrant-client, except searches over REST: every answer with passages waits for one, and the client spends
milliseconds of CPU on its request and reply models.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx
import orjson
from grpc import StatusCode  # type: ignore[import-untyped]
from grpc.aio import AioRpcError  # type: ignore[import-untyped]
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from app.core.available import Passage
from app.core.question import Filter
from app.errors import ConfigurationError, FetchwiseError, UpstreamBadReply, UpstreamTimeout, UpstreamUnavailable
from app.upstream.http import HttpClient, Refused, meaning
from app.upstream.resilience import Link
from app.upstream.vectors.payload import (
    PASSAGE_FIELDS,
    TERMS,
    BadPoint,
    check_collection,
    other_dimension,
    point_id,
    read_found,
    read_payload,
    terms,
    unknown_collection,
    write_payload,
)

log = logging.getLogger(__name__)

# A write waits until the server has applied it, which may take longer than a search.
_WRITE_TIMEOUT_S = 60.0
_BATCH = 256
_PAGE = 1_000
_REST_PORT, _GRPC_PORT = 6333, 6334
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
# The equivalent HTTP status; 400 for all others.
_STATUS = {
    StatusCode.NOT_FOUND: 404,
    StatusCode.DEADLINE_EXCEEDED: 408,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.INTERNAL: 500,
    StatusCode.ABORTED: 500,
    StatusCode.CANCELLED: 500,
}


class Qdrant:
    """A VectorStore on a server; nothing connects before the first call.

    `timeout_s` bounds a whole read, connecting included. An `https` URL means TLS. A port in the URL is the gRPC port
    if `grpc` is set; without a port the client's default is used. Searches go through `link`; ingestion does not, so
    that it sees every failure.
    """

    def __init__(
        self, url: str, api_key: str | None = None, *, link: Link, grpc: bool = False, timeout_s: float = 5.0
    ) -> None:
        parts = _server(url, api_key)
        headers = {"api-key": api_key} if api_key else {}
        self._link = link
        self._timeout_s = timeout_s
        self._http = (
            None
            if grpc
            else HttpClient("vectors", _rest_url(parts), headers=headers, secret=api_key, timeout_s=timeout_s)
        )
        self._client = AsyncQdrantClient(
            url=url,
            port=_REST_PORT,
            grpc_port=parts.port or _GRPC_PORT,
            prefer_grpc=grpc,
            # As a header, because `api_key` makes the client warn about http; _server logs our own warning.
            headers=headers,
            timeout=math.ceil(max(timeout_s, _WRITE_TIMEOUT_S)),
            check_compatibility=False,
        )
        self._closed = False

    async def search(
        self, collection: str, vector: Sequence[float], *, limit: int, where: Filter | None = None
    ) -> list[Passage]:
        """Return at most `limit` passages, nearest first."""
        check_collection(collection)
        search = self._search_grpc if self._http is None else self._search_rest
        return await self._link.call(lambda: search(collection, vector, limit, where))

    async def count(self, collection: str) -> int:
        """How many passages the collection holds."""
        async with self._call(collection) as client:
            return (await client.count(collection, exact=True)).count

    async def ping(self) -> None:
        """Return if the server answers and accepts the API key."""
        await self._link.ping(self._ping)

    async def create(self, collection: str, *, dimension: int) -> None:
        """Create the collection if it does not exist; DataError if it exists with another dimension."""
        async with self._call(collection, within_s=_WRITE_TIMEOUT_S) as client:
            if await client.collection_exists(collection):
                have = await self._dimension(collection)
                if have != dimension:
                    raise other_dimension(collection, have, dimension)
            else:
                vectors = models.VectorParams(size=dimension, distance=models.Distance.COSINE)
                await client.create_collection(collection, vectors_config=vectors)
            # Also for an existing collection: its creator may have been stopped before this point.
            await client.create_payload_index(collection, TERMS, models.PayloadSchemaType.KEYWORD, wait=True)

    async def known(self, collection: str, ids: Sequence[str]) -> set[str]:
        """Which of these passage ids the collection already holds."""
        points = {point_id(id_): id_ for id_ in ids}
        async with self._call(collection) as client:
            records = await client.retrieve(collection, [*points], with_payload=False, with_vectors=False)
            return {points[str(record.id)] for record in records}

    async def sample(self, collection: str, *, limit: int) -> list[Passage]:
        """The first passages in the order of their point ids, which are hashes."""
        found: list[Passage] = []
        offset: models.ExtendedPointId | None = None
        while len(found) < limit:
            size = min(_PAGE, limit - len(found))
            async with self._call(collection) as client:
                records, offset = await client.scroll(collection, limit=size, offset=offset)
                found += [read_payload(record.payload, 0.0) for record in records]
            if offset is None:
                break
        return found

    async def add(self, collection: str, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Store passages durably: the server has applied them when this returns. A known id is replaced."""
        points = [
            models.PointStruct(id=point_id(passage.id), vector=list(vector), payload=write_payload(passage))
            for passage, vector in zip(passages, vectors, strict=True)
        ]
        async with self._call(collection):
            have = await self._dimension(collection)
        for vector in vectors:
            if len(vector) != have:
                raise other_dimension(collection, have, len(vector))
        for start in range(0, len(points), _BATCH):
            async with self._call(collection, within_s=_WRITE_TIMEOUT_S) as client:
                await client.upsert(collection, points[start : start + _BATCH], wait=True)

    async def close(self) -> None:
        """Close the connections; idempotent."""
        if not self._closed:
            self._closed = True
            await self._client.close()
            if self._http is not None:
                await self._http.close()

    async def _search_rest(
        self, collection: str, vector: Sequence[float], limit: int, where: Filter | None
    ) -> list[Passage]:
        assert self._http is not None
        body: dict[str, Any] = {
            "query": {"nearest": list(vector)},
            "limit": limit,
            "with_payload": PASSAGE_FIELDS,
            "with_vector": False,
        }
        if where:
            body["filter"] = {"must": [{"key": TERMS, "match": {"value": term}} for term in terms(where)]}
        try:
            raw = await self._http.request("POST", f"/collections/{collection}/points/query", body)
        except Refused as refused:
            raise _refusal(refused, _explanation(refused.body), collection) from refused
        reply = self._http.parsed(raw)
        try:
            points = ((point["payload"], _score(point["score"])) for point in reply["result"]["points"])
            return read_found(points, limit=limit, where=where)
        except (KeyError, TypeError, ValueError) as error:
            raise _nonsense(f"{type(error).__name__}: {error}") from error

    async def _search_grpc(
        self, collection: str, vector: Sequence[float], limit: int, where: Filter | None
    ) -> list[Passage]:
        must: list[models.Condition] = [
            models.FieldCondition(key=TERMS, match=models.MatchValue(value=term)) for term in terms(where or {})
        ]
        async with self._call(collection) as client:
            found = await client.query_points(
                collection,
                query=list(vector),
                query_filter=models.Filter(must=must) if must else None,
                limit=limit,
                with_payload=list(PASSAGE_FIELDS),
                with_vectors=False,
            )
            return read_found(((one.payload, one.score) for one in found.points), limit=limit, where=where)

    async def _ping(self) -> None:
        async with self._call() as client:
            await client.get_collections()

    async def _dimension(self, collection: str) -> int:
        params = (await self._client.get_collection(collection)).config.params.vectors
        if not isinstance(params, models.VectorParams):
            raise UpstreamBadReply("vectors", f"collection {collection!r} was not created by Fetchwise: {params}")
        return params.size

    @asynccontextmanager
    async def _call(
        self, collection: str | None = None, within_s: float | None = None
    ) -> AsyncIterator[AsyncQdrantClient]:
        if collection is not None:
            check_collection(collection)
        if self._closed:
            raise UpstreamUnavailable("vectors", "the connection to the vector store is closed")
        try:
            # The client's own timeout restarts with every byte; this one bounds the whole call.
            async with asyncio.timeout(within_s or self._timeout_s):
                yield self._client
        except FetchwiseError:
            raise
        except Exception as error:
            raise _translated(error, collection) from error


def _server(url: str, api_key: str | None) -> SplitResult:
    """Parse and check a server's URL; warn if a key would be sent unencrypted."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigurationError(f"not the URL of a Qdrant server: {url!r}: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"not the URL of a Qdrant server, such as http://127.0.0.1:6333: {url!r}")
    if api_key and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        log.warning("the vector store's API key is sent unencrypted to %s: use an https URL", parts.hostname)
    return parts


def _rest_url(parts: SplitResult) -> str:
    """Where qdrant-client would send a request: its default port unless the URL names one, below any path."""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _REST_PORT}{parts.path.rstrip('/')}"


def _translated(error: Exception, collection: str | None) -> FetchwiseError:  # noqa: PLR0911 - one return per error
    """Translate a failure of the client, its transport or a reply."""
    match error:
        case ResponseHandlingException(source=Exception() as source):
            return _translated(source, collection)
        case TimeoutError() | httpx.TimeoutException():
            return UpstreamTimeout("vectors", "the vector store did not answer in time")
        case UnexpectedResponse():
            said = _explanation(error.content) or error.reason_phrase
            return _refusal(Refused(error.status_code or 0, error.content, None), said, collection)
        case AioRpcError():
            refused = Refused(_STATUS.get(error.code(), 400), b"", None)
            return _refusal(refused, error.details() or "", collection, error.code().name)
        # The client raises it for one reason: the server limits our rate.
        case QdrantException():
            return UpstreamUnavailable("vectors", "the vector store takes no more requests for now")
        case httpx.TransportError():
            return UpstreamUnavailable("vectors", f"the vector store cannot be reached: {error}")
        case BadPoint():
            return _nonsense(str(error))
        # The rest comes from parsing a malformed reply, which can raise anything.
        case _:
            # Only its type: the message may quote passages.
            return _nonsense(type(error).__name__)


def _refusal(refused: Refused, said: str, collection: str | None, kind: str = "") -> FetchwiseError:
    # A 404 that does not name the collection comes from some other server.
    if refused.status == 404 and collection and collection in said:
        return unknown_collection(collection)
    return meaning("vectors", refused, said, kind)


def _explanation(body: bytes) -> str:
    """The server's error message; empty if this is not an error of Qdrant."""
    try:
        return str(orjson.loads(body)["status"]["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def _nonsense(what: str) -> UpstreamBadReply:
    return UpstreamBadReply("vectors", f"the vector store's reply is malformed: {what}")


def _score(value: object) -> float:
    if type(value) is not float and type(value) is not int:
        raise TypeError("a score that is no number")
    return float(value)
