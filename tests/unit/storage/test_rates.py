"""Limits of a key over all workers: one bucket, one count, and no trace of a worker that crashed."""

import errno
import math
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.storage import rates as module
from app.storage.rates import SharedRate, SharedRates, take

FORK = multiprocessing.get_context("fork")


class Clock:
    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rates(tmp_path: Path, clock: Clock) -> Iterator[SharedRates]:
    opened = SharedRates(tmp_path, clock=clock)
    yield opened
    opened.close()


def test_a_minutes_worth_and_then_a_wait(rates: SharedRates, clock: Clock) -> None:
    """The returned wait is exact: just before it there is no token, then there is one."""
    rate = rates.of("aaaaaaaaaaaa")
    assert [rate.take(6) for _ in range(6)] == [0.0] * 6
    wait = rate.take(6)
    assert wait == pytest.approx(10.0)
    clock.now += wait - 0.01
    assert rate.take(6) == pytest.approx(0.01)
    clock.now += 0.01
    assert rate.take(6) == 0.0
    assert math.ceil(rate.take(6)) == 10


@given(
    gaps=st.lists(st.fractions(0, 90, max_denominator=64), max_size=60),
    per_minute=st.integers(1, 600),
    start=st.integers(0, 10**7),
)
def test_the_bucket_is_a_token_bucket(gaps: list[Fraction], per_minute: int, start: int) -> None:
    """It takes exactly when one that counts tokens does, which starts full, holds a minute's worth and fills evenly."""
    full_at, tokens, now = 0.0, Fraction(per_minute), Fraction(start)
    for gap in gaps:
        now += gap
        tokens = min(Fraction(per_minute), tokens + gap * per_minute / 60)
        full_at, wait = take(full_at, float(now), per_minute)
        missing = (1 - tokens) * 60 / per_minute
        # Within a microsecond of a token either is right: that is how fine seconds are here.
        if wait == 0.0:
            assert missing <= Fraction(2, 10**6)
            tokens -= 1
        else:
            assert missing > 0
            assert wait == pytest.approx(float(missing), abs=1e-5)


def test_keys_do_not_share_limits(rates: SharedRates) -> None:
    """What one has used up is the other's to use."""
    one, other = rates.of("aaaaaaaaaaaa"), rates.of("bbbbbbbbbbbb")
    assert one.take(1) == 0.0
    assert one.take(1) > 0.0
    assert other.take(1) == 0.0
    assert one.begin(1)
    assert other.begin(1)
    assert not one.begin(1)


def test_questions_under_way(rates: SharedRates) -> None:
    """As many as allowed; one that ends makes room."""
    rate = rates.of("aaaaaaaaaaaa")
    assert [rate.begin(2) for _ in range(3)] == [True, True, False]
    rate.end()
    assert rate.begin(2)
    assert rates.of("aaaaaaaaaaaa") is rate


def _take_fifty(directory: Path, taken: "multiprocessing.SimpleQueue[int]") -> None:
    rate = SharedRates(directory, clock=lambda: 5000.0).of("aaaaaaaaaaaa")
    taken.put(sum(rate.take(60) == 0.0 for _ in range(50)))


def test_workers_take_from_one_bucket(tmp_path: Path) -> None:
    """One after the other, so that none of them can take the same one twice."""
    taken: multiprocessing.SimpleQueue[int] = FORK.SimpleQueue()
    for _ in range(3):
        worker = FORK.Process(target=_take_fifty, args=(tmp_path, taken))
        worker.start()
        worker.join()
    assert [taken.get() for _ in range(3)] == [50, 10, 0]


def _hold_two(directory: Path, ready: "multiprocessing.SimpleQueue[int]") -> None:
    rate = SharedRates(directory).of("aaaaaaaaaaaa")
    assert rate.begin(9)
    assert rate.begin(9)
    ready.put(1)
    signal.pause()


def test_questions_of_other_workers_count_until_those_are_gone(tmp_path: Path, rates: SharedRates) -> None:
    """A worker that was killed has nothing under way, and its place is given to the next."""
    rate = rates.of("aaaaaaaaaaaa")
    for _ in range(3):
        ready: multiprocessing.SimpleQueue[int] = FORK.SimpleQueue()
        worker = FORK.Process(target=_hold_two, args=(tmp_path, ready))
        worker.start()
        ready.get()
        assert rate.begin(3)
        assert not rate.begin(3)
        worker.kill()
        worker.join()
        assert [rate.begin(3) for _ in range(3)] == [True, True, False]
        for _ in range(3):
            rate.end()
    assert sum(pid != 0 for pid in rate._pids) == 2


def test_a_worker_with_the_number_of_a_dead_one_starts_at_zero(tmp_path: Path) -> None:
    """Process numbers come again."""
    crashed = SharedRate(tmp_path / "aaaaaaaaaaaa")
    assert crashed.begin(1)
    later = SharedRate(tmp_path / "aaaaaaaaaaaa")
    assert later.begin(1)
    # A worker that stops in mid-question leaves no count.
    later.close()
    data = (tmp_path / "aaaaaaaaaaaa").read_bytes()
    assert data == bytes(len(data))
    # There may be 64 workers, and as many that replace them.
    assert module._SLOTS >= 2 * 64


def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Their directory is made for the first key; closing leaves them to the other workers."""
    with closing(SharedRates(tmp_path / "shared")) as rates:
        assert rates.of("aaaaaaaaaaaa").begin(1)
    assert (tmp_path / "shared" / "aaaaaaaaaaaa").stat().st_mode & 0o777 == 0o600


def test_without_room_a_worker_counts_alone(
    rates: SharedRates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk changes no reply to a question; the limit still holds in this worker."""

    def no_room(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", no_room)
    rate = rates.of("aaaaaaaaaaaa")
    assert [rate.take(2) for _ in range(2)] == [0.0] * 2
    assert rate.take(2) > 0
    assert "No space left" in caplog.text
