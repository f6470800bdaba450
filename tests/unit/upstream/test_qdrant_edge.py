"""The embedded store outlives the process that wrote it, and one process at a time has it."""

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

# Adds what its argument says, reports, and keeps the store open until it is killed.
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
    """Another process that has added passages to the store in `tmp_path` and still holds it."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, "ingest", str(tmp_path)], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "added\n"
        yield child
        child.kill()


def kill(child: "subprocess.Popen[str]") -> None:
    """Stop a process as nothing it runs can notice."""
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


async def test_what_was_added_survives_kill(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    """What `add` has returned for is still there, filters included, after the process was killed."""
    kill(holder)
    store = QdrantEdge(tmp_path)
    try:
        assert await store.count("docs") == 600
        assert len(await store.search("docs", UNIT, limit=600, where={"even": True})) == 300
    finally:
        await store.close()


async def test_in_use(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    """A store that another process holds is refused by that process's number and command, with a way out."""
    with pytest.raises(StoreInUse, match=rf"process {holder.pid} \(.*ingest\).*FETCHWISE_VECTORS"):
        QdrantEdge(tmp_path)


async def test_in_use_by_a_process_that_died(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    """The death of its holder frees the store, whatever the lock file still says."""
    kill(holder)
    assert str(holder.pid) in (tmp_path / "LOCK").read_text()
    await QdrantEdge(tmp_path).close()


async def test_in_use_by_this_process(tmp_path: Path) -> None:
    """A second opener in the same process is refused too, until the first has closed."""
    store = QdrantEdge(tmp_path)
    try:
        with pytest.raises(StoreInUse, match=f"process {os.getpid()} "):
            QdrantEdge(tmp_path)
    finally:
        await store.close()
    await QdrantEdge(tmp_path).close()


async def test_lock_names_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file names the program and its verb, never the arguments after it."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fetchwise", "serve", "--key", "s3cret"])
    store = QdrantEdge(tmp_path)
    try:
        assert (tmp_path / "LOCK").read_text() == f"process {os.getpid()} (fetchwise serve)\n"
    finally:
        await store.close()


@pytest.mark.parametrize("name", ["", ".", "..", "../docs", "a/b", "a\\b", "a b", "a.b", "é", "a\n", "a\0", "x" * 65])
async def test_bad_collection_name(tmp_path: Path, name: str) -> None:
    """A name that no collection can have is an unknown collection, and touches no file."""
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
async def test_odd_collection_name(tmp_path: Path, name: str) -> None:
    """Every allowed name works, the store's own file names included."""
    store = QdrantEdge(tmp_path)
    try:
        await store.create(name, dimension=2)
        assert await store.count(name) == 0
    finally:
        await store.close()


async def test_interrupted_creation(tmp_path: Path) -> None:
    """A collection whose making was cut short is not there, and can be made."""
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
    """A question embedded by another model fails as retrieval does, and the message names the remedy."""
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
async def test_passage_that_would_not_come_back(tmp_path: Path, passage: Passage) -> None:
    """What cannot be stored exactly is refused, not bent, and nothing that came with it is stored."""
    store = QdrantEdge(tmp_path)
    try:
        await store.create("docs", dimension=2)
        with pytest.raises(DataError, match="passage"):
            await store.add("docs", [Passage("good", "", "")] * 300 + [passage], [UNIT] * 301)
        assert await store.count("docs") == 0
    finally:
        await store.close()


async def test_not_a_directory(tmp_path: Path) -> None:
    """A root that cannot be a directory is a wrong setting."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        QdrantEdge(tmp_path / "file")


async def test_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the engine the error says what to install."""
    monkeypatch.setitem(sys.modules, "qdrant_edge", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fetchwise\[embedded\]'"):
        QdrantEdge(tmp_path)


async def test_damaged_collection(tmp_path: Path) -> None:
    """A collection whose files are damaged fails as retrieval does, and the store goes on serving the others."""
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
