"""How often and how much at once each key asks, counted over all workers in memory that they share.

A key has a small file: when its bucket is full again, then for each worker its process number and how many questions it
works on. Nothing is locked when a question comes. Each worker writes its own count, and two that take from a bucket
in the same microsecond may take the same one: a limit is off by one then, and no question ever waits for a lock.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from app.ports import Clock
from app.processes import is_alive, shared_folder

# A bucket holds a minute's worth: so much can come at once after a quiet minute.
_BUCKET_S = 60.0
# Sums of floating-point seconds are off by less than this, and a wait of this length is none.
_TICK_S = 1e-6
_FULL_AT = struct.Struct("=d")
# Twice as many as there may be workers: while they are replaced, old and new ones are there together.
_SLOTS = 128
_PIDS = _FULL_AT.size
_COUNTS = _PIDS + 4 * _SLOTS
_SIZE = _COUNTS + 4 * _SLOTS


def take(full_at: float, now: float, per_minute: int) -> tuple[float, float]:
    """Take one from a token bucket, of which only the time when it will be full again is remembered.

    Returns that time anew, and how many seconds to wait instead: 0 where one was taken.
    """
    after = max(full_at, now) + _BUCKET_S / per_minute
    wait = after - now - _BUCKET_S
    return (full_at, wait) if wait > _TICK_S else (after, 0.0)


class KeyMeter:
    """The limits of one key, as this worker sees and changes them."""

    # The system's clock since it was started, and so the same in every worker.
    def __init__(self, path: Path, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
            view = memoryview(self._map)
            self._pids, self._counts = view[_PIDS:_COUNTS].cast("I"), view[_COUNTS:].cast("I")
            view.release()
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            self._slot = self._free_slot()
        finally:
            # Closing it ends the lock too.
            os.close(descriptor)

    def take(self, per_minute: int) -> float:
        """Take one request from the bucket; says how many seconds to wait where there is none, else 0."""
        (full_at,) = _FULL_AT.unpack_from(self._map)
        full_at, wait = take(full_at, self._clock(), per_minute)
        _FULL_AT.pack_into(self._map, 0, full_at)
        return wait

    def begin(self, at_once: int) -> bool:
        """Take one more question on, unless as many are under way."""
        # Of those that a crash left behind it asks only where they matter, because it asks the system.
        if sum(self._counts) >= at_once and self._under_way() >= at_once:
            return False
        self._counts[self._slot] += 1
        return True

    def end(self) -> None:
        """One is done."""
        self._counts[self._slot] -= 1

    def close(self) -> None:
        """Release the file, which stays."""
        self._counts[self._slot] = self._pids[self._slot] = 0
        self._pids.release()
        self._counts.release()
        self._map.close()

    def _free_slot(self) -> int:
        """A slot of nobody's, or of a worker that ended without a word; one with our own number was before us."""
        own = os.getpid()
        slot = next(slot for slot, pid in enumerate(self._pids) if pid in {0, own} or not is_alive(pid))
        self._counts[slot], self._pids[slot] = 0, own
        return slot

    def _under_way(self) -> int:
        return sum(count for pid, count in zip(self._pids, self._counts, strict=True) if count and is_alive(pid))


class KeyMeters:
    """The meter of each key; opened when the key first comes by."""

    def __init__(self, directory: Path, *, clock: Clock = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._meters: dict[str, KeyMeter] = {}

    def of(self, identifier: str) -> KeyMeter:
        """The meter of the key with this public id."""
        meter = self._meters.get(identifier)
        if meter is None:
            meter = self._meters[identifier] = KeyMeter(self._directory / identifier, clock=self._clock)
        return meter

    def close(self) -> None:
        """Release every file."""
        while self._meters:
            self._meters.popitem()[1].close()


@contextlib.contextmanager
def key_meters(shared: Path | None) -> Iterator[KeyMeters]:
    """Meters in the directory that workers share; a gateway of one process has its own, removed at the end."""
    with shared_folder(shared, "limits") as folder, contextlib.closing(KeyMeters(folder)) as meters:
        yield meters
