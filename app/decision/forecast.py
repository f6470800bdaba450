"""What each plan is expected to cost over always fetching, by the equations of cost and the load it brings about.

A plan slows generation down by the work that it gives the reader. With `busy` the share of the reader's capacity that
is in use, a plan that needs w times the tokens makes it busy * w, and generation then takes
(1 - busy) / (1 - busy w) times as long: the mean time at a server that shares itself evenly among all that it has at
hand (M/G/1-PS).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from app.decision.cost import ALONE, NO_EXIT, Contention, Costs, Exit, Objective, Shares, always, overlap, race, serial
from app.decision.spending import CALLS, Pregate, overlap_spent, pregated, race_spent

# The share of questions that still meets the gate while all others bypass it, so that its return can be noticed.
WATCH = 0.02
# No plan may ask more of the reader than always fetching does once that would make it busier than this.
SATURATING = 0.7
# As busy as a reader is ever taken to be. Beyond it the formula is continued by its tangent: what asks for still more
# is still slower, and never infinitely so.
_FULL_UP = 0.98

Gate = Callable[[Costs, Shares, Exit], float]


class Schedule(StrEnum):
    """What runs beside the probe: nothing, retrieval, or retrieval and reading."""

    SERIAL = "serial"
    OVERLAP = "overlap"
    RACE = "race"


@dataclass(frozen=True, slots=True)
class Plan:
    """How questions are answered; under `bypass` the rest describes what the watched share goes through."""

    schedule: Schedule
    exits: bool = False
    pregate: bool = False
    bypass: bool = False
    # By which variant of the calibrator questions are decided (`Thresholds.means`); None: by its own first choice.
    means: str | None = None
    # Expected cost over always reading the reference; below 1 is a saving.
    ratio: float = 1.0
    why: str = ""

    @property
    def name(self) -> str:
        """As a person would call it."""
        if self.means is not None:
            return f"{self.schedule.value} with {self.means}"
        aids = [*(["early exit"] if self.exits else []), *(["pre-gate"] if self.pregate else [])]
        return " + ".join([self.schedule.value, *aids])

    def same(self, other: "Plan") -> bool:
        """Whether both do the same, whatever they were expected to cost."""
        return replace(self, ratio=1.0, why="") == replace(other, ratio=1.0, why="")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a gateway knows of its traffic. Without an exit or a pre-gate to choose, no plan uses one.

    A simulation chooses `exit` and `pregate` with the plan. A gateway chooses among certified policies, and what each
    settles early (`early`) belongs to it, whatever the plan.
    """

    # Milliseconds as they are now, each generation by itself; and tokens, of which retrieval costs none.
    latency: Costs
    tokens: Costs
    shares: Shares
    exit: Exit | None = None
    pregate: Pregate | None = None
    early: Pregate | None = None
    money: Costs | None = None
    # How busy the reader is, and the plan that it serves the while; None: always fetching. `given`: how many tokens a
    # question that gives it, where it does not follow from the rest.
    busy: float = 0.0
    serving: Plan | None = None
    given: float | None = None
    beside: Contention = ALONE
    # What is read where nothing gates.
    reference: int = 5
    watch: float = WATCH


def predict(measured: Measured, objective: Objective, plan: Plan) -> float:
    """What a plan is expected to cost over always reading the reference; infinite where the reader cannot bear it."""
    if _saturates(measured, plan):
        return float("inf")
    if objective is Objective.LATENCY:
        took, alone = elapsed(measured, plan), elapsed_always(measured)
    else:
        costs = _priced(measured, objective)
        took, alone = _spent(costs, measured, plan), always(costs, measured.reference)
    return took / alone if alone > 0.0 else 1.0


def elapsed(measured: Measured, plan: Plan) -> float:
    """Milliseconds of a question under a plan, with the reader as busy as the plan makes it."""
    slower = _stretch(measured, work(measured, plan))
    c = _slowed(measured.latency, slower)
    beside = Contention(measured.beside.probe * slower, measured.beside.read * slower)
    gates: dict[Schedule, Gate] = {
        Schedule.SERIAL: serial,
        Schedule.OVERLAP: overlap,
        Schedule.RACE: partial(race, beside=beside),
    }
    took = _aided(gates[plan.schedule], c, measured, plan, timed=True)
    return _watched(took, always(c, measured.reference), measured, plan)


def elapsed_always(measured: Measured) -> float:
    """Milliseconds of a question that nothing gates, with the reader as busy as that makes it."""
    slower = _stretch(measured, always(measured.tokens, measured.reference))
    return always(_slowed(measured.latency, slower), measured.reference)


def work(measured: Measured, plan: Plan) -> float:
    """Tokens that a plan has the reader process for a question, used or not."""
    return _spent(measured.tokens, measured, plan)


def busy_from(idle_ms: float, now_ms: float) -> float:
    """How busy a reader is on which a generation of `idle_ms` takes `now_ms`, by the formula above."""
    return min(_FULL_UP, max(0.0, 1.0 - idle_ms / now_ms)) if now_ms > 0.0 else 0.0


def contention(read_ms: float, read_tokens: float, step_ms: float) -> Contention:
    """What a probe and a read of five passages on one server cost each other; `step_ms` lies between two tokens.

    A read takes a step a token, and the rest is its prompt: for that long a probe in the same batch waits. The read
    waits half a step, on average, before it is looked at.
    """
    return Contention(probe=max(0.0, read_ms - read_tokens * step_ms), read=step_ms / 2.0)


def _saturates(measured: Measured, plan: Plan) -> bool:
    needed = work(measured, plan)
    # A bypass asks for hardly more, and must not be ruled out: there would be nothing left to choose.
    if plan.bypass or needed <= always(measured.tokens, measured.reference):
        return False
    return _busy(measured, needed) > SATURATING


def _busy(measured: Measured, needed: float) -> float:
    """How busy the reader would be with so many tokens a question."""
    now, given = measured.serving, measured.given
    if given is None:
        given = always(measured.tokens, measured.reference) if now is None else work(measured, now)
    return measured.busy * needed / given if given > 0.0 else measured.busy


def _stretch(measured: Measured, needed: float) -> float:
    return _slowness(_busy(measured, needed)) / _slowness(measured.busy)


def _slowness(busy: float) -> float:
    """How many times longer than on an idle reader a generation takes."""
    below = 1.0 / (1.0 - min(_FULL_UP, busy))
    return below + max(0.0, busy - _FULL_UP) * below * below


def _slowed(c: Costs, slower: float) -> Costs:
    return replace(c, cb=c.cb * slower, ob1=c.ob1 * slower, ob5=c.ob5 * slower)


def _spent(costs: Costs, measured: Measured, plan: Plan) -> float:
    # Where retrieval is the faster, a losing read has begun, and its prompt is paid for.
    begun = 1.0 if measured.latency.cb > measured.latency.ret5 else 0.0
    gates: dict[Schedule, Gate] = {
        Schedule.SERIAL: serial,
        Schedule.OVERLAP: overlap_spent,
        Schedule.RACE: partial(race_spent, begun=begun),
    }
    spent = _aided(gates[plan.schedule], costs, measured, plan, timed=False)
    return _watched(spent, always(costs, measured.reference), measured, plan)


def _aided(gate: Gate, c: Costs, measured: Measured, plan: Plan, *, timed: bool) -> float:
    """A schedule's cost with the aids that the plan uses.

    Only time is spared by an exit, as a cut probe has paid for its prompt; and only time is what an embedding costs.
    """

    def cut(exit_: Exit | None) -> Exit:
        exit_ = exit_ if plan.exits and exit_ is not None else NO_EXIT
        return exit_ if timed else replace(exit_, spent=1.0)

    if plan.pregate:
        assert measured.pregate is not None
        aid = replace(measured.pregate, then=cut(measured.pregate.then))
    elif measured.early is not None:
        aid = measured.early if timed else replace(measured.early, then=replace(measured.early.then, spent=1.0))
    else:
        return gate(c, measured.shares, cut(measured.exit))
    return pregated(gate, c, measured.shares, aid if timed else replace(aid, embed=0.0))


def _watched(gate: float, alone: float, measured: Measured, plan: Plan) -> float:
    """Under a bypass only the watched share goes through the gate."""
    return (1.0 - measured.watch) * alone + measured.watch * gate if plan.bypass else gate


def _priced(measured: Measured, objective: Objective) -> Costs:
    if objective is Objective.CALLS:
        return CALLS
    if objective is Objective.TOKENS:
        return measured.tokens
    if measured.money is None:
        raise ValueError("money says nothing without prices")
    return measured.money
