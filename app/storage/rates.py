"""Rate limits in memory that all workers of one gateway share.

A key has a small file: the time when its token bucket is full again, then for each worker its process id and how many
questions it is answering. Nothing is locked when a question arrives. Each worker writes its own count, and two that
take from a bucket in the same microsecond may take the same token: the limit is off by one then, and no question waits
for a lock.
"""

import fcntl
import logging
import mmap
import os
import struct
import time
from pathlib import Path

from app.ports import Clock
from app.processes import is_alive

logger = logging.getLogger(__name__)

# A bucket holds a minute's worth: that many requests can arrive at once after a quiet minute.
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
    """Take one token from a bucket that is described by the time when it is full again.

    Returns that time after the call, and how many seconds to wait for a token: 0 if one was taken.
    """
    after = max(full_at, now) + _BUCKET_S / per_minute
    wait = after - now - _BUCKET_S
    return (full_at, wait) if wait > _TICK_S else (after, 0.0)


class SharedRate:
    """The bucket and the counts of one key, as this worker sees and changes them."""

    # The system's clock since it was started, and so the same in every worker.
    def __init__(self, path: Path, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        # By how many seconds this worker has delayed the time when the bucket is full.
        self.taken_s = 0.0
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._map = _mapped(descriptor)
            view = memoryview(self._map)
            self._pids, self._counts = view[_PIDS:_COUNTS].cast("I"), view[_COUNTS:].cast("I")
            view.release()
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            self._slot = self._free_slot()
        finally:
            # Closing it ends the lock too.
            os.close(descriptor)

    def take(self, per_minute: int) -> float:
        """Take one request from the bucket; returns how many seconds to wait for one, 0 if it was taken."""
        (full_at,) = _FULL_AT.unpack_from(self._map)
        full_at, wait = take(full_at, self._clock(), per_minute)
        _FULL_AT.pack_into(self._map, 0, full_at)
        if not wait:
            self.taken_s += _BUCKET_S / per_minute
        return wait

    def at_least(self, full_in_s: float) -> None:
        """Let the bucket be full no sooner than this: others took from it too."""
        (full_at,) = _FULL_AT.unpack_from(self._map)
        _FULL_AT.pack_into(self._map, 0, max(full_at, self._clock() + full_in_s))

    def begin(self, max_concurrent: int) -> bool:
        """Count one more question, unless `max_concurrent` are being answered."""
        # Look for crashed workers only if it matters: it takes a system call for each.
        if sum(self._counts) >= max_concurrent and self._in_progress() >= max_concurrent:
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
        """A free slot, or that of a worker that is gone; one with our own process id is from an earlier process."""
        own = os.getpid()
        slot = next(slot for slot, pid in enumerate(self._pids) if pid in {0, own} or not is_alive(pid))
        self._counts[slot], self._pids[slot] = 0, own
        return slot

    def _in_progress(self) -> int:
        return sum(count for pid, count in zip(self._pids, self._counts, strict=True) if count and is_alive(pid))


def _mapped(descriptor: int) -> mmap.mmap:
    """The file in memory, with all its room: on a full disk a write to a hole would end the process by SIGBUS.

    Without room, this worker counts alone.
    """
    try:
        os.posix_fallocate(descriptor, 0, _SIZE)
    except OSError as error:
        logger.warning("no room for a key's rate, each worker counts for itself: %s", error.strerror)
        return mmap.mmap(-1, _SIZE)
    return mmap.mmap(descriptor, _SIZE)


class SharedRates:
    """The rate of each key; its file is opened when the key is first used."""

    def __init__(self, directory: Path, *, clock: Clock = time.monotonic) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._clock = clock
        self._rates: dict[str, SharedRate] = {}

    def of(self, identifier: str) -> SharedRate:
        """The rate of the key with this public id."""
        rate = self._rates.get(identifier)
        if rate is None:
            rate = self._rates[identifier] = SharedRate(self._directory / identifier, clock=self._clock)
        return rate

    def taken(self) -> dict[str, float]:
        """By key, what this worker took since the last call, in seconds of its bucket."""
        taken = {key: rate.taken_s for key, rate in self._rates.items() if rate.taken_s}
        for key in taken:
            self._rates[key].taken_s = 0.0
        return taken

    def close(self) -> None:
        """Release every file."""
        while self._rates:
            self._rates.popitem()[1].close()
