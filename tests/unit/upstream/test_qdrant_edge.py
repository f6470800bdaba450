"""The embedded store survives the process that wrote it, and only one process at a time can open it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.available import Passage
from app.errors import (
    ConfigurationError,
    DataError,
    StoreInUse,
    UnknownCollection,
    UpstreamBadReply,
    UpstreamUnavailable,
)
from app.upstream.vectors.qdrant_edge import QdrantEdge

PROJECT = Path(__file__).parents[3]
UNIT = [1.0, 0.0]

# Adds passages, prints a line, and keeps the store open until it is killed.
HOLDER = """
import asyncio, sys, time
from pathlib import Path
from app.upstream.vectors.qdrant_edge import QdrantEdge
from app.core.available import Passage

async def main():
    store = QdrantEdge(Path(sys.argv[2]))
    await store.create("docs", dimension=2)
    passages = [Passage(str(i), "t", "text", payload={"even": i % 2 == 0}) for i in range(600)]
    await store.add("docs", passages, [[1.0, 0.0]] * len(passages))
    print("added", flush=True)
    time.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has added passages to the store in `tmp_path` and keeps it open."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, "ingest", str(tmp_path)], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "added\n"
        yield child
        child.kill()


def kill(child: "subprocess.Popen[str]") -> None:
    """Kill a process so that it cannot react."""
    child.send_signal(signal.SIGKILL)
    child.wait()


async def test_reopening_finds_what_was_added(tmp_path: Path) -> None:
    """Passages, fields and the dimension are there when the store is opened again."""
    store = QdrantEdge(tmp_path)
    await store.create("docs", dimension=2)
    await store.add("docs", [Passage("a", "A", "text", payload={"lang": "en"})], [UNIT])
    await store.close()

    store = QdrantEdge(tmp_path)
    try:
        [passage] = await store.search("docs", UNIT, limit=5, where={"lang": "en"})
        assert (passage.id, passage.title, passage.payload) == ("a", "A", {"lang": "en"})
        with pytest.raises(DataError, match="length 2, not 3"):
            await store.create("docs", dimension=3)
    finally:
        await store.close()


async def test_added_passages_survive_a_kill(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    """Once `add` has returned, its passages and their fields survive a killed process."""
    kill(holder)
    store = QdrantEdge(tmp_path)
    try:
        assert await store.count("docs") == 600
        assert len(await store.search("docs", UNIT, limit=600, where={"even": True})) == 300
    finally:
        await store.close()


async def test_store_in_use_is_refused(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    """The refusal names the process that holds the store and its command, and says what to do."""
    with pytest.raises(StoreInUse, match=rf"process {holder.pid} \(.*ingest\).*FETCHWISE_VECTORS"):
        QdrantEdge(tmp_path)


async def test_store_is_free_after_its_holder_died(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    """The store can be opened although the lock file still names the dead process."""
    kill(holder)
    assert str(holder.pid) in (tmp_path / "LOCK").read_text()
    await QdrantEdge(tmp_path).close()


async def test_store_in_use_by_this_process_is_refused(tmp_path: Path) -> None:
    """A second opener in the same process is refused until the first has closed the store."""
    store = QdrantEdge(tmp_path)
    try:
        with pytest.raises(StoreInUse, match=f"process {os.getpid()} "):
            QdrantEdge(tmp_path)
    finally:
        await store.close()
    await QdrantEdge(tmp_path).close()


async def test_lock_names_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file names the program and its subcommand, not the arguments after it."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fetchwise", "serve", "--key", "s3cret"])
    store = QdrantEdge(tmp_path)
    try:
        assert (tmp_path / "LOCK").read_text() == f"process {os.getpid()} (fetchwise serve)\n"
    finally:
        await store.close()


@pytest.mark.parametrize("name", ["", ".", "..", "../docs", "a/b", "a\\b", "a b", "a.b", "é", "a\n", "a\0", "x" * 65])
async def test_bad_collection_name(tmp_path: Path, name: str) -> None:
    """An invalid name is an unknown collection, and no file is touched."""
    root = tmp_path / "store"
    store = QdrantEdge(root)
    try:
        with pytest.raises(UnknownCollection):
            await store.search(name, UNIT, limit=1)
        with pytest.raises(UnknownCollection):
            await store.create(name, dimension=2)
    finally:
        await store.close()
    assert [name for _, _, files in os.walk(tmp_path) for name in files] == ["LOCK"]


@pytest.mark.parametrize("name", ["LOCK", "collections", "-", "_", "x" * 64])
async def test_every_allowed_collection_name_works(tmp_path: Path, name: str) -> None:
    """Even the store's own file names are allowed."""
    store = QdrantEdge(tmp_path)
    try:
        await store.create(name, dimension=2)
        assert await store.count(name) == 0
    finally:
        await store.close()


async def test_interrupted_creation(tmp_path: Path) -> None:
    """A collection whose creation was interrupted does not exist, and can be created."""
    half = tmp_path / "collections" / ".docs"
    half.mkdir(parents=True)
    (half / "edge_config.json").write_text("{")
    store = QdrantEdge(tmp_path)
    try:
        with pytest.raises(UnknownCollection):
            await store.count("docs")
        await store.create("docs", dimension=2)
        assert await store.count("docs") == 0
    finally:
        await store.close()


async def test_search_with_other_dimension(tmp_path: Path) -> None:
    """A question embedded by another model is a retrieval failure, and the message says what to do."""
    store = QdrantEdge(tmp_path)
    try:
        await store.create("docs", dimension=2)
        with pytest.raises(UpstreamBadReply, match=r"length 2, not 3.*embedder"):
            await store.search("docs", [1.0, 0.0, 0.0], limit=1)
    finally:
        await store.close()


@pytest.mark.parametrize(
    "passage",
    [Passage("a", "", "lone \ud800"), Passage("a", "", "", payload={"n": 2**63}), Passage("\udfff", "", "")],
    ids=["text", "integer", "id"],
)
async def test_passage_that_cannot_be_stored_exactly_is_refused(tmp_path: Path, passage: Passage) -> None:
    """It is not changed to fit, and no passage of the same call is stored."""
    store = QdrantEdge(tmp_path)
    try:
        await store.create("docs", dimension=2)
        with pytest.raises(DataError, match="passage"):
            await store.add("docs", [Passage("good", "", "")] * 300 + [passage], [UNIT] * 301)
        assert await store.count("docs") == 0
    finally:
        await store.close()


async def test_path_that_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    """The error is a configuration error."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        QdrantEdge(tmp_path / "file")


async def test_missing_engine_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the engine, the error says what to install."""
    monkeypatch.setitem(sys.modules, "qdrant_edge", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fetchwise\[embedded\]'"):
        QdrantEdge(tmp_path)


async def test_damaged_collection(tmp_path: Path) -> None:
    """A damaged collection is a retrieval failure; the store still serves the others."""
    store = QdrantEdge(tmp_path)
    try:
        await store.create("good", dimension=2)
        await store.create("docs", dimension=2)
        (tmp_path / "collections" / "docs" / "edge_config.json").write_bytes(b"\0" * 10)
        with pytest.raises(UpstreamUnavailable, match="embedded vector store failed"):
            await store.search("docs", UNIT, limit=1)
        assert await store.search("good", UNIT, limit=1) == []
    finally:
        await store.close()
