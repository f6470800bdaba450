"""Chooses how questions are answered by what it has cost so far, a few times a minute, and remembers why."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from app.decision.breakeven import BreakEven
from app.decision.bypass import Bypass
from app.decision.forecast import Objective, Plan, Schedule, busy_from
from app.decision.planning import live_ratio, measured_from
from app.decision.schedule import choose
from app.observers.traffic import Rows

logger = logging.getLogger(__name__)

EVERY_S = 10.0
# Fewer probes of one length say little about how busy the reader is.
_ENOUGH = 30


class Planner:
    """Holds the plan in force. `consider` blocks: it belongs in a thread; `plan` never does."""

    def __init__(
        self,
        look: Callable[[], BreakEven],
        rows: Callable[[], Rows],
        *,
        objective: Objective,
    ) -> None:
        self._look = look
        self._rows = rows
        self._objective = objective
        self._lock = threading.Lock()
        self._bypass = Bypass()
        self._plan = Plan(Schedule.SERIAL, why="Nothing is known yet of what questions cost here: one step at a time.")

    @classmethod
    def fixed(cls, schedule: Schedule, objective: Objective) -> "Planner":
        """One that holds to a schedule, whatever it costs."""

        def nothing() -> NoReturn:
            raise AssertionError("a fixed plan is never reconsidered")

        planner = cls(nothing, nothing, objective=objective)
        planner._plan = Plan(schedule, why=f"FETCHWISE_SCHEDULE={schedule.value} says so.")
        return planner

    @property
    def objective(self) -> Objective:
        """What the plan is chosen by."""
        return self._objective

    def plan(self) -> Plan:
        """The plan in force."""
        return self._plan

    def consider(self) -> Plan:
        """Look at the traffic, and choose anew."""
        with self._lock:
            found = self._look()
            self._bypass = self._bypass.look(live_ratio(found, self._objective))
            measured = measured_from(found, serving=self._plan, busy=busy(self._rows()))
            if not isinstance(measured, str):
                self._plan = choose(measured, self._objective, current=self._plan, bypassed=self._bypass.on)
            return self._plan

    async def keep_considering(self) -> None:
        """Consider again and again, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await asyncio.to_thread(self.consider)
            except Exception:
                logger.exception("the plan could not be reconsidered, and stays; trying again")


def busy(rows: Rows) -> float:
    """How busy the reader is: what probes take now over what the quickest of the same length took in the window."""
    probed = rows[np.isfinite(rows["probe_ms"]) & (rows["probe_completion"] > 0)]
    if len(probed) < _ENOUGH:
        return 0.0
    length, count = Counter(probed["probe_completion"].tolist()).most_common(1)[0]
    if count < _ENOUGH:
        return 0.0
    took = probed["probe_ms"][probed["probe_completion"] == length]
    return busy_from(float(np.quantile(took, 0.05)), float(np.median(took)))
