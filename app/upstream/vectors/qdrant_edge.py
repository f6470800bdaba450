"""Qdrant's engine inside the process, on disk: passages survive kill -9. One process at a time may open it."""

import asyncio
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from app.core.available import Passage
from app.core.question import Filter
from app.errors import ConfigurationError, FetchwiseError, StoreInUse, UpstreamBadReply, UpstreamUnavailable
from app.upstream.vectors.payload import (
    TERMS,
    check_collection,
    other_dimension,
    point_id,
    read_found,
    read_payload,
    terms,
    unknown_collection,
    write_payload,
)

if TYPE_CHECKING:
    from qdrant_edge import EdgeShard, Point, PointId, Record

T = TypeVar("T")

# While passages are added, a search waits for one batch at most: the engine runs one call at a time.
_BATCH = 256
# The same for reading a sample.
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class _Collection:
    shard: "EdgeShard"
    dimension: int


class QdrantEdge:
    """A VectorStore in the directory `root`; StoreInUse if another process has it open.

    Every call into the engine runs on the adapter's one thread: the engine holds the interpreter for a whole
    call, so more threads would gain nothing, and the event loop stays free to read sockets between calls.
    """

    def __init__(self, root: Path) -> None:
        try:
            import qdrant_edge  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise ConfigurationError(
                "the embedded vector store is not installed: pip install 'fetchwise[embedded]', "
                "or set FETCHWISE_VECTORS to the URL of a Qdrant server"
            ) from error
        self._engine = qdrant_edge
        self._lock = _Lock.take(root)
        # In a subdirectory, so that no collection name can clash with the lock file.
        self._root = root / "collections"
        self._open: dict[str, _Collection] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="qdrant-edge")
        self._closed = False

    async def search(
        self, collection: str, vector: Sequence[float], *, limit: int, where: Filter | None = None
    ) -> list[Passage]:
        """Return at most `limit` passages, nearest first; exact, not approximate."""

        def run() -> list[Passage]:
            opened = self._collection(collection)
            if len(vector) != opened.dimension:
                raise UpstreamBadReply("vectors", str(other_dimension(collection, opened.dimension, len(vector))))
            engine = self._engine
            conditions = [engine.FieldCondition(TERMS, match=engine.MatchValue(term)) for term in terms(where or {})]
            request = engine.SearchRequest(
                query=engine.Query.Nearest(list(vector)),
                limit=limit,
                filter=engine.Filter(must=[*conditions]) if conditions else None,
                params=engine.SearchParams(exact=True),
                with_payload=True,
            )
            points = ((point.payload, point.score) for point in opened.shard.search(request))
            return read_found(points, limit=limit, where=where)

        return await self._run(run)

    async def count(self, collection: str) -> int:
        """How many passages the collection holds."""
        return await self._run(lambda: self._collection(collection).shard.count(self._engine.CountRequest(exact=True)))

    async def ping(self) -> None:
        """Return if the store is open and its thread responds."""
        await self._run(lambda: None)

    async def create(self, collection: str, *, dimension: int) -> None:
        """Create the collection if it does not exist; DataError if it exists with another dimension."""

        def run() -> None:
            path = self._path(collection)
            if path.exists():
                have = self._collection(collection).dimension
                if have != dimension:
                    raise other_dimension(collection, have, dimension)
                return
            # Created under a temporary name, then renamed: a kill in between leaves no partial collection.
            temporary = path.with_name(f".{path.name}")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            engine = self._engine
            vectors = engine.EdgeVectorParams(size=dimension, distance=engine.Distance.Cosine)
            shard = engine.EdgeShard.create(str(temporary), engine.EdgeConfig(vectors=vectors))
            # Without an index a filter reads every payload: 150 ms at 20,000 passages, while the event loop is blocked.
            shard.update(engine.UpdateOperation.create_field_index(TERMS, engine.PayloadSchemaType.Keyword))
            shard.close()
            temporary.rename(path)

        await self._run(run)

    async def known(self, collection: str, ids: Sequence[str]) -> set[str]:
        """Which of these passage ids the collection already holds."""

        def run() -> set[str]:
            points = {point_id(id_): id_ for id_ in ids}
            shard = self._collection(collection).shard
            records = shard.retrieve([*points], with_payload=False, with_vector=False)
            return {points[str(record.id)] for record in records}

        return await self._run(run)

    async def sample(self, collection: str, *, limit: int) -> list[Passage]:
        """The first passages in the order of their point ids, which are hashes."""
        found: list[Passage] = []
        offset: PointId | None = None

        def page() -> "tuple[list[Record], PointId | None]":
            size = min(_PAGE, limit - len(found))
            request = self._engine.ScrollRequest(offset=offset, limit=size, with_payload=True, with_vector=False)
            return self._collection(collection).shard.scroll(request)

        while len(found) < limit:
            records, offset = await self._run(page)
            found += [read_payload(record.payload, 0.0) for record in records]
            if offset is None:
                break
        return found

    async def add(self, collection: str, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Store passages, on disk when this returns; a known id is replaced."""
        engine = self._engine

        def points() -> "list[Point]":
            have = self._collection(collection).dimension
            made = []
            for passage, vector in zip(passages, vectors, strict=True):
                if len(vector) != have:
                    raise other_dimension(collection, have, len(vector))
                made.append(engine.Point(point_id(passage.id), list(vector), write_payload(passage)))
            return made

        def upsert(batch: "list[Point]") -> None:
            self._collection(collection).shard.update(engine.UpdateOperation.upsert_points(batch))

        def flush() -> None:
            self._collection(collection).shard.flush()

        # Build all points before storing the first, so that an invalid one rejects the whole batch.
        made = await self._run(points)
        for start in range(0, len(made), _BATCH):
            await self._run(partial(upsert, made[start : start + _BATCH]))
        await self._run(flush)

    async def close(self) -> None:
        """Close every collection and release the directory; idempotent."""
        if self._closed:
            return
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._close_shards)
        self._closed = True
        try:
            await closing
        finally:
            self._thread.shutdown()
            self._lock.release()

    async def _run(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise UpstreamUnavailable("vectors", "the embedded vector store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, _translated, call)

    def _close_shards(self) -> None:
        while self._open:
            _, opened = self._open.popitem()
            opened.shard.close()

    def _path(self, collection: str) -> Path:
        return self._root / check_collection(collection)

    def _collection(self, name: str) -> _Collection:
        if name not in self._open:
            path = self._path(name)
            if not path.exists():
                raise unknown_collection(name)
            # The engine does not report the dimension of a loaded collection; read it from its config file.
            config = json.loads((path / "edge_config.json").read_text())
            dimension = int(config["vectors"][""]["size"])
            self._open[name] = _Collection(self._engine.EdgeShard.load(str(path)), dimension)
        return self._open[name]


def _translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except FetchwiseError:
        raise
    # The engine raises plain Exception; a panic in it is a BaseException.
    except BaseException as error:
        raise UpstreamUnavailable("vectors", f"the embedded vector store failed: {error}") from error


class _Lock:
    """A lock on the store's directory; the operating system releases it when the process dies."""

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def take(cls, root: Path) -> Self:
        """Acquire it, or raise StoreInUse with the name of the holder."""
        path = root / "LOCK"
        try:
            root.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigurationError(f"the vector store's directory {root} cannot be written: {error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if not isinstance(error, BlockingIOError):
                raise ConfigurationError(f"the vector store's directory {root} cannot be locked: {error}") from error
            # The file is empty between locking it and writing the holder's name.
            holder = path.read_text().strip() or "another process"
            raise StoreInUse(
                f"the vector store {root} is in use by {holder}: stop that process first, "
                "or set FETCHWISE_VECTORS to the URL of a Qdrant server, which many processes can share"
            ) from error
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} ({_command()})\n".encode(), 0)
        return cls(file)

    def release(self) -> None:
        """Release it, but keep the file: deleting it could break the next holder's lock."""
        os.ftruncate(self._file, 0)
        fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)


def _command() -> str:
    # Program and subcommand only: later arguments may contain secrets.
    program = Path(sys.argv[0] if sys.argv else "python")
    name = program.parent.name if program.name == "__main__.py" else program.name
    return " ".join([name, *(word for word in sys.argv[1:2] if word.isalpha())])
