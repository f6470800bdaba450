"""What documents promise, in memory, as files of a folder, and as rows of SQLite and PostgreSQL."""

import fcntl
import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ConfigurationError, DocumentConflict, StorageError
from app.ports import Documents, update
from app.storage.documents import open_documents
from app.storage.folder import FolderDocuments
from tests.fakes.documents import FakeDocuments

Opener = Callable[[], Documents]


@pytest.fixture(params=["fake", "folder", "sqlite", pytest.param("postgresql", marks=pytest.mark.e2e)])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same documents as often as wanted, as several processes do."""
    where = str(tmp_path / "documents")
    if request.param == "sqlite":
        where = f"sqlite:///{tmp_path}/documents.sqlite3"
    elif request.param == "postgresql":
        where = request.getfixturevalue("postgres").database()
    fake = FakeDocuments()
    return lambda: fake if request.param == "fake" else open_documents(where, "here", setting="FETCHWISE_KEYS")


@pytest.fixture
def documents(opener: Opener) -> Documents:
    return opener()


def test_what_was_written_is_read(opener: Opener) -> None:
    """By every process, with the revision that the write returned."""
    assert opener().read("a.json") is None
    revision = opener().write("a.json", b'{"a": 1}', expected=None)
    found = opener().read("a.json")
    assert found is not None
    assert (found.content, found.revision) == (b'{"a": 1}', revision)


@given(content=st.binary(max_size=50))
def test_every_byte_is_kept(documents: Documents, content: bytes) -> None:
    """The content may be anything, also nothing."""
    update(documents, "any", lambda _: content)
    found = documents.read("any")
    assert found is not None
    assert found.content == content


def test_a_write_names_the_revision_that_it_replaces(documents: Documents) -> None:
    """An older one, one that never was, and none where there is a document are conflicts; nothing changes then."""
    first = documents.write("a", b"one", expected=None)
    second = documents.write("a", b"two", expected=first)
    assert second != first
    for stale in (first, "never", None):
        with pytest.raises(DocumentConflict, match="another writer"):
            documents.write("a", b"three", expected=stale)
    with pytest.raises(DocumentConflict):
        documents.write("b", b"one", expected=first)
    found = documents.read("a")
    assert found is not None
    assert (found.content, found.revision) == (b"two", second)
    assert documents.read("b") is None


def test_names_are_sorted(documents: Documents) -> None:
    """There are none before the first write."""
    assert documents.names() == []
    for name in ("b.json", "a", "2026-11-18-0a1b2c3d.json", "B"):
        documents.write(name, b"", expected=None)
    assert documents.names() == ["2026-11-18-0a1b2c3d.json", "B", "a", "b.json"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/etc/passwd", "a/b", ".hidden", "a b", "a\n", "a\0", "é", "x" * 161]
)
def test_odd_names_are_refused(documents: Documents, name: str) -> None:
    """A name never leads out of the folder, and nothing is written."""
    for act in (lambda: documents.read(name), lambda: documents.write(name, b"", expected=None)):
        with pytest.raises(StorageError, match="cannot name a document"):
            act()
    assert documents.names() == []


def test_of_two_writers_one_wins(opener: Opener) -> None:
    """Of many that expect the same revision one is stored and the others are conflicts, the first time too."""
    expected = None
    for turn in range(3):
        with ThreadPoolExecutor(6) as pool:
            done = list(pool.map(lambda number: _tried(opener(), f"{turn} {number}", expected), range(6)))  # noqa: B023
        (expected,) = [revision for revision in done if revision is not None]
        found = opener().read("a")
        assert found is not None
        assert found.revision == expected


def _tried(documents: Documents, content: str, expected: str | None) -> str | None:
    try:
        return documents.write("a", content.encode(), expected=expected)
    except DocumentConflict:
        return None


def test_no_update_is_lost(opener: Opener) -> None:
    """Several that change one document at once each see what the others did."""

    def add(number: int) -> None:
        update(opener(), "list", lambda before: (before or b"") + f"{number}\n".encode())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(20)))
    found = opener().read("list")
    assert found is not None
    assert sorted(map(int, found.content.split())) == [*range(20)]


def test_an_update_may_change_nothing(documents: Documents) -> None:
    """Then nothing is written."""
    update(documents, "a", lambda _: None)
    assert documents.read("a") is None


# Files alone


def test_a_writer_that_was_killed_leaves_the_old_document(tmp_path: Path) -> None:
    """Killed at any moment with SIGKILL: the next writer reads a whole document and can replace it."""
    documents = FolderDocuments(tmp_path)
    size = 300_000
    for turn in range(5):
        writer = multiprocessing.get_context("fork").Process(target=_write_forever, args=(tmp_path, size))
        writer.start()
        writer.join(0.02 + 0.01 * turn)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        found = documents.read("a")
        assert found is None or len(set(found.content)) == 1
        assert set(documents.names()) <= {"a"}
        update(documents, "a", lambda _: b"z" * size)


def _write_forever(folder: Path, size: int) -> None:
    documents = FolderDocuments(folder)
    while True:
        for letter in (b"a", b"b"):
            update(documents, "a", lambda _: letter * size)  # noqa: B023


def test_what_a_crash_left_is_ignored(tmp_path: Path) -> None:
    """A half-written file is no document, and the next write replaces it."""
    documents = FolderDocuments(tmp_path)
    (tmp_path / ".a.tmp").write_bytes(b"half")
    (tmp_path / ".a.tmp").chmod(0o400)
    assert (documents.read("a"), documents.names()) == (None, [])
    documents.write("a", b"whole", expected=None)
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert not (tmp_path / ".a.tmp").exists()


def test_an_edit_by_hand_is_another_revision(tmp_path: Path) -> None:
    """A writer that read the document before the edit cannot overwrite it."""
    documents = FolderDocuments(tmp_path)
    read = documents.write("a", b"one", expected=None)
    (tmp_path / "a").write_bytes(b"by hand")
    with pytest.raises(DocumentConflict):
        documents.write("a", b"two", expected=read)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Reading, writing and listing say which path and why."""
    (tmp_path / "file").touch()
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError, match=r"a cannot be read: Is a directory"):
        FolderDocuments(tmp_path).read("a")
    within = FolderDocuments(tmp_path / "file")
    with pytest.raises(StorageError, match=r"file/a cannot be written: File exists"):
        within.write("a", b"", expected=None)
    with pytest.raises(StorageError, match="file cannot be read: Not a directory"):
        within.names()


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
@pytest.mark.parametrize("private", [True, False])
def test_only_the_owner_reads_a_private_document(tmp_path: Path, private: bool, umask: int) -> None:
    """From the first moment on, and after each change, whatever it was before and whatever the umask."""
    folder = tmp_path / "new"
    documents = FolderDocuments(folder, private=private)
    old = os.umask(umask)
    try:
        revision = documents.write("a", b"one", expected=None)
        first = mode(folder / "a")
        (folder / "a").chmod(0o666)
        documents.write("a", b"two", expected=revision)
    finally:
        os.umask(old)
    expected = (0o700, 0o600, 0o600, 0o600) if private else (0o755, 0o644, 0o644, 0o600)
    assert (mode(folder), first, mode(folder / "a"), mode(folder / ".lock")) == expected


def mode(path: Path) -> int:
    """Who may do what."""
    return path.stat().st_mode & 0o777


def test_a_held_lock_is_reported(tmp_path: Path) -> None:
    """A writer waits for the lock for a while, then says which file it is; once it is free, the write succeeds."""
    documents = FolderDocuments(tmp_path, lock_timeout_s=0.05)
    revision = documents.write("a", b"one", expected=None)
    with (tmp_path / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match=r"another process has held the lock .*\.lock for 0\.05 s"):
            documents.write("a", b"two", expected=revision)
    documents.write("a", b"two", expected=revision)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes files of others")
def test_root_leaves_documents_to_their_owner(tmp_path: Path) -> None:
    """Else a gateway that runs as somebody else could neither read nor write them afterwards."""
    folder = tmp_path / "data"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    documents = FolderDocuments(folder, private=True)
    revision = documents.write("a", b"one", expected=None)
    assert {path.stat().st_uid for path in folder.iterdir()} == {12345}
    os.chown(folder / "a", 23456, 23456)
    documents.write("a", b"two", expected=revision)
    assert (folder / "a").stat().st_uid == 23456


# Databases alone


def test_folders_of_one_database_do_not_meet(tmp_path: Path) -> None:
    """Keys and calibrators may share a database, and a message names the folder."""
    where = f"sqlite:///{tmp_path}/documents.sqlite3"
    one, other = (open_documents(where, folder, setting="FETCHWISE_KEYS") for folder in ("one", "other"))
    one.write("a", b"", expected=None)
    assert (other.read("a"), other.names()) == (None, [])
    assert other.where("a").startswith("other/a in sqlite:///")


@pytest.mark.parametrize("where", ["postgresql://u:secret@h:port/db", "postgresql://u:a@b:secret@h/db"])
def test_a_url_that_cannot_be_parsed_is_not_shown(where: str) -> None:
    """With `@` and `:` in the password, the rest of it looks like a port."""
    with pytest.raises(ConfigurationError, match=r"^FETCHWISE_KEYS cannot be used: .*percent-encoded") as refused:
        open_documents(where, "here", setting="FETCHWISE_KEYS")
    assert "secret" not in str(refused.value)


def test_a_database_without_its_table_is_named(tmp_path: Path) -> None:
    """Nothing can be read or written, and each error says so."""
    documents = open_documents(f"sqlite:///{tmp_path}/a.sqlite3", "here", setting="FETCHWISE_KEYS")
    with closing(sqlite3.connect(tmp_path / "a.sqlite3")) as other:
        other.execute("DROP TABLE documents")
    for act in (lambda: documents.read("a"), lambda: documents.write("a", b"", expected=None), documents.names):
        with pytest.raises(StorageError, match=r"here/a? in sqlite:///.* cannot be (read|written)"):
            act()
