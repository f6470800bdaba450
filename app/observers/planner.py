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
from app.decision.cost import ALONE, Contention
from app.decision.forecast import Measured, Objective, Plan, Schedule, busy_from, contention
from app.decision.planning import live_ratio, measured_from
from app.decision.schedule import choose
from app.observers.gate_watch import GateWatch
from app.observers.traffic import SCHEDULES, Rows, read_once
from app.ports import Clock

logger = logging.getLogger(__name__)

EVERY_S = 10.0
# Fewer probes of one length say little about how busy the reader is.
_ENOUGH = 30
_RACE = SCHEDULES.index(Schedule.RACE.value)
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
        # Schedules that lost where they were to win, and when.
        self._disproved: dict[Schedule, float] = {}
        self._beside = ALONE

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
            self._learn(before)
            measured = self._measured(before)
            if isinstance(measured, str):
                # Until it is known what others would cost; a plan that was once chosen keeps the reason for it.
                if math.isnan(before.ratio):
                    self._plan = replace(before, why=f"{_UNKNOWN} It takes {measured}.")
                return self._plan
            self._plan = choose(
                measured, self._objective, current=before, bypassed=self._bypass.on, without=self._disproved
            )
            if self._plan.schedule is not before.schedule:
                self._since = self._clock()
            if not self._plan.same(before):
                logger.info("from now on: %s", self._plan.why)
            return self._plan

    def _learn(self, before: Plan) -> None:
        """A schedule that surely loses, whatever was expected of it, makes way for another before the gate does."""
        now = self._clock()
        self._disproved = {one: at for one, at in self._disproved.items() if now - at < self._watch.seconds}
        if self._bypass.on and not before.bypass and before.schedule is not Schedule.SERIAL:
            self._disproved[before.schedule] = now
            self._bypass = Bypass()

    def _measured(self, before: Plan) -> Measured | str:
        rows, most = self._rows(), self._most()
        self._beside = beside(rows, most) or self._beside
        measured = measured_from(self._watch.look(), serving=before, busy=busy(rows), most=most)
        if isinstance(measured, str):
            return measured
        # Probes that ran beside a read took longer for it; each plan is judged by what they take alone.
        gated = rows["schedule"][rows["gated"]]
        raced = float((gated == _RACE).mean()) if len(gated) else 0.0
        latency = measured.latency
        alone = replace(latency, cb=max(0.0, latency.cb - raced * self._beside.probe))
        return replace(measured, latency=alone, beside=self._beside)

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


def beside(rows: Rows, most: int) -> Contention | None:
    """What a probe and a read of so many passages would cost each other, by those that ran alone; None if too few."""
    alone = rows["schedule"] != _RACE
    probes = rows[alone & np.isfinite(rows["probe_ms"]) & (rows["probe_completion"] > 0)]
    reads = rows[alone & read_once(rows) & (rows["k"] == most) & np.isfinite(rows["read_ms"])]
    if min(len(probes), len(reads)) < _ENOUGH:
        return None
    step_ms = float(probes["probe_ms"].mean() / probes["probe_completion"].mean())
    return contention(float(reads["read_ms"].mean()), float(reads["read_completion"].mean()), step_ms)


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
