"""Keeps an eye on whether gating pays: the window's figures, computed once a second at most however many ask."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from app.decision.breakeven import BreakEven
from app.decision.cost import Tariff
from app.observers.breakeven import estimate
from app.observers.traffic import Traffic, TrafficWindow
from app.ports import Clock

FRESH_S = 1.0
# Different windows that are remembered at once; a dashboard asks for a few.
_KEPT = 16


class GateWatch:
    """Judges the traffic of all workers. `reference` tells how many passages would be read without a gate."""

    def __init__(
        self,
        window: TrafficWindow,
        *,
        seconds: int,
        reference: Callable[[], int],
        tariff: Tariff,
        clock: Clock = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self.reference = reference
        self.tariff = tariff
        self._window = window
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: dict[int, tuple[float, BreakEven]] = {}

    def look(self, seconds: int | None = None) -> BreakEven:
        """The figures of the last so many seconds, by default those of the gauges. Blocks: call it in a thread."""
        wanted = self.seconds if seconds is None else seconds
        with self._lock:
            at, found = self._latest.get(wanted, (0.0, None))
            if found is None or self._clock() - at >= FRESH_S:
                found = self._judged(self._window.read(wanted), wanted)
                # Taken out and put in anew, so that the first one is the one unasked for longest.
                self._latest.pop(wanted, None)
                self._latest[wanted] = (self._clock(), found)
                if len(self._latest) > _KEPT:
                    del self._latest[next(iter(self._latest))]
            return found

    def look_since(self, since: float) -> BreakEven:
        """The figures of the gauges, with gating judged only by questions that came since. Blocks, too.

        What reading took the questions before them counts all the same.
        """
        traffic = self._window.read(self.seconds)
        rows = traffic.rows.copy()
        rows["gated"] &= rows["at"] >= since
        return self._judged(replace(traffic, rows=rows), self.seconds)

    def _judged(self, traffic: Traffic, seconds: int) -> BreakEven:
        return estimate(traffic, seconds=seconds, reference=self.reference(), tariff=self.tariff)
