"""What processes on one machine share: a folder, and who is alive."""

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
