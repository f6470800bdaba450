"""Fills a collection from files; passages that it already holds are neither embedded nor stored again.

A passage's id is a hash of its content, so running it again resumes an interrupted run and adds nothing twice.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import orjson

from app.core.available import Passage
from app.corpus.chunks import MAX_SENTENCE_WORDS, chunk, word_count
from app.corpus.documents import Document, Skipped, find, read
from app.ports import Embedder, VectorStore

_MAX_TITLE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run, in bytes: the number of passages is known only at the end."""

    bytes_done: int
    bytes_total: int
    added: int
    known: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Ingested:
    """Result of a run: passages stored, passages already there (or repeated), and what was skipped."""

    added: int
    known: int
    skipped: tuple[Skipped, ...]
    seconds: float


@dataclass(slots=True)
class _Reading:
    """Yields passages lazily in file order; records progress and what was skipped."""

    paths: Sequence[Path]
    bytes_done: int = 0
    skipped: list[Skipped] = field(default_factory=list)

    def passages(self) -> Iterator[Passage]:
        before = 0
        for path in find(self.paths):
            for item in [path] if isinstance(path, Skipped) else read(path):
                self.bytes_done = before + item.position
                if isinstance(item, Skipped):
                    self.skipped.append(item)
                else:
                    yield from passages_of(item)
            before += _size(path)
            self.bytes_done = before


async def ingest(
    paths: Sequence[Path],
    *,
    collection: str,
    embedder: Embedder,
    corpus: VectorStore,
    batch: int = 64,
    on_progress: Callable[[Progress], None] | None = None,
) -> Ingested:
    """Read, split, embed and store, `batch` passages at a time; creates the collection if it does not exist.

    Only one batch is in memory. Upstream failures are raised; what was stored before stays.
    """
    started = time.perf_counter()
    total = sum(_size(path) for path in find(paths))
    await corpus.create(collection, dimension=embedder.dimension)
    reading = _Reading(paths)
    added = known = 0
    waiting = reading.passages()
    while passages := list(islice(waiting, batch)):
        by_id = {passage.id: passage for passage in passages}
        there = await corpus.known(collection, list(by_id))
        new = [passage for passage_id, passage in by_id.items() if passage_id not in there]
        if new:
            vectors = await embedder.embed_passages([embedded_text(passage) for passage in new])
            await corpus.add(collection, new, vectors)
        added += len(new)
        known += len(passages) - len(new)
        if on_progress is not None:
            on_progress(Progress(reading.bytes_done, total, added, known, len(reading.skipped)))
    if on_progress is not None:
        on_progress(Progress(total, total, added, known, len(reading.skipped)))
    return Ingested(added=added, known=known, skipped=tuple(reading.skipped), seconds=time.perf_counter() - started)


def passages_of(document: Document) -> Iterator[Passage]:
    """Split a document into passages with content-based ids; a short row stays one passage."""
    # Each passage carries the title, so it must be short.
    title = document.title[:_MAX_TITLE_CHARS]
    untouched = document.is_row and word_count(document.text) <= MAX_SENTENCE_WORDS
    for text in [document.text] if untouched else chunk(document.text):
        content = orjson.dumps([title, text, dict(document.payload)], option=orjson.OPT_SORT_KEYS)
        passage_id = hashlib.sha256(content).hexdigest()[:16]
        yield Passage(id=passage_id, title=title, text=text, payload=document.payload)


def embedded_text(passage: Passage) -> str:
    """The text to embed: with the title, because the text often says only "it" or "she"."""
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text


def _size(path: Path | Skipped) -> int:
    try:
        return 0 if isinstance(path, Skipped) else path.stat().st_size
    except OSError:
        return 0  # a dangling link has no size; reading it reports the error
