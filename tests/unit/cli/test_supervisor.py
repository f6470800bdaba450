"""The supervisor replaces workers, and gives up only if none ever started."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import SIGNALS

from app.cli import serve
from app.cli.serve import _Supervisor

PIDS = count(1_000_000)


@dataclass(eq=False)
class FakeProcess:
    """A worker that does what the test says."""

    started: bool = False
    exitcode: int | None = None
    pid: int = field(default_factory=lambda: next(PIDS))

    @property
    def process(self) -> "FakeProcess":
        return self

    @property
    def parent_conn(self) -> "FakeProcess":
        return self

    def is_alive(self) -> bool:
        return self.exitcode is None

    def is_ready(self, timeout: float) -> bool:
        assert timeout == 0
        return self.started

    def poll(self) -> bool:
        return False

    def start(self) -> None:
        """Nothing to do."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Supervisor]:
    """One with two workers; it takes over all signals, which are given back."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.setattr(serve, "Process", lambda *_: FakeProcess())
    made: Any = _Supervisor(uvicorn.Config("", log_config=None), [], tmp_path, 10.0)
    made.processes = [FakeProcess(), FakeProcess()]
    yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_start_fails_only_if_no_worker_started(supervisor: Any) -> None:
    """One that fails is not the end: another may still be starting."""
    first, second = supervisor.processes
    first.exitcode = STARTUP_FAILURE
    supervisor.keep_subprocess_alive()
    assert not supervisor.should_exit.is_set()
    second.exitcode = STARTUP_FAILURE
    supervisor.keep_subprocess_alive()
    assert supervisor.should_exit.is_set()
    assert supervisor.failed


def test_worker_that_fails_to_start_is_tried_again_with_growing_pauses(supervisor: Any, clock: list[float]) -> None:
    """The healthy one goes on, whatever happens to the other."""
    healthy, _ = supervisor.processes
    healthy.started = True
    tried = []
    for _ in range(200):
        before = supervisor.processes[1]
        before.exitcode = STARTUP_FAILURE
        supervisor.keep_subprocess_alive()
        if supervisor.processes[1] is not before:
            tried.append(clock[0])
        clock[0] += 0.5
    assert [after - before for before, after in pairwise(tried)] == [1, 2, 4, 8, 16, 30, 30]
    assert supervisor.processes[0] is healthy
    assert not supervisor.should_exit.is_set()


def test_killed_worker_is_replaced_at_once(supervisor: Any) -> None:
    """Also while none has started."""
    victim, other = supervisor.processes
    victim.exitcode = -9
    supervisor.keep_subprocess_alive()
    assert supervisor.processes[0] is not victim
    assert supervisor.processes[1] is other


def test_no_worker_is_replaced_while_draining(
    supervisor: Any, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM reaches every worker as the signal to drain; the supervisor stops when the time is over."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    first, second = supervisor.processes
    supervisor.handle_term()
    assert sent == [(first.pid, signal.SIGUSR1), (second.pid, signal.SIGUSR1)]
    first.exitcode = -9
    clock[0] += 9
    supervisor.keep_subprocess_alive()
    assert supervisor.processes == [first, second]
    assert not supervisor.should_exit.is_set()
    clock[0] += 1
    supervisor.keep_subprocess_alive()
    assert supervisor.should_exit.is_set()
    assert not supervisor.failed
