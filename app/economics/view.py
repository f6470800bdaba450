"""The figures of a window of traffic: whether gating pays, and what the dashboard draws."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.certify.intervals import MIN_SAMPLE
from app.core.cost import Tariff
from app.core.policy import actions_of
from app.economics.breakeven import BreakEven
from app.economics.estimate import estimate
from app.economics.window import Rows, Traffic, TrafficWindow, actions, select
from app.ports import Clock

FRESH_S = 1.0
# How many windows are cached; a dashboard uses a few.
_KEPT = 16
STAGES = ("probe", "embed", "search", "read")
BUCKETS = 60
P_BINS = 20


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """The figures of one window: whether gating pays, and what the dashboard draws."""

    now: float
    break_even: BreakEven
    figures: dict[str, Any]


@dataclass(frozen=True, eq=False, slots=True)
class TrafficView:
    """Figures of the traffic of all workers. `reference` returns the k that would be read without the gate."""

    window: TrafficWindow
    seconds: int
    reference: Callable[[], int]
    tariff: Tariff
    ks: Sequence[int]
    clock: Clock = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _latest: dict[int, TrafficReport] = field(default_factory=dict, init=False)

    def report(self, seconds: int | None = None) -> TrafficReport:
        """The last `seconds`, by default the window of the gauges. Blocks: call it in a thread."""
        wanted = self.seconds if seconds is None else seconds
        now, traffic = self.clock(), self.window.read(wanted)
        figures = summary(traffic.rows, now=now, seconds=wanted, reference=self.reference(), ks=self.ks)
        return TrafficReport(now, self._judged(traffic, wanted), figures)

    def cached_report(self, seconds: int | None = None) -> TrafficReport:
        """The same, computed at most once per second. Blocks, too."""
        wanted = self.seconds if seconds is None else seconds
        with self._lock:
            found = self._latest.get(wanted)
            # A clock that was set back must not keep an old report.
            if found is None or not 0.0 <= self.clock() - found.now < FRESH_S:
                found = self.report(wanted)
                # Removed and inserted again, so that the first one is the least recently computed.
                self._latest.pop(wanted, None)
                self._latest[wanted] = found
                if len(self._latest) > _KEPT:
                    del self._latest[next(iter(self._latest))]
            return found

    def break_even_since(self, since: float) -> BreakEven:
        """The figures of the gauges, of the questions since then alone. Blocks, too."""
        traffic = self.window.read(self.seconds)
        return self._judged(replace(traffic, rows=select(traffic.rows, traffic.rows["at"] >= since)), self.seconds)

    def _judged(self, traffic: Traffic, seconds: int) -> BreakEven:
        return estimate(traffic, seconds=seconds, reference=self.reference(), tariff=self.tariff, ks=self.ks)


def summary(rows: Rows, *, now: float, seconds: float, reference: int, ks: Sequence[int]) -> dict[str, Any]:
    """Everything that the dashboard draws; `reference` is the k that would be read without the gate."""
    done = Done(actions(rows, ks), actions_of(ks))
    return {
        "answers": len(rows),
        "actions": dict(zip(done.names, np.bincount(done.index, minlength=len(done.names)).tolist(), strict=True)),
        "timeline": timeline(rows, done, now=now, seconds=seconds),
        "latency": latency(rows, done),
        "p": p_histogram(rows, done),
        "saved": saved(rows, reference=reference),
    }


@dataclass(frozen=True, eq=False, slots=True)
class Done:
    """The action of each row, as an index into the action names."""

    index: NDArray[np.int64]
    names: tuple[str, ...]

    def crossed(self, which: NDArray[np.bool_], place: NDArray[np.int64], places: int) -> dict[str, list[int]]:
        """For each action, the number of the chosen rows at each place."""
        flat = np.bincount(self.index[which] * places + place, minlength=len(self.names) * places)
        return {name: counts.tolist() for name, counts in zip(self.names, flat.reshape(-1, places), strict=True)}


def timeline(rows: Rows, done: Done, *, now: float, seconds: float) -> dict[str, Any]:
    """The number of answers by action and bucket, oldest first; the last bucket is not complete."""
    width = seconds / BUCKETS
    # Edges at multiples of the width, so that a bar keeps its answers when the page is refreshed.
    end = (math.floor(now / width) + 1) * width
    start = end - seconds
    bucket = np.floor((rows["at"] - start) / width).astype(np.int64)
    inside = (bucket >= 0) & (bucket < BUCKETS)
    return {"start": start, "bucket_seconds": width, **done.crossed(inside, bucket[inside], BUCKETS)}


def latency(rows: Rows, done: Done) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """Median and 95th percentile in ms, of each stage and the total, for each action and for all."""
    # Copy each column once: indexing whole rows would copy every field.
    columns = {stage: np.ascontiguousarray(rows[f"{stage}_ms"]) for stage in (*STAGES, "total")}
    report = {
        name: {stage: _percentiles(column[done.index == index]) for stage, column in columns.items()}
        for index, name in enumerate(done.names)
    }
    return report | {"all": {stage: _percentiles(column) for stage, column in columns.items()}}


def p_histogram(rows: Rows, done: Done) -> dict[str, Any]:
    """A histogram of p by action; bins of equal width, p = 1 in the last."""
    known = ~np.isnan(rows["p"])
    place = np.minimum((rows["p"][known] * P_BINS).astype(np.int64), P_BINS - 1)
    return {"n": len(place), **done.crossed(known, place, P_BINS)}


def saved(rows: Rows, *, reference: int) -> dict[str, float | int | None]:
    """Passages and tokens of the gated questions, and of always reading `reference` passages.

    The tokens of always reading are estimated by the mean of actual readings; None if there are too few. Savings can
    be negative.
    """
    gated, passages = rows["gated"], rows["passages"]
    decided = int(gated.sum())
    read = _tokens(rows, "read")
    readings = read[(rows["k"] == reference) & (rows["reads"] == 1)]
    return {
        "gated": decided,
        "passages": int(passages[gated].sum(dtype=np.int64)),
        "passages_always": reference * decided,
        "tokens": sum(int(_tokens(rows, stage)[gated].sum()) for stage in ("probe", "read")),
        "tokens_always": float(readings.mean()) * decided if len(readings) >= MIN_SAMPLE else None,
    }


def _tokens(rows: Rows, stage: str) -> NDArray[np.int64]:
    tokens: NDArray[np.int64] = rows[f"{stage}_prompt"].astype(np.int64) + rows[f"{stage}_completion"]
    return tokens


def _percentiles(ms: NDArray[np.float32]) -> dict[str, float | int | None]:
    ran = ms[~np.isnan(ms)]
    if len(ran) == 0:
        return {"n": 0, "p50": None, "p95": None}
    p50, p95 = np.percentile(ran, (50, 95))
    return {"n": len(ran), "p50": round(float(p50), 3), "p95": round(float(p95), 3)}
