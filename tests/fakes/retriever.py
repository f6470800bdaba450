"""A VectorStore in memory; the contract suite checks it like the real ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.core.available import Passage
from app.core.question import Filter
from app.errors import DataError, UnknownCollection, UpstreamUnavailable
from app.upstream.vectors.payload import point_id


@dataclass
class _Collection:
    dimension: int
    points: dict[str, tuple[Passage, Sequence[float]]] = field(default_factory=dict)


class FakeRetriever:
    """Searches by dot product; while set, `fail_with` is raised by every call."""

    def __init__(self) -> None:
        self.fail_with: Exception | None = None
        self.searches = 0
        self.closed = False
        self._collections: dict[str, _Collection] = {}

    async def search(
        self, collection: str, vector: Sequence[float], *, limit: int, where: Filter | None = None
    ) -> list[Passage]:
        self.searches += 1
        found = [
            replace(passage, score=_dot(vector, stored))
            for passage, stored in self._named(collection).points.values()
            if all(_same(passage.payload.get(key), value) for key, value in (where or {}).items())
        ]
        # Rounded: the order of equal passages must not depend on the last bits of a sum.
        return sorted(found, key=lambda passage: -round(passage.score, 9))[:limit]

    async def count(self, collection: str) -> int:
        return len(self._named(collection).points)

    async def ping(self) -> None:
        self._check()

    async def close(self) -> None:
        self.closed = True

    async def create(self, collection: str, *, dimension: int) -> None:
        self._check()
        have = self._collections.setdefault(collection, _Collection(dimension)).dimension
        if have != dimension:
            raise DataError(f"collection {collection!r} holds vectors of length {have}, not {dimension}")

    async def known(self, collection: str, ids: Sequence[str]) -> set[str]:
        return self._named(collection).points.keys() & set(ids)

    async def sample(self, collection: str, *, limit: int) -> list[Passage]:
        points = self._named(collection).points
        return [points[id_][0] for id_ in sorted(points, key=point_id)[:limit]]

    async def add(self, collection: str, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        named = self._named(collection)
        for passage, vector in zip(passages, vectors, strict=True):
            if len(vector) != named.dimension:
                raise DataError(f"collection {collection!r}: a vector of length {len(vector)}")
            named.points[passage.id] = (passage, vector)

    def _check(self) -> None:
        if self.fail_with is not None:
            raise self.fail_with
        if self.closed:
            raise UpstreamUnavailable("vectors", "closed")

    def _named(self, collection: str) -> _Collection:
        self._check()
        if collection not in self._collections:
            raise UnknownCollection(f"no collection {collection!r}")
        return self._collections[collection]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _same(left: object, right: object) -> bool:
    # True equals 1 in Python, but not in a filter.
    return type(left) is type(right) and left == right
