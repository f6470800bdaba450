"""One look at everything that the dashboard draws from counts: the window's rows, whether gating pays, and the load."""

import time
from typing import Any

from prometheus_client import CollectorRegistry

from app.observers.gate_watch import GateWatch
from app.observers.traffic import TrafficWindow
from app.observers.traffic_view import summary
from app.ports import Clock

_LOAD = {"fetchwise_in_flight": "in_flight", "fetchwise_shed_total": "shed"}


class OperatorsView:
    """Sums up what all workers did; `scraped` is what a scrape of any of them shows."""

    def __init__(
        self, window: TrafficWindow, gate_watch: GateWatch, scraped: CollectorRegistry, *, clock: Clock = time.time
    ) -> None:
        self._window = window
        self._gate_watch = gate_watch
        self._scraped = scraped
        self._clock = clock

    def look(self, seconds: int) -> dict[str, Any]:
        """Everything about the last so many seconds, as data for JSON. Blocks: call it in a thread."""
        now = self._clock()
        drawn = summary(self._window.rows(seconds), now=now, seconds=seconds, reference=self._gate_watch.reference())
        return {"now": now, "breakeven": self._gate_watch.look(seconds), **drawn, **self._load()}

    def _load(self) -> dict[str, int]:
        samples = (sample for metric in self._scraped.collect() for sample in metric.samples)
        return {_LOAD[sample.name]: int(sample.value) for sample in samples if sample.name in _LOAD}
