"""The reader, the embedder and the vector store of one gateway, opened and closed together."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from app.core.artifact import Identity
from app.errors import FetchwiseError, UnknownCollection, UpstreamUnavailable
from app.ports import Embedder, Reader, VectorStore
from app.settings import Settings
from app.upstream.embedders import open_embedder
from app.upstream.readers import open_reader
from app.upstream.resilience import Resilience
from app.upstream.vectors import open_vectors


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a question needs, opened."""

    reader: Reader
    embedder: Embedder
    vectors: VectorStore
    # The breakers and retries of those that are remote.
    resilience: Resilience | None = None

    def pings(self, collection: str) -> Mapping[str, Callable[[], Awaitable[object]]]:
        """How to ask each part whether it works; the vectors must hold the collection."""

        async def vectors() -> None:
            await self.vectors.ping()
            try:
                await self.vectors.count(collection)
            except UnknownCollection as error:
                raise UpstreamUnavailable("vectors", f"{error}: fill it with `fetchwise ingest`") from error

        return {"reader": self.reader.ping, "embedder": self.embedder.ping, "vectors": vectors}


async def identity_of(reader: Reader, embedder: Embedder, settings: Settings) -> Identity:
    """The identity of a calibrator that is fitted on these parts and settings."""
    return replace(
        await reader.identify(),
        embedder=embedder.name,
        collection=settings.vectors.collection,
        max_tokens=settings.reader.max_tokens,
        ks=settings.calibration.ks,
    )


def resilience_of(settings: Settings) -> Resilience:
    """The breakers and retries that the settings describe."""
    return Resilience(
        failures=settings.faults.breaker_failures,
        retry_s=settings.faults.breaker_retry_s,
        retries=settings.faults.retries,
        at_once=settings.permits,
    )


@asynccontextmanager
async def open_parts(settings: Settings) -> AsyncIterator[Parts]:
    """Open all parts, the slow ones concurrently, and close them at the end."""
    async with AsyncExitStack() as stack:
        resilience = resilience_of(settings)
        vectors = open_vectors(settings.vectors, resilience, data_dir=settings.server.data_dir)
        stack.push_async_callback(vectors.close)
        opening_reader = open_reader(
            settings.reader, resilience, data_dir=settings.server.data_dir, at_once=settings.limits.max_in_flight
        )
        try:
            async with asyncio.TaskGroup() as starting:
                embedder = starting.create_task(stack.enter_async_context(open_embedder(settings.embedder, resilience)))
                reader = starting.create_task(stack.enter_async_context(opening_reader))
        except* FetchwiseError as failures:
            # The first says what to fix. The other part was cancelled, or fails again at the next start.
            raise failures.exceptions[0] from None
        yield Parts(reader.result(), embedder.result(), vectors, resilience)
