"""The systems of a live run: the gateway's own `Answerer` on the same parts, each with its own plan and calibrator."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from random import Random

from app.answer import Answerer
from app.decision.artifact import ALWAYS_K, Artifact, PolicyFit
from app.decision.cost import Objective, Tariff
from app.decision.forecast import Plan, Schedule
from app.decision.policy import Ask, Gate, Policy
from app.decision.record import DecisionRecord
from app.observers.gate_watch import GateWatch
from app.observers.planner import Planner
from app.observers.traffic import TrafficWindow, traffic_window
from app.parts import Parts
from app.question import Question
from app.settings import Settings
from bench.schedules.live_figures import FIXED

AUTO = "auto"
# All of a run counts.
_WINDOW_S = 86_400
# Answers between two looks of `auto` at its plan; by the clock it would look more or less often on another machine.
_EVERY = 10


@dataclass(frozen=True, slots=True)
class Held:
    """A gatekeeper that holds one artifact, whether or not it is certified."""

    artifact: Artifact

    def gate(self, *, collection: str, max_tokens: int) -> Gate:  # noqa: ARG002 - all questions are alike here
        """That artifact."""
        return Gate(self.artifact, allow_uncertified=True)


@dataclass(slots=True)
class System:
    """One way to answer; nothing is ever withheld, so that all are judged by the same answers."""

    name: str
    answerer: Answerer
    settings: Settings
    policy: Policy = Policy.GRADED
    planner: Planner | None = None
    # What `auto` went by, each with its reason, in order.
    plans: list[Plan] = field(default_factory=list)
    _answered: int = 0

    async def answer(self, text: str) -> DecisionRecord:
        """Answer one question."""
        return await self.answerer.answer(
            Question(
                text,
                collection=self.settings.collection,
                max_tokens=self.settings.max_tokens,
                ask=Ask(policy=self.policy, abstain=False),
                may_judge=False,
            )
        )

    async def look(self) -> None:
        """Let `auto` reconsider after every so many answers; not counted in anybody's time."""
        if self.planner is None:
            return
        self._answered += 1
        if self._answered % _EVERY == 0:
            plan = await asyncio.to_thread(self.planner.consider)
            if not self.plans or not plan.same(self.plans[-1]):
                self.plans.append(plan)


@contextmanager
def open_systems(
    parts: Parts, settings: Settings, artifacts: Mapping[str, Artifact], only: Sequence[str] | None = None
) -> Iterator[dict[str, System]]:
    """Both fixed actions, the first calibrator under every schedule, the others serially, and `auto` with the last.

    Schedules differ by what runs beside a probe, and the first probes most.
    """
    with ExitStack() as stack:

        def system(name: str, artifact: Artifact, schedule: Schedule = Schedule.SERIAL) -> System:
            return System(name, _answerer(parts, artifact, lambda: Plan(schedule)), settings)

        labels = list(artifacts)
        last = artifacts[labels[-1]]
        found = [replace(system(FIXED[5], last), policy=Policy.ALWAYS), system(FIXED[1], _always_one(last))]
        for label, artifact in artifacts.items():
            schedules = tuple(Schedule) if label == labels[0] else (Schedule.SERIAL,)
            found += [system(name_of(label, schedule), artifact, schedule) for schedule in schedules]
        window = stack.enter_context(traffic_window(None))
        planner = _planner(window, last)
        found.append(System(AUTO, _answerer(parts, last, planner.plan, window), settings, planner=planner))
        yield {each.name: each for each in found if not only or each.name in only}


def name_of(label: str, schedule: Schedule) -> str:
    """What a calibrator under a schedule is called."""
    return f"{label}, {schedule.value}"


def label_of(artifact: Artifact) -> str:
    """What a calibrator's gate is called: by what it decides with beside a whole probe."""
    thresholds = artifact.policies["graded"].thresholds
    return thresholds.means if thresholds.early is not None else "gate"


def _answerer(
    parts: Parts, artifact: Artifact, plan: Callable[[], Plan], window: TrafficWindow | None = None
) -> Answerer:
    return Answerer(
        reader=parts.reader,
        embedder=parts.embedder,
        retriever=parts.vectors,
        gatekeeper=Held(artifact),
        observers=[window] if window else [],
        plan=plan,
        dice=Random(0),
    )


def _always_one(artifact: Artifact) -> Artifact:
    """The same calibrator with thresholds that every probability leads to one passage by, so that none is probed."""
    return replace(
        artifact, policies={"graded": PolicyFit(ALWAYS_K[1], "latency")}, foresight=None, exits={}, variants={}
    )


def _planner(window: TrafficWindow, artifact: Artifact) -> Planner:
    watch = GateWatch(window, seconds=_WINDOW_S, reference=lambda: artifact.fallback_action, tariff=Tariff())
    return Planner(
        watch,
        lambda: window.rows(_WINDOW_S),
        objective=Objective.LATENCY,
        gate=lambda: Gate(artifact, allow_uncertified=True),
    )
