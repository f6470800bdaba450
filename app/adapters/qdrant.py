"""A Qdrant server or cluster over REST or gRPC: what it says wrong or late comes out as an error of ours."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import SplitResult, urlsplit

from qdrant_client import AsyncQdrantClient, models

from app.adapters.qdrant_errors import translate
from app.adapters.qdrant_payload import (
    PASSAGE_FIELDS,
    TERMS,
    check_collection,
    other_dimension,
    point_id,
    read_payload,
    terms,
    write_payload,
)
from app.adapters.qdrant_rest import QdrantSearch
from app.errors import ConfigurationError, FetchwiseError, UpstreamBadReply, UpstreamUnavailable
from app.ports import Filter, Passage

log = logging.getLogger(__name__)

# Writing waits until the server has applied the change, which may outlast any search worth waiting for.
_WRITE_TIMEOUT_S = 60.0
_BATCH = 256
_REST_PORT, _GRPC_PORT = 6333, 6334
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Qdrant:
    """A Retriever and a Corpus on a server; nothing connects before the first call.

    `timeout_s` bounds a whole read, connecting included. An `https` URL means TLS. A port that the URL names is
    the gRPC port where `grpc` is set; without one the vendor's own are taken. All calls go through the vendor's
    client, except for a search over REST.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        grpc: bool = False,
        timeout_s: float = 5.0,
        client: AsyncQdrantClient | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._rest: QdrantSearch | None = None
        if client is None:
            parts = _server(url, api_key)
            client = _vendors(url, parts.port, api_key, grpc=grpc, timeout_s=timeout_s)
            if not grpc:
                self._rest = QdrantSearch(_rest_url(parts), api_key, timeout_s=timeout_s)
        self._client = client
        self._closed = False

    async def search(
        self, collection: str, vector: Sequence[float], *, limit: int, where: Filter | None = None
    ) -> list[Passage]:
        """Return at most `limit` passages, nearest first."""
        if self._rest is not None:
            return await self._rest.search(check_collection(collection), vector, limit=limit, where=where)
        conditions: list[models.Condition] = [
            models.FieldCondition(key=TERMS, match=models.MatchValue(value=term)) for term in terms(where or {})
        ]
        async with self._call(collection) as client:
            found = await client.query_points(
                collection,
                query=list(vector),
                query_filter=models.Filter(must=conditions) if conditions else None,
                limit=limit,
                with_payload=list(PASSAGE_FIELDS),
                with_vectors=False,
            )
            return [read_payload(point.payload, point.score) for point in found.points]

    async def count(self, collection: str) -> int:
        """How many passages the collection holds."""
        async with self._call(collection) as client:
            return (await client.count(collection, exact=True)).count

    async def ping(self) -> None:
        """Return if the server answers and takes our key."""
        async with self._call() as client:
            await client.get_collections()

    async def create(self, collection: str, *, dimension: int) -> None:
        """Make the collection if it is not there; DataError if it is there with another dimension."""
        async with self._call(collection, within_s=_WRITE_TIMEOUT_S) as client:
            if await client.collection_exists(collection):
                have = await self._dimension(collection)
                if have != dimension:
                    raise other_dimension(collection, have, dimension)
            else:
                vectors = models.VectorParams(size=dimension, distance=models.Distance.COSINE)
                await client.create_collection(collection, vectors_config=vectors)
            # Also where the collection was there: whoever made it may have been stopped before this.
            await client.create_payload_index(collection, TERMS, models.PayloadSchemaType.KEYWORD, wait=True)

    async def known(self, collection: str, ids: Sequence[str]) -> set[str]:
        """Which of these passage ids the collection already holds."""
        points = {point_id(id_): id_ for id_ in ids}
        async with self._call(collection) as client:
            records = await client.retrieve(collection, [*points], with_payload=False, with_vectors=False)
            return {points[str(record.id)] for record in records}

    async def add(self, collection: str, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Store passages, applied and in the server's log when this returns; a known id is replaced."""
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
            if self._rest is not None:
                await self._rest.close()

    async def _dimension(self, collection: str) -> int:
        params = (await self._client.get_collection(collection)).config.params.vectors
        if not isinstance(params, models.VectorParams):
            raise UpstreamBadReply("vectors", f"collection {collection!r} was not made by Fetchwise: {params}")
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
            # The vendor's own timeout counts whole seconds between two bytes; this one counts them all.
            async with asyncio.timeout(within_s or self._timeout_s):
                yield self._client
        except FetchwiseError:
            raise
        except Exception as error:
            raise translate(error, collection) from error


def _server(url: str, api_key: str | None) -> SplitResult:
    """The parts of a server's URL, checked; a key that would travel in the clear is worth a warning."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigurationError(f"not the URL of a Qdrant server: {url!r}: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"not the URL of a Qdrant server, such as http://127.0.0.1:6333: {url!r}")
    if api_key and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        log.warning("the vector store's key travels in the clear to %s: use an https URL", parts.hostname)
    return parts


def _rest_url(parts: SplitResult) -> str:
    """Where the vendor's client would send a request: to its own port unless one is named, behind any path."""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _REST_PORT}{parts.path.rstrip('/')}"


def _vendors(url: str, port: int | None, api_key: str | None, *, grpc: bool, timeout_s: float) -> AsyncQdrantClient:
    return AsyncQdrantClient(
        url=url,
        port=_REST_PORT,
        grpc_port=port or _GRPC_PORT,
        prefer_grpc=grpc,
        # As a header and not as `api_key`, which would raise the vendor's own warning on http: ours is above.
        headers={"api-key": api_key} if api_key else None,
        timeout=math.ceil(max(timeout_s, _WRITE_TIMEOUT_S)),
        check_compatibility=False,
    )
