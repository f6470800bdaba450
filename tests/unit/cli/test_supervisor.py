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
from app.cli.serve import _Supervisor, started_file
from app.wiring.gateway import metrics_folder

PIDS = count(1_000_000)


@dataclass(eq=False)
class FakeProcess:
    """A worker that does what the test says."""

    exitcode: int | None = None
    pid: int = field(default_factory=lambda: next(PIDS))

    @property
    def process(self) -> "FakeProcess":
        return self

    def is_alive(self) -> bool:
        return self.exitcode is None

    def start(self) -> None:
        """Nothing to do."""

    def join(self, timeout: float | None = None) -> None:
        assert timeout is None or timeout <= 30
        assert timeout is not None or not self.is_alive(), "it would wait for ever"

    def kill(self) -> None:
        self.exitcode = -9


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
    made: Any = _Supervisor(uvicorn.Config("", log_config=None), [], tmp_path, 10.0, 30.0)
    made.processes = [FakeProcess(), FakeProcess()]
    yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("code", [STARTUP_FAILURE, 1, -9])
def test_start_fails_only_if_no_worker_started(supervisor: Any, code: int) -> None:
    """One that fails is not the end, whatever its exit code: another may still be starting."""
    first, second = supervisor.processes
    first.exitcode = code
    supervisor.keep_subprocess_alive()
    assert not supervisor.should_exit.is_set()
    assert supervisor.processes == [first, second]
    second.exitcode = code
    supervisor.keep_subprocess_alive()
    assert supervisor.should_exit.is_set()
    assert supervisor.failed


@pytest.mark.parametrize("code", [STARTUP_FAILURE, 1, -9])
def test_worker_that_fails_to_start_is_tried_again_with_growing_pauses(
    supervisor: Any, clock: list[float], tmp_path: Path, code: int
) -> None:
    """The healthy one goes on, whatever happens to the other."""
    healthy, _ = supervisor.processes
    started_file(tmp_path, healthy.pid).touch()
    tried = []
    for _ in range(200):
        before = supervisor.processes[1]
        before.exitcode = code
        supervisor.keep_subprocess_alive()
        if supervisor.processes[1] is not before:
            tried.append(clock[0])
        clock[0] += 0.5
    assert [after - before for before, after in pairwise(tried)] == [1, 2, 4, 8, 16, 30, 30]
    assert supervisor.processes[0] is healthy
    assert not supervisor.should_exit.is_set()


def test_killed_worker_is_replaced_at_once(supervisor: Any, tmp_path: Path) -> None:
    """If it had started; its counts stay, and its gauges go."""
    victim, other = supervisor.processes
    started_file(tmp_path, victim.pid).touch()
    folder = metrics_folder(tmp_path)
    folder.mkdir()
    for kind in ("counter", "gauge_livesum"):
        (folder / f"{kind}_{victim.pid}.db").touch()
        (folder / f"{kind}_{other.pid}.db").touch()
    victim.exitcode = -9
    supervisor.keep_subprocess_alive()
    assert supervisor.processes[0] is not victim
    assert supervisor.processes[1] is other
    assert {file.name for file in folder.iterdir()} == {
        f"counter_{victim.pid}.db",
        f"counter_{other.pid}.db",
        f"gauge_livesum_{other.pid}.db",
    }


def test_failed_start_leaves_no_metrics(supervisor: Any, tmp_path: Path) -> None:
    """Neither counts nor gauges."""
    healthy, failing = supervisor.processes
    started_file(tmp_path, healthy.pid).touch()
    folder = metrics_folder(tmp_path)
    folder.mkdir()
    for kind in ("counter", "histogram", "gauge_livesum"):
        (folder / f"{kind}_{failing.pid}.db").touch()
    failing.exitcode = 1
    supervisor.keep_subprocess_alive()
    assert list(folder.iterdir()) == []


def test_frozen_worker_is_killed(supervisor: Any, clock: list[float]) -> None:
    """It is waited for until the time is over."""
    first, second = supervisor.processes
    first.exitcode = 0
    supervisor.join_all()
    assert (first.exitcode, second.exitcode) == (0, -9)


def test_ctrl_c_during_the_start_is_no_failure(supervisor: Any) -> None:
    """Ctrl-C reaches the workers, too."""
    for process in supervisor.processes:
        process.exitcode = -2
    supervisor.handle_int()
    supervisor.keep_subprocess_alive()
    assert not supervisor.failed


def test_no_restart_while_draining(supervisor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGHUP after SIGTERM is ignored."""
    monkeypatch.setattr("os.kill", lambda *_: None)
    before = list(supervisor.processes)
    supervisor.handle_term()
    supervisor.handle_hup()
    assert supervisor.processes == before


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
