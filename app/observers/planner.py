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

from app.decision.artifact import Artifact
from app.decision.breakeven import BreakEven
from app.decision.bypass import Bypass
from app.decision.cost import ALONE, Contention, Objective, Tariff
from app.decision.forecast import Measured, Plan, Schedule, busy_from, contention
from app.decision.planning import Probe, Unasked, by_flow, live_ratio, measured_from
from app.decision.policy import Ask, Gate, Policy, most_passages
from app.decision.schedule import Variants, choose
from app.observers.gate_watch import GateWatch
from app.observers.traffic import SCHEDULES, Rows, by_means, read_once
from app.ports import Clock

logger = logging.getLogger(__name__)

EVERY_S = 10.0
# Fewer probes of one length say little about how busy the reader is.
_ENOUGH = 30
_RACE = SCHEDULES.index(Schedule.RACE.value)
_UNKNOWN = "Nothing is known yet of what questions cost here: one step at a time."
_BEGINNING = Plan(Schedule.SERIAL, ratio=math.nan, why=_UNKNOWN)
_AS_USUAL = Ask()


class Planner:
    """Holds the plan in force. `consider` blocks: it belongs in a thread; `plan` never does."""

    def __init__(
        self,
        watch: GateWatch,
        rows: Callable[[], Rows],
        *,
        objective: Objective,
        gate: Callable[[], Gate],
        ask: Ask = _AS_USUAL,
        clock: Clock = time.time,
    ) -> None:
        """`gate` tells what may decide now, and `ask` what is asked of it by questions that do not say."""
        self._watch = watch
        self._rows = rows
        self._objective = objective
        self._gate = gate
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._bypass = Bypass()
        self._plan = _BEGINNING
        # Whose variants the plan is chosen among.
        self._calibrator: str | None = None
        # When its schedule and means came in force, and when the calibrator did.
        self._since = self._began = -math.inf
        # Schedules that lost where they were to win, and when.
        self._disproved: dict[Schedule, float] = {}
        # What was measured of each means while it was in force, and when.
        self._lived: dict[str, tuple[float, Measured]] = {}
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
            gate = self._gate()
            self._heed(gate.artifact)
            before = replace(self._plan, means=self._means(gate.artifact))
            lived = self._watch.look_under(before.schedule, before.means, max(self._since, self._began))
            self._bypass = self._bypass.look(live_ratio(lived, self._objective))
            measured, variants = self._measured(before, gate)
            if isinstance(measured, str):
                # Until it is known what others would cost; a plan that was once chosen keeps the reason for it.
                if math.isnan(before.ratio):
                    self._plan = replace(before, why=f"{_UNKNOWN} It takes {measured}.")
                return self._plan
            self._learn(before)
            self._plan = choose(
                measured,
                self._objective,
                current=before,
                bypassed=self._bypass.on,
                without=self._disproved,
                variants=variants,
            )
            if self._plan.schedule is not before.schedule or self._plan.means != before.means:
                self._since = self._clock()
            if not self._plan.same(before):
                logger.info("from now on: %s", self._plan.why)
            return self._plan

    def _heed(self, artifact: Artifact | None) -> None:
        """A new calibrator begins anew: what gating by the old one cost says nothing of it."""
        version = artifact.version if artifact is not None else None
        if version != self._calibrator and self._calibrator is not None:
            self._bypass, self._disproved, self._lived, self._plan = Bypass(), {}, {}, _BEGINNING
            self._began = self._clock()
        self._calibrator = version

    def _means(self, artifact: Artifact | None) -> str | None:
        """Which of the calibrator's variants decides; None where there is no choice."""
        if artifact is None or not artifact.variants or self._ask.policy is not Policy.GRADED:
            return None
        means = self._plan.means
        own = artifact.policies[Policy.GRADED.value].thresholds.means
        return means if means in artifact.variants else own

    def _learn(self, before: Plan) -> None:
        """A schedule that surely loses, whatever was expected of it, makes way for another before the gate does."""
        now = self._clock()
        self._disproved = {one: at for one, at in self._disproved.items() if now - at < self._watch.seconds}
        if self._bypass.on and not before.bypass and before.schedule is not Schedule.SERIAL:
            self._disproved[before.schedule] = now
            self._bypass = Bypass()

    def _measured(self, before: Plan, gate: Gate) -> tuple[Measured | str, Variants | None]:
        """What the traffic says of the means in force, and what is to be expected of the calibrator's others."""
        rows, most = self._rows(), most_passages(self._ask, gate.by(before.means))
        self._beside = beside(rows, most) or self._beside
        found = self._watch.look_under(None, before.means, self._began)
        own = rows[(rows["at"] >= self._began) & by_means(rows, before.means)]
        measured = measured_from(found, serving=before, busy=busy(rows), most=most, unasked=unasked(own))
        if isinstance(measured, str):
            return measured, None
        # Probes that ran beside a read took longer for it; each plan is judged by what they take alone.
        probed = own["schedule"][own["gated"] & np.isfinite(own["probe_ms"])]
        raced = float((probed == _RACE).mean()) if len(probed) else 0.0
        latency = measured.latency
        alone = replace(latency, cb=max(0.0, latency.cb - raced * self._beside.probe))
        measured = replace(measured, latency=alone, beside=self._beside)
        return measured, self._variants(found, gate, measured, whole_probe(rows, self._watch.tariff))

    def _variants(self, found: BreakEven, gate: Gate, measured: Measured, probe: Probe | None) -> Variants | None:
        artifact, serving = gate.artifact, measured.serving
        if artifact is None or serving is None or serving.means is None:
            return None
        foretold = {}
        # Until some probes have run to their end nobody knows what more of them would take.
        if probe is not None:
            for means, variant in artifact.variants.items():
                most = most_passages(self._ask, gate.by(means))
                other = by_flow(found, variant.flow, probe, serving=serving, busy=measured.busy, most=most)
                if other is not None:
                    foretold[means] = replace(other, beside=self._beside)
        now = self._clock()
        self._lived = {
            means: (at, known) for means, (at, known) in self._lived.items() if now - at < self._watch.seconds
        }
        lived = {means: known for means, (_, known) in self._lived.items() if means != serving.means}
        self._lived[serving.means] = (now, measured)
        return Variants(serving.means, foretold, lived)

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
    """What a probe and a read of so many passages cost each other; None if too little is known.

    As races have shown; before there were enough, by those that ran alone.
    """
    whole = rows[rows["gated"] & rows["whole"] & (rows["probe_completion"] > 0)]
    probes, raced = whole[whole["schedule"] != _RACE], whole[whole["schedule"] == _RACE]
    alone = rows["schedule"] != _RACE
    reads = rows[alone & read_once(rows) & (rows["k"] == most) & np.isfinite(rows["read_ms"])]
    if min(len(probes), len(reads)) < _ENOUGH:
        return None
    step_ms = float(probes["probe_ms"].mean() / probes["probe_completion"].mean())
    foretold = contention(float(reads["read_ms"].mean()), float(reads["read_completion"].mean()), step_ms)
    if len(raced) < _ENOUGH:
        return foretold
    return replace(foretold, probe=max(0.0, float(raced["probe_ms"].mean() - probes["probe_ms"].mean())))


def unasked(rows: Rows) -> Unasked:
    """How many of the gated questions were not probed, by what they read, and what embedding takes."""
    gated = rows[rows["gated"]]
    if not len(gated):
        return Unasked()
    sent = np.isnan(gated["probe_ms"])
    one, five = (float((sent & (gated["k"] == k)).mean()) for k in (1, 5))
    return Unasked(one, five, _embed_ms(rows))


def whole_probe(rows: Rows, tariff: Tariff) -> Probe | None:
    """What a probe takes that runs to its end with nothing beside it, on average; None if too few did."""
    whole = rows[rows["gated"] & rows["whole"] & (rows["schedule"] != _RACE)]
    if len(whole) < _ENOUGH:
        return None
    prompt, completion = float(whole["probe_prompt"].mean()), float(whole["probe_completion"].mean())
    money = tariff.generation(prompt, completion)
    return Probe(float(whole["probe_ms"].mean()), prompt + completion, money, _embed_ms(rows))


def _embed_ms(rows: Rows) -> float:
    embedded = rows["embed_ms"][np.isfinite(rows["embed_ms"])]
    return float(embedded.mean()) if len(embedded) else 0.0


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
