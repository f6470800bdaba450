"""Looks at the traffic a few times a minute, and has most questions bypass the gate while it loses."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable

from app.decision.breakeven import percent
from app.decision.bypass import WATCH, Bypass, live_ratio
from app.decision.cost import Objective
from app.observers.traffic_view import TrafficView
from app.ports import Clock

logger = logging.getLogger(__name__)

EVERY_S = 10.0
OFF = "FETCHWISE_BYPASS=off: every question meets the gate."
_UNKNOWN = "Nothing has been measured yet: every question meets the gate."


class BypassWatch:
    """Holds whether the gate is bypassed, and why. `consider` blocks: call it in a thread."""

    def __init__(
        self,
        view: TrafficView,
        *,
        objective: Objective,
        calibrator: Callable[[], str | None],
        enabled: bool = True,
        clock: Clock = time.time,
    ) -> None:
        """`calibrator` returns the version that decides now; None where none does."""
        self.objective = objective
        self.enabled = enabled
        self.why = _UNKNOWN if enabled else OFF
        self._view = view
        self._calibrator = calibrator
        self._clock = clock
        self._lock = threading.Lock()
        self._bypass = Bypass()
        self._version: str | None = None
        # When the calibrator in force began to decide.
        self._since = -math.inf

    def on(self) -> bool:
        """Whether most questions bypass the gate now."""
        return self._bypass.on

    def consider(self) -> None:
        """Look at the traffic once, and change the state if enough looks in a row agree."""
        with self._lock:
            self._restart_for_new_calibrator()
            found = self._view.break_even_since(self._since)
            ratio = live_ratio(found, self.objective)
            before, self._bypass = self._bypass, self._bypass.look(ratio)
            view = found.costs.get(self.objective.value)
            if view is None:
                self.why = "Gating never makes more retrieval calls: every question meets the gate."
            elif self._bypass.on:
                said = view.against[found.reference].sentence
                self.why = f"{said} All but {percent(WATCH)} of the questions bypass the gate."
            else:
                self.why = f"{view.against[found.reference].sentence} Every question meets the gate."
            if self._bypass.on != before.on:
                logger.warning("%s", self.why)

    def _restart_for_new_calibrator(self) -> None:
        """A new calibrator starts over: what gating by the old one cost says nothing about it."""
        version = self._calibrator()
        if version != self._version and self._version is not None:
            self._bypass, self._since = Bypass(), self._clock()
        self._version = version

    async def keep_considering(self) -> None:
        """Consider again and again, until cancelled; returns at once where the bypass is off."""
        while self.enabled:
            await asyncio.sleep(EVERY_S)
            try:
                await asyncio.to_thread(self.consider)
            except Exception:
                logger.exception("could not look at the traffic, so the bypass stays as it is; trying again")
