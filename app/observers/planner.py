"""Chooses how questions are answered by what it has cost so far, a few times a minute, and remembers why."""

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from app.decision.bypass import Bypass
from app.decision.forecast import Objective, Plan, Schedule, busy_from
from app.decision.planning import live_ratio, measured_from
from app.decision.schedule import choose
from app.observers.gate_watch import GateWatch
from app.observers.traffic import Rows
from app.ports import Clock

logger = logging.getLogger(__name__)

EVERY_S = 10.0
# Fewer probes of one length say little about how busy the reader is.
_ENOUGH = 30
_UNKNOWN = "Nothing is known yet of what questions cost here: one step at a time."


class Planner:
    """Holds the plan in force. `consider` blocks: it belongs in a thread; `plan` never does."""

    def __init__(
        self,
        watch: GateWatch,
        rows: Callable[[], Rows],
        *,
        objective: Objective,
        most: Callable[[], int],
        clock: Clock = time.time,
    ) -> None:
        self._watch = watch
        self._rows = rows
        self._objective = objective
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._bypass = Bypass()
        self._plan = Plan(Schedule.SERIAL, ratio=math.nan, why=_UNKNOWN)
        # When its schedule came in force.
        self._since = -math.inf

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
            before = self._plan
            lived = self._watch.look_under(before.schedule, self._since)
            self._bypass = self._bypass.look(live_ratio(lived, self._objective))
            measured = measured_from(self._watch.look(), serving=before, busy=busy(self._rows()), most=self._most())
            if isinstance(measured, str):
                # Until it is known what others would cost; a plan that was once chosen keeps the reason for it.
                if math.isnan(before.ratio):
                    self._plan = replace(before, why=f"{_UNKNOWN} It takes {measured}.")
                return self._plan
            self._plan = choose(measured, self._objective, current=before, bypassed=self._bypass.on)
            if self._plan.schedule is not before.schedule:
                self._since = self._clock()
            if not self._plan.same(before):
                logger.info("from now on: %s", self._plan.why)
            return self._plan

    async def keep_considering(self) -> None:
        """Consider again and again, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await asyncio.to_thread(self.consider)
            except Exception:
                logger.exception("the plan could not be reconsidered, and stays; trying again")


class FixedPlan:
    """Holds to a schedule, whatever it costs."""

    def __init__(self, schedule: Schedule, objective: Objective) -> None:
        self.objective = objective
        self._plan = Plan(schedule, ratio=math.nan, why=f"FETCHWISE_SCHEDULE={schedule.value} says so.")

    def plan(self) -> Plan:
        """The plan in force."""
        return self._plan


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
