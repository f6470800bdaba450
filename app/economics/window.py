"""The last questions of every worker, in memory that all of them can read: what the operators' figures come from.

Each worker appends to a ring in a file of its own, so nothing is ever locked. A slot carries its sequence number at
both ends: the writer stores head, row, tail; a reader takes tail, row, head, and drops slots whose ends differ.
"""

import math
import mmap
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.core.available import Usage
from app.core.record import DecisionRecord
from app.ports import Clock
from app.processes import is_alive

CAPACITY = 50_000
ROW = np.dtype(
    [
        ("at", "<f8"),  # Unix seconds
        ("k", "u1"),
        ("withheld", "?"),
        ("gated", "?"),
        ("p", "<f4"),
        ("probe_ms", "<f4"),  # NaN where the stage did not run
        ("embed_ms", "<f4"),
        ("search_ms", "<f4"),
        ("read_ms", "<f4"),
        ("total_ms", "<f4"),
        ("probe_prompt", "<u4"),
        ("probe_completion", "<u4"),
        ("read_prompt", "<u4"),
        ("read_completion", "<u4"),
        ("passages", "u1"),
    ]
)
# Rows are moved as raw bytes, and read as ROW: numpy copies a structured row field by field, ten times as slowly.
_RAW = np.dtype(f"V{ROW.itemsize}")
_SLOT = np.dtype([("head", "<u8"), ("row", _RAW), ("tail", "<u8")])
_PACKED = struct.Struct("<Q d B ? ? 6f 4I B Q")
_HEADER = struct.Struct("<8s I I")
_MAGIC = b"fwring05"
# A dead worker's ring is kept for as long as any window could ask for it.
_KEEP_S = 86_400
_NAN = math.nan
_NO_TOKENS = Usage()
assert _PACKED.size == _SLOT.itemsize

Rows = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The questions of a window, oldest first, and how much of the window they really cover."""

    rows: Rows
    covered_seconds: float
    workers: int
    # Whether there was more traffic in the window than the rings hold.
    overrun: bool = False


class TrafficWindow:
    """Remembers each finished decision as one row; reads those of all workers that share the directory."""

    def __init__(self, directory: Path, *, capacity: int = CAPACITY, clock: Clock = time.time) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._clock = clock
        self._capacity = capacity
        self._forget_old()
        self._path = directory / f"{os.getpid()}.ring"
        self._map = _opened(self._path, capacity)
        # A new worker may get the number of a dead one, whose rows still count: it goes on where that one stopped.
        self._written = int(_stable(self._map, capacity)[1].max(initial=0))

    def observe(self, record: DecisionRecord) -> None:
        """Append one row; a few microseconds, and never waits for a reader."""
        timings = record.timings
        probe, read = record.probe_usage or _NO_TOKENS, record.read_usage or _NO_TOKENS
        sequence = self._written + 1
        _PACKED.pack_into(
            self._map,
            _HEADER.size + (self._written % self._capacity) * _PACKED.size,
            sequence,
            self._clock(),
            record.reply.k,
            record.reply.withheld,
            record.gated,
            _or_nan(record.p_closed_book),
            _or_nan(timings.probe),
            _or_nan(timings.embed),
            _or_nan(timings.search),
            _or_nan(timings.read),
            timings.total,
            probe.prompt_tokens,
            probe.completion_tokens,
            read.prompt_tokens,
            read.completion_tokens,
            len(record.citations),
            sequence,
        )
        self._written = sequence

    def read(self, seconds: float) -> Traffic:
        """The questions of all workers in the last so many seconds. Blocks for a millisecond: not on the event loop."""
        now = self._clock()
        since = asked = now - seconds
        rings = [ring for path in sorted(self._directory.glob("*.ring")) if (ring := _read(path)) is not None]
        for ring in rings:
            if ring.wrapped:
                # What this worker has forgotten is left out of all: else the busiest one would count for too little.
                since = max(since, float(ring.at.min()))
        kept = [recent for ring in rings if len(recent := ring.raw[ring.at >= since])]
        if not kept:
            return Traffic(np.empty(0, ROW), 0.0, 0)
        merged = np.concatenate(kept)
        rows = select(merged.view(ROW), np.argsort(merged.view(ROW)["at"], kind="stable"))
        return Traffic(rows, max(0.0, now - float(rows["at"][0])), len(kept), overrun=since > asked)

    def close(self) -> None:
        """Release the file, which stays; idempotent."""
        self._map.close()

    def _forget_old(self) -> None:
        """Remove the rings of workers that have long been gone."""
        for path in self._directory.glob("*.ring"):
            ring = _read(path)
            unused = ring is None or self._clock() - float(ring.at.max(initial=0.0)) > _KEEP_S
            if unused and not is_alive(int(path.stem)):
                path.unlink(missing_ok=True)


def select(rows: Rows, which: NDArray[Any]) -> Rows:
    """Some of the rows, by a mask or by their places; much faster than indexing them."""
    some: Rows = rows.view(_RAW)[which].view(ROW)
    return some


def actions(rows: Rows, ks: Sequence[int]) -> NDArray[np.int64]:
    """What was done for each of the rows, as an index into `actions_of(ks)`."""
    index: NDArray[np.int64] = np.where(rows["withheld"], len(ks), np.searchsorted(ks, rows["k"]))
    return index


@dataclass(frozen=True, slots=True)
class _Ring:
    raw: NDArray[np.void]
    wrapped: bool

    @property
    def at(self) -> NDArray[np.float64]:
        at: NDArray[np.float64] = self.raw.view(ROW)["at"]
        return at


def _opened(path: Path, capacity: int) -> mmap.mmap:
    size = _HEADER.size + capacity * _PACKED.size
    header = _HEADER.pack(_MAGIC, _PACKED.size, capacity)
    if not path.exists() or path.stat().st_size != size or path.read_bytes()[: _HEADER.size] != header:
        # Renamed into place whole: a reader sees no half-made ring.
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.truncate(size)
            file.write(header)
        fresh.replace(path)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), size)


def _read(path: Path) -> _Ring | None:
    """What a ring holds; None where it is not one, or has just been removed."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            magic, size, capacity = _HEADER.unpack_from(mapped)
            if (magic, size) != (_MAGIC, _PACKED.size) or len(mapped) != _HEADER.size + capacity * size:
                return None
            raw, sequences = _stable(mapped, capacity)
    except (FileNotFoundError, ValueError, struct.error):
        return None
    return _Ring(raw, wrapped=int(sequences.max(initial=0)) > capacity)


def _stable(mapped: mmap.mmap, capacity: int) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
    """Copies of all rows that nobody was writing meanwhile, and their sequence numbers."""
    slots = np.frombuffer(mapped, _SLOT, count=capacity, offset=_HEADER.size)
    # In this order: a row whose tail was stored before it was read, and whose head is still the same after, is whole.
    tails = slots["tail"].copy()
    raw = slots["row"].copy()
    heads = slots["head"].copy()
    whole = (tails == heads) & (tails > 0)
    return raw[whole], tails[whole]


def _or_nan(value: float | None) -> float:
    return _NAN if value is None else value
