"""What stands between the gateway and a remote part: a breaker each, and a few retries where they are safe.

A retry is safe where the call is cheap and changes nothing (embedding, searching), or where the part did not answer;
never after a timeout, which would double the load of a part that is too slow. Libraries for this cost a hundred
microseconds and more for a call that succeeds; this costs about two.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from app.adapters.breaker import Breaker
from app.errors import UpstreamBadReply, UpstreamError, UpstreamUnavailable
from app.ports import Embedder, Filter, Passage, VectorStore

T = TypeVar("T")

# Of all calls to a part, this share may be tried again.
_SHARE = 0.1
# The longest wait before the first retry; twice that before the next.
_PAUSE_S = 0.05


class Retries:
    """At most so many for a call, and for all calls a share of them, so that a storm is not made worse.

    `at_once` are in store from the beginning: a server that dies takes all that it was asked with it.
    """

    def __init__(
        self, most: int, kinds: tuple[type[UpstreamError], ...], *, at_once: int, on_retry: Callable[[], None]
    ) -> None:
        self._most = most
        self._kinds = kinds
        self._at_once = self._left = float(at_once)
        self._on_retry = on_retry
        self._dice = random.Random()  # noqa: S311 - spreading pauses, not secrets

    def earn(self) -> None:
        """Count a call: each pays for a part of a retry."""
        if self._left < self._at_once:
            self._left += _SHARE

    def allow(self, error: UpstreamError, tried: int) -> bool:
        """Whether a call that has failed `tried` times is to be tried again; counts it if so."""
        # Whole seconds are longer than an asker should wait.
        if tried > self._most or not isinstance(error, self._kinds) or error.retry_after_s or self._left < 1.0:
            return False
        self._left -= 1.0
        self._on_retry()
        return True

    async def pause(self, tried: int) -> None:
        """Wait a random time, so that calls that failed together do not come back together."""
        await asyncio.sleep(self._dice.uniform(0.0, _PAUSE_S * 2 ** (tried - 1)))


class Resilience:
    """Makes the breakers and retries of a gateway, and tells whoever watches what becomes of them."""

    def __init__(self, *, failures: int, retry_s: float, retries: int, at_once: int) -> None:
        self._failures = failures
        self._retry_s = retry_s
        self._retries = retries
        self._at_once = at_once
        self._breakers: dict[str, list[Breaker]] = {}
        self._on_open: Callable[[str, float], None] = lambda _upstream, _share: None
        self._on_retry: Callable[[str], None] = lambda _upstream: None

    def watch(self, on_open: Callable[[str, float], None], on_retry: Callable[[str], None]) -> None:
        """Be told the share of a part's breakers that are open, now and at every change; and of every retry."""
        self._on_open, self._on_retry = on_open, on_retry
        for upstream in self._breakers:
            self._tell(upstream)

    def breaker(self, upstream: str) -> Breaker:
        """A breaker for one part, or for one of its replicas."""
        breaker = Breaker(
            upstream, failures=self._failures, retry_s=self._retry_s, on_change=lambda: self._tell(upstream)
        )
        self._breakers.setdefault(upstream, []).append(breaker)
        return breaker

    def retries(self, upstream: str, *kinds: type[UpstreamError]) -> Retries:
        """The retries of one part, after failures of these kinds."""
        return Retries(self._retries, kinds, at_once=self._at_once, on_retry=lambda: self._on_retry(upstream))

    def link(self, upstream: str) -> "Link":
        """The way to a part whose calls are cheap and change nothing."""
        return Link(self.breaker(upstream), self.retries(upstream, UpstreamUnavailable, UpstreamBadReply))

    def _tell(self, upstream: str) -> None:
        breakers = self._breakers[upstream]
        self._on_open(upstream, sum(breaker.open for breaker in breakers) / len(breakers))


class Link:
    """The way to one part."""

    def __init__(self, breaker: Breaker, retries: Retries) -> None:
        self._breaker = breaker
        self._retries = retries

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it, if the breaker lets it through, and once more where that is safe."""
        self._retries.earn()
        tried = 0
        while True:
            try:
                with self._breaker.watching():
                    return await work()
            except UpstreamError as error:
                tried += 1
                if self._breaker.open or not self._retries.allow(error, tried):
                    raise
            await self._retries.pause(tried)

    async def ping(self, ping: Callable[[], Awaitable[object]]) -> None:
        """Ping past the breaker, for the truth; a reply is as good as a trial, where one is due."""
        await ping()
        if self._breaker.due:
            self._breaker.succeeded(self._breaker.admit())


class ResilientEmbedder:
    """A remote embedder that is left alone while it fails."""

    def __init__(self, embedder: Embedder, link: Link) -> None:
        self._embedder = embedder
        self._link = link

    @property
    def name(self) -> str:
        """What goes into a calibrator's identity."""
        return self._embedder.name

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        return self._embedder.dimension

    async def embed_query(self, text: str) -> Sequence[float]:
        """Embed one question."""
        return await self._link.call(lambda: self._embedder.embed_query(text))

    async def embed_passages(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Embed many passages: for ingestion, which is told of every failure."""
        return await self._embedder.embed_passages(texts)

    async def ping(self) -> None:
        """Return if it can embed now."""
        await self._link.ping(self._embedder.ping)

    async def close(self) -> None:
        """Release connections; idempotent."""
        await self._embedder.close()


class ResilientVectors:
    """A remote vector store whose searches leave it alone while it fails; what ingestion does passes through."""

    def __init__(self, vectors: VectorStore, link: Link) -> None:
        self._vectors = vectors
        self._link = link

    async def search(
        self, collection: str, vector: Sequence[float], *, limit: int, where: Filter | None = None
    ) -> list[Passage]:
        """Return at most `limit` passages, nearest first."""
        return await self._link.call(lambda: self._vectors.search(collection, vector, limit=limit, where=where))

    async def count(self, collection: str) -> int:
        """How many passages the collection holds."""
        return await self._vectors.count(collection)

    async def ping(self) -> None:
        """Return if it can search now."""
        await self._link.ping(self._vectors.ping)

    async def close(self) -> None:
        """Flush and release; idempotent."""
        await self._vectors.close()

    async def create(self, collection: str, *, dimension: int) -> None:
        """Make the collection if it is not there."""
        await self._vectors.create(collection, dimension=dimension)

    async def known(self, collection: str, ids: Sequence[str]) -> set[str]:
        """Which of these passage ids the collection already holds."""
        return await self._vectors.known(collection, ids)

    async def add(self, collection: str, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Store passages durably."""
        await self._vectors.add(collection, passages, vectors)
