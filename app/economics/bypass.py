"""The bypass: most questions skip the gate while gating costs more than it saves, by intervals over recent traffic."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from app.certify.intervals import Interval, unknown_interval
from app.core.cost import Objective
from app.economics.breakeven import BreakEven, percent
from app.economics.view import TrafficView
from app.ports import Clock

logger = logging.getLogger(__name__)

# The share of questions that still go through the gate during a bypass, so that a saving is noticed.
WATCH = 0.02
# Estimates in a row that must agree, each from other questions: at break-even, about one chance in 60,000.
PATIENCE = 3
# An estimate takes at least this part of the window.
LOOKS_PER_WINDOW = 3
# The saving that ends a bypass. The gap to 1, where a bypass starts, prevents switching back and forth.
MARGIN = 0.02
OFF = "FETCHWISE_BYPASS=off: every question goes through the gate."
_UNKNOWN = "Nothing has been measured yet: every question goes through the gate."


@dataclass(frozen=True, slots=True)
class Bypass:
    """Whether most questions bypass the gate, and how many estimates in a row support a change."""

    on: bool = False
    agreeing: int = 0

    def update(self, ratio: Interval) -> "Bypass":
        """The state after one more estimate of the cost ratio of gating.

        A bypass starts if the whole interval is above 1, and ends if it is at most 1 - `MARGIN`. A missing or too wide
        interval supports no change.
        """
        if ratio.low is None or ratio.high is None:
            return Bypass(self.on)
        supported = ratio.high <= 1.0 - MARGIN if self.on else ratio.low > 1.0
        if not supported:
            return Bypass(self.on)
        agreeing = self.agreeing + 1
        return Bypass(not self.on) if agreeing >= PATIENCE else Bypass(self.on, agreeing)


@dataclass(frozen=True, slots=True)
class BypassReport:
    """Whether most questions bypass the gate now, and why."""

    setting: Literal["off", "auto"]
    on: bool
    objective: Objective
    reason: str


def live_ratio(found: BreakEven, objective: Objective) -> Interval:
    """The cost of gating over the cost of always reading the reference k.

    Unknown for retrieval calls, of which gating never makes more, and for money without a tariff.
    """
    view = found.costs.get(objective.value)
    if view is None:
        return unknown_interval(0, "a cost that can exceed the reference")
    return view.against[found.reference].gate_cost_ratio


class BypassWatch:
    """The current state of the bypass. `update` blocks, `refresh` does not."""

    def __init__(
        self,
        view: TrafficView,
        *,
        objective: Objective,
        calibrator: Callable[[], str | None],
        enabled: bool = True,
        clock: Clock = time.time,
    ) -> None:
        """`calibrator` returns the version that decides now; None if none does."""
        self.objective = objective
        self.enabled = enabled
        self.reason = _UNKNOWN if enabled else OFF
        self._view = view
        self._calibrator = calibrator
        self._clock = clock
        self._lock = threading.Lock()
        self._bypass = Bypass()
        self._version: str | None = None
        # When the last estimate was made, or the served calibrator began to decide.
        self._since = clock()

    def on(self) -> bool:
        """Whether most questions bypass the gate now."""
        return self._bypass.on

    def report(self) -> BypassReport:
        """The state now."""
        return BypassReport("auto" if self.enabled else "off", self._bypass.on, self.objective, self.reason)

    def update(self) -> None:
        """Estimate from the questions since the last estimate, and change the state if enough in a row agree.

        Questions collect until there are enough for an interval, and are never used twice.
        """
        with self._lock:
            self._restart_for_new_calibrator()
            now, found = self._clock(), self._view.break_even_since(self._since)
            ratio, before = live_ratio(found, self.objective), self._bypass
            if ratio.value is not None and now - self._since >= self._view.seconds / LOOKS_PER_WINDOW:
                self._bypass, self._since = before.update(ratio), now
            view = found.costs.get(self.objective.value)
            if view is None:
                self.reason = "Gating never makes more retrieval calls: every question goes through the gate."
            elif self._bypass.on:
                said = view.against[found.reference].sentence
                self.reason = f"{said} All but {percent(WATCH)} of the questions bypass the gate."
            else:
                self.reason = f"{view.against[found.reference].sentence} Every question goes through the gate."
            if self._bypass.on != before.on:
                logger.warning("%s", self.reason)

    def _restart_for_new_calibrator(self) -> None:
        """Start over for a new calibrator, which has other costs."""
        version = self._calibrator()
        if version != self._version and self._version is not None:
            self._bypass, self._since = Bypass(), self._clock()
        self._version = version

    async def refresh(self) -> None:
        """Call `update` in a thread; if it fails, the bypass does not change."""
        await asyncio.to_thread(self.update)
