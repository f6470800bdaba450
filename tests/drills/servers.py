"""Servers of others as child processes of the tests."""

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until


@contextmanager
def running(
    program: str | Path, *arguments: str, folder: Path, ready: Callable[[], bool], user: str | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server until the end of the block; `make drills` installs the program."""
    found = shutil.which(program)
    assert found, f"no {program}: `make drills` installs it"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{Path(program).name}.log"
    with log.open("ab") as file:
        process = subprocess.Popen([found, *arguments], stdout=file, stderr=file, user=user, cwd=folder)

    def is_ready() -> bool:
        assert process.poll() is None, f"{program} ended: {log.read_text()[-3000:]}"
        return ready()

    try:
        wait_until(is_ready, f"{program} was not ready in time; its log is {log}")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((host, port), 2).close()
    except OSError:
        return False
    return True
