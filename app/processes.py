"""What processes on one machine share: files that are replaced whole, and who is alive."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def shared_folder(shared: Path | None, purpose: str) -> Iterator[Path]:
    """The folder that workers share, made if need be; for a gateway of one process its own, removed at the end."""
    if shared is not None:
        shared.mkdir(parents=True, exist_ok=True)
        yield shared
        return
    with TemporaryDirectory(prefix=f"fetchwise-{purpose}-") as own:
        yield Path(own)


def replace_file(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write beside, make durable, rename: readers see the old bytes or the new. A private file is for its owner."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
    with os.fdopen(descriptor, "wb") as file:
        if private:
            _keep_owner(descriptor, path)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _keep_owner(descriptor: int, path: Path) -> None:
    """Written by root, it stays readable to whom the file, or else its folder, belongs."""
    if os.geteuid() == 0:
        owner = (path if path.exists() else path.parent).stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
