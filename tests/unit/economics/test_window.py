"""The traffic ring: the columns of a row, wrapping, torn slots, and several processes in one directory."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.effective_policy import Fixed
from app.core.policy import Reason
from app.core.record import Timings
from app.economics import window as traffic
from app.economics.window import ROW, TrafficWindow
from tests.fakes.records import a_record, a_skip


class Time:
    """A clock that stands still until it is set."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def a_window(directory: Path, *, capacity: int = 100, clock: Time | None = None) -> TrafficWindow:
    return TrafficWindow(directory, capacity=capacity, clock=clock or Time())


def test_row_holds_the_values_of_its_record(tmp_path: Path) -> None:
    """Every column comes from its own field; a stage that did not run is NaN, and unspent tokens are 0."""
    with closing(a_window(tmp_path)) as window:
        timings = Timings(total=650.0, probe=200.0, embed=15.0, search=5.0, read=400.0)
        window.observe(a_record(timings=timings))
        window.observe(a_skip(kind=Fixed(0, Reason.RETRIEVAL_FORBIDDEN), p_closed_book=None))
        read, skipped = window.read(60).rows
    assert {name: read[name].item() for name in ROW.names or ()} == {
        "at": 1000.0,
        "k": 1,
        "withheld": False,
        "gated": True,
        "ladder": False,
        "p": 0.625,
        "probe_ms": 200.0,
        "embed_ms": 15.0,
        "search_ms": 5.0,
        "read_ms": 400.0,
        "total_ms": 650.0,
        "probe_prompt": 40,
        "probe_completion": 8,
        "read_prompt": 120,
        "read_completion": 9,
        "passages": 1,
        "searches": 1,
        "reads": 1,
    }
    assert not skipped["gated"]
    assert all(math.isnan(skipped[name]) for name in ("p", "embed_ms", "search_ms", "read_ms"))
    assert (skipped["read_prompt"], skipped["passages"]) == (0, 0)


def test_turns_of_chats_are_left_out(tmp_path: Path) -> None:
    """What they cost says nothing about short answers."""
    with closing(a_window(tmp_path)) as window:
        record = a_record()
        window.observe(replace(record, policy=replace(record.policy, chat=True)))
        assert len(window.read(60).rows) == 0


def test_rows_of_the_window_come_oldest_first(tmp_path: Path) -> None:
    """Older rows are left out, and the covered time is the age of the oldest row."""
    time = Time()
    with closing(a_window(tmp_path, clock=time)) as window:
        for at in (1000.0, 1050.0, 1090.0):
            time.now = at
            window.observe(a_record())
        time.now = 1100.0
        seen = window.read(60)
        assert seen.rows["at"].tolist() == [1050.0, 1090.0]
        assert (seen.covered_seconds, seen.workers, seen.overrun) == (50.0, 1, False)
        time.now = 5000.0
        nothing = window.read(60)
        assert (len(nothing.rows), nothing.covered_seconds, nothing.workers) == (0, 0.0, 0)


@pytest.mark.parametrize(("written", "kept"), [(10, range(10)), (25, range(15, 25))], ids=["full", "wrapped"])
def test_full_ring_overwrites_the_oldest_row(tmp_path: Path, written: int, kept: range) -> None:
    """The last slot is used before the first is overwritten; then the window reports that it covers less time."""
    time = Time()
    with closing(a_window(tmp_path, capacity=10, clock=time)) as window:
        for number in range(written):
            time.now = 1000.0 + number
            window.observe(a_record(timings=Timings(total=float(number))))
        seen = window.read(900)
    assert seen.rows["total_ms"].tolist() == [float(number) for number in kept]
    assert (seen.overrun, seen.covered_seconds) == (written > 10, 9.0)


def test_wrapped_ring_shortens_the_window_of_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a busy worker whose ring wrapped would count for less than its traffic."""
    time = Time()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with closing(a_window(tmp_path, capacity=10, clock=time)) as quiet:
        quiet.observe(a_skip())
        monkeypatch.setattr(os, "getpid", lambda: 2)
        with closing(a_window(tmp_path, capacity=10, clock=time)) as busy:
            for number in range(20):
                time.now = 1001.0 + number
                busy.observe(a_record())
            time.now += 1.0
            quiet.observe(a_skip())
            seen = quiet.read(900)
    assert seen.rows["k"].tolist() == [1] * 10 + [0]
    assert (seen.workers, seen.overrun) == (2, True)


@pytest.mark.parametrize("offset", [0, traffic._PACKED.size - 8], ids=["head", "tail"])
def test_torn_slot_is_dropped(tmp_path: Path, offset: int) -> None:
    """A slot with two different sequence numbers was being written: it is left out, and the others count."""
    with closing(a_window(tmp_path)) as window:
        for number in range(3):
            window.observe(a_record(timings=Timings(total=float(number))))
        start = traffic._HEADER.size + traffic._PACKED.size + offset
        window._map[start : start + 8] = (99).to_bytes(8, "little")
        assert window.read(60).rows["total_ms"].tolist() == [0.0, 2.0]


@contextmanager
def writer(directory: Path, script: str) -> Iterator[None]:
    """Another process that runs this code on its `window` and prints `ready`; killed at the end."""
    begin = f"""
import sys, time
from pathlib import Path
from app.core.available import Usage
from app.core.record import Timings
from app.economics.window import TrafficWindow
from tests.fakes.records import a_record, a_skip
window = TrafficWindow(Path({str(directory)!r}), capacity=64)
"""
    process = subprocess.Popen([sys.executable, "-c", begin + script], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.communicate()


def test_every_worker_sees_all_rows_even_of_dead_workers(tmp_path: Path) -> None:
    """Rows of another process are read while it runs, and after it was killed."""
    forty = "for _ in range(40): window.observe(a_skip())\nprint('ready', flush=True)\ntime.sleep(600)"
    with closing(TrafficWindow(tmp_path)) as window:
        window.observe(a_record())
        with writer(tmp_path, forty):
            alive = window.read(900)
        dead = window.read(900)
    for seen in (alive, dead):
        assert seen.workers == 2
        assert [int((seen.rows["k"] == k).sum()) for k in (0, 1)] == [40, 1]


def test_concurrent_reader_sees_only_complete_rows(tmp_path: Path) -> None:
    """While another process overwrites its ring, no row mixes two questions: all its columns hold the same number."""
    endless = """
records = [a_record(timings=Timings(n, n, n, n, n), probe_usage=Usage(n, n), read_usage=Usage(n, n)) for n in range(9)]
print("ready", flush=True)
while True:
    for record in records:
        window.observe(record)
"""
    seen = 0
    with closing(TrafficWindow(tmp_path, capacity=64)) as window, writer(tmp_path, endless):
        for _ in range(2000):
            rows = window.read(900).rows
            seen += len(rows)
            for column in ("probe_ms", "read_ms", "total_ms", "probe_prompt", "read_completion"):
                assert (rows[column] == rows["embed_ms"]).all()
    assert seen > 0


def test_worker_with_a_reused_process_id_continues_the_ring(tmp_path: Path) -> None:
    """Process ids are reused: the rows of the dead process still count."""
    with closing(a_window(tmp_path)) as window:
        window.observe(a_record(k=5))
    with closing(a_window(tmp_path)) as again:
        again.observe(a_skip())
        assert again.read(60).rows["k"].tolist() == [5, 0]


def test_broken_or_foreign_ring_is_replaced_or_skipped(tmp_path: Path) -> None:
    """Bytes that are not a ring of this format are never read as rows."""
    (tmp_path / f"{os.getpid()}.ring").write_bytes(b"rubbish")
    (tmp_path / "1.ring").write_bytes(b"\0" * 10_000)
    with closing(a_window(tmp_path)) as window:
        window.observe(a_record())
        seen = window.read(60)
    assert (len(seen.rows), seen.workers) == (1, 1)


def test_old_rings_of_dead_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring is removed once its process is gone and its last row has left every window, not before."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setattr(os, "getpid", lambda: gone.pid)
    with closing(a_window(tmp_path, clock=Time(1000.0))) as old:
        old.observe(a_record())
    monkeypatch.undo()
    ring = tmp_path / f"{gone.pid}.ring"
    a_window(tmp_path, clock=Time(2000.0)).close()
    assert ring.exists()
    a_window(tmp_path, clock=Time(200_000.0)).close()
    assert not ring.exists()
    assert (tmp_path / f"{os.getpid()}.ring").exists()


def test_ring_has_its_room_from_the_start(tmp_path: Path) -> None:
    """On a full disk, a write to a file with holes would end the process."""
    with closing(a_window(tmp_path, capacity=10_000)):
        (ring,) = tmp_path.glob("*.ring")
        found = ring.stat()
    assert found.st_blocks * 512 >= found.st_size
