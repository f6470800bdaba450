"""`auto` as a gateway would run it: it knows what it has measured on its own traffic, and nothing of the simulation.

It begins with the serial gate and a share of questions without one, so that every cost is seen. From then on it chooses
a plan every so often by `app.decision.schedule`, and keeps small shares of the traffic on the serial gate and without
one: a race blurs what a probe costs by itself, and a gate sends only some questions to read five passages.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from app.decision.breakeven import Estimate, lacking
from app.decision.bypass import Bypass
from app.decision.cost import Costs, Exit, Objective, Shares
from app.decision.forecast import WATCH, busy_from, contention, elapsed_always, predict
from app.decision.schedule import Measured, Plan, Schedule, candidates, choose
from bench.schedules.engine import StepModel
from bench.schedules.gateway import Answered
from bench.schedules.workload import Workload

SERIAL = Plan(Schedule.SERIAL)
# While nothing is known, one question in so many goes without the gate; later, one in so many stands aside from the
# plan in force, and under a bypass one in so many meets the gate.
_FIRST, _ASIDE, _WATCHED = 10, 100, round(1.0 / WATCH)
_EVERY = 250
_REMEMBERED = 400


def _window() -> deque[float]:
    return deque(maxlen=_REMEMBERED)


@dataclass
class Auto:
    """Steers by what it hears."""

    # How long the probe takes on an idle reader, as the artifact's own collection or a quiet hour has told.
    idle_probe_ms: float
    # What generations use by the reader's own account, and what exits catch by the artifact's held-out report.
    tokens: Costs
    answer_tokens: dict[int, float]
    exit: Exit | None
    reference: int = 5
    objective: Objective = Objective.LATENCY
    warm_up: int = 1000
    plans: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._now: Plan = SERIAL
        self._warm = False
        self._heard = 0
        self._bypass = Bypass()
        self._probe, self._taken = _window(), _window()
        self._retrieval = {1: _window(), 5: _window()}
        self._read = {1: _window(), 5: _window()}
        self._k: deque[int] = deque(maxlen=4000)

    def plan(self, number: int) -> Plan | None:
        """The plan in force, but for those that stand aside."""
        if not self._warm:
            return None if number % _FIRST == 0 else SERIAL
        if self._now.bypass:
            return self._gate if number % _WATCHED == 0 else None
        if number % _ASIDE == 0:
            return None if number // _ASIDE % 2 else SERIAL
        return self._now

    @property
    def _gate(self) -> Plan:
        return Plan(self._now.schedule, exits=self._now.exits, pregate=self._now.pregate)

    def hear(self, answered: Answered) -> None:
        """Keep what a part took where it ran by itself; look at the plan again every so often."""
        plan = answered.plan
        if plan is None or plan.schedule is not Schedule.RACE:
            for window, took in (
                (self._probe, answered.probe_ms),
                (self._retrieval.get(answered.k), answered.retrieval_ms),
                (self._read.get(answered.k), answered.read_ms),
            ):
                if window is not None and took is not None:
                    window.append(took)
        if plan is not None and not plan.exits:
            self._k.append(answered.k)
        if plan is not None and plan.same(self._gate):
            self._taken.append(answered.latency)
        self._heard += 1
        if self._heard >= self.warm_up and self._heard % _EVERY == 0:
            self._look()

    def _look(self) -> None:
        measured = self._measured()
        if self._warm:
            self._bypass = self._bypass.look(self._ratio(measured))
        current = self._now if self._warm else None
        chosen = choose(measured, self.objective, current=current, bypassed=self._bypass.on)
        if not self._warm or not chosen.same(self._now):
            self._taken.clear()
        self._warm, self._now = True, chosen
        self.plans.append(chosen)

    def _measured(self) -> Measured:
        read, retrieval = ({k: fmean(w) for k, w in each.items() if w} for each in (self._read, self._retrieval))
        # What was never done is taken to be no cheaper than what was: one passage as five, five by their tokens.
        read1 = read.get(1, read.get(5, 0.0))
        read5 = read.get(5, read1 * self.tokens.ob5 / self.tokens.ob1)
        either = max(retrieval.values())
        latency = Costs(fmean(self._probe), retrieval.get(1, either), read1, retrieval.get(5, either), read5)
        shares = Shares(*(sum(k == one for k in self._k) / len(self._k) for one in (0, 1, 5)))
        return Measured(
            latency=latency,
            tokens=self.tokens,
            shares=shares,
            exit=self.exit,
            busy=busy_from(self.idle_probe_ms, latency.cb),
            serving=self._now if self._warm else SERIAL,
            beside=contention(read5, self.answer_tokens[5], latency.cb / self.answer_tokens[0]),
            reference=self.reference,
        )

    def _ratio(self, measured: Measured) -> Estimate:
        """What gating really takes over what always fetching should, with an interval; under a bypass, what it would.

        Under a bypass the watched questions meet a reader that always fetching keeps busy, so what they take says
        little of a gate for all: the forecast says more, as surely as the same questions are many.
        """
        n = len(self._taken)
        if n < 30:
            return lacking(n, "30 gated questions")
        slack = 1.96 * pstdev(self._taken) / math.sqrt(n) / fmean(self._taken)
        if self._bypass.on:
            value = min(predict(measured, self.objective, plan) for plan in candidates(measured))
        else:
            value = fmean(self._taken) / elapsed_always(measured)
        return Estimate(value, value * (1.0 - slack), value * (1.0 + slack), n)


def auto_for(work: Workload, steps: StepModel, exit_: Exit | None, *, warm_up: int) -> Auto:
    """An `Auto` that knows of these questions what a gateway would: what the reader reports, on average."""
    prompts, answers = ({k: fmean(each[k]) for k in (0, 1, 5)} for each in (work.prompts, work.tokens))
    both = {k: prompts[k] + answers[k] for k in prompts}
    return Auto(
        idle_probe_ms=steps.alone(prompts[0], answers[0]),
        tokens=Costs(both[0], 0.0, both[1], 0.0, both[5]),
        answer_tokens=answers,
        exit=exit_,
        reference=work.reference,
        warm_up=warm_up,
    )
