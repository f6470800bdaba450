"""Documents as files of one folder: each file is the document's content, nothing else.

A write replaces the file whole: readers see the old bytes or the new, and a crash leaves at most a hidden file that
is ignored. A file can be edited by hand.
"""

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import DocumentConflict, StorageError
from app.ports import Document

# Hidden names are for the lock and for files that are being written.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,159}")


def checked(name: str) -> str:
    """The name, if a document may have it."""
    if not _NAME.fullmatch(name):
        raise StorageError(
            f"{name[:100]!r} cannot name a document: letters, digits, dots, dashes and underscores, not a dot first"
        )
    return name


def revision_of(content: bytes) -> str:
    """The revision follows from the content: an edit by hand changes it too."""
    return hashlib.sha256(content).hexdigest()


class FolderDocuments:
    """The documents of a folder, which is made by the first write. `private`: only its owner may read a document."""

    def __init__(self, folder: Path, *, private: bool = False) -> None:
        self.folder = folder
        self._mode = 0o600 if private else 0o666

    def read(self, name: str) -> Document | None:
        """The file's content; None if there is no file."""
        path = self.folder / checked(name)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from error
        return Document(content, revision_of(content))

    def write(self, name: str, content: bytes, *, expected: str | None) -> str:
        """Replace the file while no other process writes to this folder."""
        path = self.folder / checked(name)
        try:
            with self._locked():
                found = self.read(name)
                if (found.revision if found else None) != expected:
                    raise DocumentConflict(f"{path} was changed by another writer")
                self._replace(path, content)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from error
        return revision_of(content)

    def names(self) -> list[str]:
        """The files with a name that a document may have."""
        try:
            return sorted(path.name for path in self.folder.iterdir() if _NAME.fullmatch(path.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be read: {error.strerror}") from error

    def where(self, name: str) -> str:
        """The path of the file."""
        return str(self.folder / name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / ".lock"
        # Closing it ends the lock too.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, self._mode), "rb") as lock:
            _keep_owner(lock.fileno(), self.folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _replace(self, path: Path, content: bytes) -> None:
        """Write a hidden file, make it durable, rename it."""
        unfinished = path.with_name(f".{path.name}.tmp")
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._mode)
        with os.fdopen(descriptor, "wb") as file:
            _keep_owner(descriptor, path if path.exists() else path.parent)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        unfinished.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _keep_owner(descriptor: int, like: Path) -> None:
    """Written by root, it stays usable by the owner of this file or folder."""
    if os.geteuid() == 0:
        owner = like.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
