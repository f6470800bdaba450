"""A real gateway in its own process, and access to the processes below it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

from tests.waiting import PATIENCE_S, wait_until
from tests.wire.servers import free_port

REPO = Path(__file__).parents[2]
START_TIMEOUT_S = 600
T = TypeVar("T")


def descendants(pid: int) -> list[int]:
    """Every process below this one, nearest first."""
    found = []
    for child in _children().get(pid, []):
        found += [child, *descendants(child)]
    return found


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return _stat(pid)[1] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int]) -> None:
    """Wait for all processes to end."""
    wait_until(lambda: not any(map(alive, pids)), "processes are left")


def _stat(pid: int) -> tuple[int, str]:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[1]), fields[0]


def _children() -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent, _ = _stat(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
            tree.setdefault(parent, []).append(int(entry.name))
    return tree


def command_environment(data_dir: Path, **settings: str) -> dict[str, str]:
    """The environment of a command: ours, without any gateway settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FETCHWISE_")}
    named = {f"FETCHWISE_{name.upper()}": value for name, value in settings.items()}
    return inherited | {"FETCHWISE_DATA_DIR": str(data_dir), "COLUMNS": "200"} | named


def fetchwise(*arguments: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-c", "from app.cli import main; main()", *arguments],
        cwd=REPO,
        env=env,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )


@dataclass
class Gateway:
    """A running `fetchwise serve`."""

    process: "subprocess.Popen[bytes]"
    url: str
    env: dict[str, str]
    log: Path

    def ask(self, question: str, **more: object) -> httpx.Response:
        """Post one question."""
        return httpx.post(f"{self.url}/answer", json={"question": question, **more}, timeout=90)

    def reader_pid(self) -> int:
        """The process id of llama.cpp, below its guard."""
        for pid in descendants(self.process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if (
                b"app.upstream.readers.servers" in words
                and b"-m" in words
                and not any(b"child_guard" in w for w in words)
            ):
                return pid
        raise AssertionError(f"no reader below the gateway; its log: {self.log.read_text()[-2000:]}")


@contextmanager
def gateway(
    data_dir: Path,
    *,
    prefix: Sequence[str] = (),
    wait: bool = True,
    env: Mapping[str, str] | None = None,
    **settings: str,
) -> Iterator[Gateway]:
    """Start a gateway, by default on a free port, and wait until it is ready; always ended with its children.

    `prefix` comes before its command, to run it on another host; `env` is added to its environment.
    """
    where = {"host": "127.0.0.1", "port": str(free_port())} | settings
    variables = command_environment(data_dir, **where) | dict(env or {})
    log = data_dir / "gateway.log"
    data_dir.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", "from app.cli import main; main()", "serve"],
            cwd=REPO,
            env=variables,
            stdout=file,
            stderr=file,
        )
    running = Gateway(process, f"http://{where['host']}:{where['port']}", variables, log)
    try:
        if wait:
            wait_ready(running)
        yield running
    finally:
        below = descendants(process.pid)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_ready(running: Gateway) -> None:
    """Wait until `/readyz` is 200."""

    def is_ready() -> bool:
        assert running.process.poll() is None, f"the gateway ended: {running.log.read_text()[-3000:]}"
        try:
            return httpx.get(f"{running.url}/readyz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    wait_until(is_ready, f"the gateway was not ready in time; its log is {running.log}", within_s=START_TIMEOUT_S)


def from_each_worker(running: Gateway, workers: int, ask: Callable[[httpx.Client], T]) -> dict[int, T]:
    """The reply of each worker: a connection stays with one worker, and the reply says which."""
    replies: dict[int, T] = {}

    def all_asked() -> bool:
        with httpx.Client(base_url=running.url, timeout=PATIENCE_S) as client:
            worker = client.get("/healthz").json()["worker"]
            replies[worker] = ask(client)
        return len(replies) >= workers

    # One of them may still be starting.
    wait_until(all_asked, "not every worker answered", within_s=START_TIMEOUT_S)
    return replies
