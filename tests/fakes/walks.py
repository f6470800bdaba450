"""A question run through the core as the loop does it, with a simulated world instead of upstream calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.answer.answer import Resolve
from app.core.artifact import Artifact
from app.core.available import Answer, Available, Passage, Usage
from app.core.effective_policy import EffectivePolicy, after_failure, resolve
from app.core.ladder import Read, Reply, Search, Step, Stop, conclude, is_final, next_step
from app.core.policy import DEFAULT_KS, AskOptions
from app.errors import NoPassages, UpstreamError, UpstreamTimeout

READER_DOWN = UpstreamTimeout("reader", "slow")


@dataclass(frozen=True)
class World:
    """What the upstreams return: the signals of the answer at each k, and failures."""

    signals: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    search: UpstreamError | NoPassages | None = None
    broken: frozenset[int] = frozenset()

    def read(self, k: int) -> Answer:
        if k in self.broken:
            raise READER_DOWN
        return Answer(k, f"answer at {k}", self.signals.get(k, {}), Usage(10, 2))


@dataclass(frozen=True)
class Walk:
    """The outcome of a question: the steps, and the reply or the exception."""

    policy: EffectivePolicy
    available: Available
    steps: tuple[Step, ...]
    outcome: Reply | UpstreamError | NoPassages
    # The answers that were streamed during reading.
    live: tuple[int, ...] = ()

    @property
    def actions(self) -> list[Search | Read | Stop]:
        return [step.action for step in self.steps]

    @property
    def reply(self) -> Reply:
        assert isinstance(self.outcome, Reply), self.outcome
        return self.outcome


def walk(policy: EffectivePolicy, world: World) -> Walk:
    """The loop of `app.answer.answer` without I/O."""
    available = Available.at_first("Who was it?", policy.stats)
    steps, live = list[Step](), list[int]()
    try:
        while True:
            step = next_step(policy, available)
            steps.append(step)
            assert len(steps) < 10, steps
            try:
                match step.action:
                    case Stop():
                        return Walk(policy, available, tuple(steps), conclude(policy, available, step), tuple(live))
                    case Search():
                        if world.search is not None:
                            raise world.search
                        available = available.found([Passage(str(rank), "", "") for rank in range(policy.ks[-1])])
                    case Read(k):
                        answer = world.read(k)
                        live += [k] if is_final(policy, step) else []
                        available = available.answered(answer)
            except (UpstreamError, NoPassages) as error:
                policy = after_failure(policy, available, error)
    except (UpstreamError, NoPassages) as error:
        return Walk(policy, available, tuple(steps), error, tuple(live))


def fixed(artifact: Artifact | None, *, ks: tuple[int, ...] = DEFAULT_KS, **flags: Any) -> Resolve:
    """How an Answerer resolves questions with only this artifact and these flags."""
    return lambda question, sampled: resolve(question.options, artifact, ks=ks, sampled=sampled, **flags)


def chosen_k(artifact: Artifact, probe: Mapping[str, float], ask: AskOptions | None = None, **flags: Any) -> int:
    """The number of passages that the served code reads if the closed-book answer has these signals."""
    policy = resolve(ask or AskOptions(abstain=False), artifact, ks=artifact.ks, **flags)
    return walk(policy, World({0: probe})).reply.k
