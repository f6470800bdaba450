"""Documents as files of one folder: each file is the document's content, nothing else.

A write replaces the file whole: readers see the old bytes or the new, and a crash leaves at most a hidden file that
is ignored. A file can be edited by hand.
"""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import DocumentConflict, StorageError
from app.ports import Document

# Hidden names are for the lock and for files that are being written.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,159}")
_RETRY_LOCK_S = 0.02


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
    """The documents of a folder, which is made by the first write.

    `private`: only its owner may read the folder and its documents. Otherwise every user may, whatever the umask.
    """

    def __init__(self, folder: Path, *, private: bool = False, lock_timeout_s: float = 10.0) -> None:
        self.folder = folder
        self._folder_mode, self._mode = (0o700, 0o600) if private else (0o755, 0o644)
        self._lock_timeout_s = lock_timeout_s

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
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(self._folder_mode)
        path = self.folder / ".lock"
        # Closing it ends the lock too. Private in any case: whoever can open the file can hold the lock.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb") as lock:
            _keep_owner(lock.fileno(), self.folder)
            self._wait_for(lock.fileno(), path)
            yield

    def _wait_for(self, lock: int, path: Path) -> None:
        """Take the lock as soon as it is free. The system has no lock with a timeout."""
        deadline = time.monotonic() + self._lock_timeout_s
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StorageError(
                        f"nothing was written: another process has held the lock {path} for "
                        f"{self._lock_timeout_s:g} s. `fuser {path}` shows which; stop it and try again"
                    ) from None
            time.sleep(_RETRY_LOCK_S)

    def _replace(self, path: Path, content: bytes) -> None:
        """Write a hidden file, make it durable, rename it."""
        unfinished = path.with_name(f".{path.name}.tmp")
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, self._mode)
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
