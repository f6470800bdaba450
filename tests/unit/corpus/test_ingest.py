"""Filling a collection: the first run, another run, and a run after an interruption."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.core.available import Passage
from app.corpus.documents import Document
from app.corpus.ingest import Progress, embedded_text, ingest, passages_of
from app.errors import DataError, UpstreamUnavailable
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.retriever import FakeRetriever

ROWS = 100
# A hundred sentences of eight words, twelve to a passage.
PARTS = 9


class InterruptedEmbedder(FakeEmbedder):
    """Raises, as an interrupted program does, after some batches."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self._left = batches

    async def embed_passages(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if self._left == 0:
            raise asyncio.CancelledError
        self._left -= 1
        return await super().embed_passages(texts)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"id": i, "title": f"Title {i}", "text": f"Fact number {i}."}) + "\n" for i in range(ROWS))
    )
    (tmp_path / "long.txt").write_text(" ".join(f"This is sentence {i} of a long text." for i in range(100)))
    return tmp_path


def stored(corpus: FakeRetriever) -> dict[str, Passage]:
    return {passage_id: passage for passage_id, (passage, _) in corpus._collections["facts"].points.items()}


async def test_everything_is_stored_and_found(folder: Path) -> None:
    """After a run, each row can be found by its words, with its title, text and payload."""
    embedder, corpus = FakeEmbedder(), FakeRetriever()
    report = await ingest([folder], collection="facts", embedder=embedder, corpus=corpus)
    assert report.added == await corpus.count("facts") == ROWS + PARTS
    assert (report.known, report.skipped) == (0, ())
    assert report.seconds > 0
    (best,) = await corpus.search("facts", await embedder.embed_query("Title 42 Fact number 42."), limit=1)
    assert (best.title, best.text, best.payload) == ("Title 42", "Fact number 42.", {"source_id": "42"})


async def test_second_run_adds_and_embeds_nothing(folder: Path) -> None:
    """Known passages are not even embedded."""
    corpus = FakeRetriever()
    first = await ingest([folder], collection="facts", embedder=FakeEmbedder(), corpus=corpus)
    idle = FakeEmbedder()
    second = await ingest([folder], collection="facts", embedder=idle, corpus=corpus)
    assert (second.added, second.known) == (0, first.added)
    assert idle.passages == []


async def test_only_new_rows_are_embedded(folder: Path) -> None:
    """When a row is added to a file, only that row is embedded."""
    corpus = FakeRetriever()
    await ingest([folder], collection="facts", embedder=FakeEmbedder(), corpus=corpus)
    with (folder / "rows.jsonl").open("a") as file:
        file.write(json.dumps({"title": "New", "text": "News."}) + "\n")
    embedder = FakeEmbedder()
    report = await ingest([folder], collection="facts", embedder=embedder, corpus=corpus)
    assert (report.added, embedder.passages) == (1, ["New\nNews."])


async def test_interrupted_run_is_resumed(folder: Path) -> None:
    """Running again after an interruption gives the same passages as one complete run, and repeats no batch."""
    whole, resumed = FakeRetriever(), FakeRetriever()
    await ingest([folder], collection="facts", embedder=FakeEmbedder(), corpus=whole, batch=10)
    with pytest.raises(asyncio.CancelledError):
        await ingest([folder], collection="facts", embedder=InterruptedEmbedder(4), corpus=resumed, batch=10)
    assert await resumed.count("facts") == 40
    report = await ingest([folder], collection="facts", embedder=FakeEmbedder(), corpus=resumed, batch=10)
    assert (report.known, report.added) == (40, ROWS + PARTS - 40)
    assert stored(resumed) == stored(whole)


async def test_upstream_failure_is_raised_and_a_later_run_completes(folder: Path) -> None:
    """A failing embedder ends the run with its own error, and a later run completes it."""
    embedder, corpus = FakeEmbedder(), FakeRetriever()
    embedder.fail_with = UpstreamUnavailable("embedder", "gone")
    with pytest.raises(UpstreamUnavailable):
        await ingest([folder], collection="facts", embedder=embedder, corpus=corpus)
    embedder.fail_with = None
    assert (await ingest([folder], collection="facts", embedder=embedder, corpus=corpus)).added == ROWS + PARTS


async def test_batches_are_bounded(folder: Path) -> None:
    """At most one batch is embedded at once."""
    embedder = FakeEmbedder()
    await ingest([folder], collection="facts", embedder=embedder, corpus=FakeRetriever(), batch=25)
    assert embedder.batches == [25, 25, 25, 25, 9]


async def test_files_are_read_lazily(folder: Path) -> None:
    """Reading is at most one batch ahead of storing: a later file is not opened yet."""
    (folder / "zz.jsonl").write_text(json.dumps({"text": "as first written"}) + "\n")
    corpus = FakeRetriever()

    def rewrite(progress: Progress) -> None:
        (folder / "zz.jsonl").write_text(json.dumps({"text": "as later changed"}) + "\n")

    await ingest([folder], collection="facts", embedder=FakeEmbedder(), corpus=corpus, batch=8, on_progress=rewrite)
    assert "as later changed" in {passage.text for passage in stored(corpus).values()}


async def test_same_content_is_stored_once(tmp_path: Path) -> None:
    """Rows with the same content are one passage, within a batch or across batches; another payload is another one."""
    same, other = {"text": "Rock."}, {"text": "Rock.", "lang": "en"}
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in [same, same, other, same]))
    for batch in (1, 64):
        corpus = FakeRetriever()
        report = await ingest([tmp_path], collection="facts", embedder=FakeEmbedder(), corpus=corpus, batch=batch)
        assert (report.added, report.known) == (2, 2)


async def test_report_lists_what_was_skipped(folder: Path) -> None:
    """Each skipped file or line is in the report with its reason; the rest is stored."""
    (folder / "broken.jsonl").write_text('{"text": "good"}\n{"text": "torn\n')
    (folder / "image.png").write_bytes(b"\x89PNG")
    report = await ingest([folder], collection="facts", embedder=FakeEmbedder(), corpus=FakeRetriever())
    assert report.added == ROWS + PARTS + 1
    assert [(item.path.name, item.line) for item in report.skipped] == [("broken.jsonl", 2), ("image.png", None)]
    assert "not JSON" in report.skipped[0].reason
    assert "unknown type .png" in report.skipped[1].reason


async def test_progress_ends_at_the_total(folder: Path) -> None:
    """Bytes and passages only grow, and end at the total and at the report's figures."""
    seen: list[Progress] = []
    report = await ingest(
        [folder], collection="facts", embedder=FakeEmbedder(), corpus=FakeRetriever(), batch=10, on_progress=seen.append
    )
    done = [progress.bytes_done for progress in seen]
    assert done == sorted(done)
    assert len(set(done)) > 5
    total = sum((folder / name).stat().st_size for name in ("rows.jsonl", "long.txt"))
    assert seen[-1] == Progress(total, total, added=report.added, known=0, skipped=0)


async def test_empty_directory_makes_an_empty_collection(tmp_path: Path) -> None:
    """The collection is created even if there is nothing to read."""
    corpus = FakeRetriever()
    report = await ingest([tmp_path], collection="facts", embedder=FakeEmbedder(), corpus=corpus)
    assert (report.added, await corpus.count("facts")) == (0, 0)


async def test_missing_path_stores_nothing(folder: Path) -> None:
    """A mistyped path is detected before anything is stored."""
    corpus = FakeRetriever()
    with pytest.raises(DataError):
        await ingest([folder, folder / "nope"], collection="facts", embedder=FakeEmbedder(), corpus=corpus)
    assert corpus._collections == {}


def test_short_row_is_not_split() -> None:
    """A row of up to 150 words keeps its white space; a longer one is split, each part with its source_id."""
    short = Document("T", "  Two\n\nlines. ", {"source_id": "7"}, is_row=True)
    assert [passage.text for passage in passages_of(short)] == [short.text]
    long = Document("T", "Nine words are in this sentence, counting well. " * 30, {"source_id": "8"}, is_row=True)
    cut = list(passages_of(long))
    assert len(cut) > 1
    assert {passage.payload["source_id"] for passage in cut} == {"8"}


def test_ids_depend_only_on_content() -> None:
    """Title, text and payload determine the id; the order of the fields does not matter."""
    (first,) = passages_of(Document("T", "Rock.", {"a": 1, "b": "x"}))
    (second,) = passages_of(Document("T", "Rock.", {"b": "x", "a": 1}, position=99))
    (third,) = passages_of(Document("U", "Rock.", {"a": 1, "b": "x"}))
    assert first.id == second.id != third.id
    assert len(first.id) == 16


def test_title_is_embedded_too() -> None:
    """A passage is found by its title as well as by its text."""
    assert embedded_text(Passage("1", "Moon", "It is rock.")) == "Moon\nIt is rock."
    assert embedded_text(Passage("1", "", "It is rock.")) == "It is rock."
