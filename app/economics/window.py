"""The recent questions of all workers, in memory-mapped files: the source of the operators' figures.

Each worker appends to a ring buffer in its own file, so no locks are needed. A slot carries its sequence number at
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
from app.core.effective_policy import Ladder
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
        ("ladder", "?"),  # whether the ladder decided, and not thresholds on the probe
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
        ("passages", "u1"),  # in all prompts
        ("searches", "u1"),
        ("reads", "u1"),  # answers from passages; the ladder may read more than once
    ]
)
# Rows are copied as raw bytes and read as ROW: numpy copies a structured row field by field, ten times as slow.
_RAW = np.dtype(f"V{ROW.itemsize}")
_SLOT = np.dtype([("head", "<u8"), ("row", _RAW), ("tail", "<u8")])
_PACKED = struct.Struct("<Q d B ? ? ? 6f 4I 3B Q")
_HEADER = struct.Struct("<8s I I")
_MAGIC = b"fwring06"
# How long a dead worker's ring is kept: the longest possible window.
_KEEP_S = 86_400
_NAN = math.nan
_NO_TOKENS = Usage()
assert _PACKED.size == _SLOT.itemsize

Rows = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The questions of a window, oldest first, and how much of the window they cover."""

    rows: Rows
    covered_seconds: float
    workers: int
    # Whether the window had more traffic than the rings can hold.
    overrun: bool = False


class TrafficWindow:
    """Stores each finished decision as a row; reads the rows of all workers that share the directory."""

    def __init__(self, directory: Path, *, capacity: int = CAPACITY, clock: Clock = time.time) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._clock = clock
        self._capacity = capacity
        self._forget_old()
        self._path = directory / f"{os.getpid()}.ring"
        self._map = _opened(self._path, capacity)
        # A new worker may get the process id of a dead one, whose rows still count: it continues that ring.
        self._written = int(_stable(self._map, capacity)[1].max(initial=0))

    def observe(self, record: DecisionRecord) -> None:
        """Append one row; takes a few microseconds and never waits for a reader.

        Chat is left out: what it costs depends on the caller's own request.
        """
        if record.policy.chat:
            return
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
            isinstance(record.policy.kind, Ladder),
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
            min(record.passages_read, 255),
            record.searches,
            sum(k > 0 for k in record.available.answers),
            sequence,
        )
        self._written = sequence

    def read(self, seconds: float) -> Traffic:
        """The questions of all workers in the last `seconds`. Blocks for about a millisecond."""
        now = self._clock()
        since = asked = now - seconds
        rings = [ring for path in sorted(self._directory.glob("*.ring")) if (ring := _read(path)) is not None]
        for ring in rings:
            if ring.wrapped:
                # Start where every ring still has rows: otherwise the busiest worker would be underrepresented.
                since = max(since, float(ring.at.min()))
        kept = [recent for ring in rings if len(recent := ring.raw[ring.at >= since])]
        if not kept:
            return Traffic(np.empty(0, ROW), 0.0, 0)
        merged = np.concatenate(kept)
        rows = select(merged.view(ROW), np.argsort(merged.view(ROW)["at"], kind="stable"))
        return Traffic(rows, max(0.0, now - float(rows["at"][0])), len(kept), overrun=since > asked)

    def close(self) -> None:
        """Close the file, which is kept; idempotent."""
        self._map.close()

    def _forget_old(self) -> None:
        """Remove the rings of workers that ended long ago."""
        for path in self._directory.glob("*.ring"):
            ring = _read(path)
            unused = ring is None or self._clock() - float(ring.at.max(initial=0.0)) > _KEEP_S
            if unused and not is_alive(int(path.stem)):
                path.unlink(missing_ok=True)


def select(rows: Rows, which: NDArray[Any]) -> Rows:
    """Select rows by a mask or by index; much faster than indexing the array."""
    some: Rows = rows.view(_RAW)[which].view(ROW)
    return some


def actions(rows: Rows, ks: Sequence[int]) -> NDArray[np.int64]:
    """The action of each row, as an index into `actions_of(ks)`."""
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
        # Renamed when complete, so that no reader sees a partial ring.
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            # With all its room: on a full disk a write to a hole would end the process by SIGBUS.
            os.posix_fallocate(file.fileno(), 0, size)
            file.write(header)
        fresh.replace(path)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), size)


def _read(path: Path) -> _Ring | None:
    """The content of a ring; None if it is invalid, or was just removed."""
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
    """Copies of all rows that were not being written, with their sequence numbers."""
    slots = np.frombuffer(mapped, _SLOT, count=capacity, offset=_HEADER.size)
    # Tail, row, head, in this order: if both numbers are equal, the row was not written meanwhile.
    tails = slots["tail"].copy()
    raw = slots["row"].copy()
    heads = slots["head"].copy()
    whole = (tails == heads) & (tails > 0)
    return raw[whole], tails[whole]


def _or_nan(value: float | None) -> float:
    return _NAN if value is None else value
