"""Decides a recorded question again: the same policy and the same upstream results give the same steps and reply.

`replay` takes a record's own nouns. `replay_logged` takes rows of the decision log, and reads the calibrators that they
name; each decision must come out as it was logged.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.artifact import Artifact, Thresholds
from app.core.available import Answer, Available, Usage
from app.core.calibrator import Calibrator
from app.core.effective_policy import EffectivePolicy, Failure, Fixed, Graded, Sampled, after_failure
from app.core.ladder import Read, Reply, Search, Step, Stop, conclude, next_step
from app.core.policy import ABSTAIN, Reason, action_of
from app.errors import ArtifactError, NoPassages, UpstreamError

_INPUTS = ("ks", "kind", "minimum", "maximum", "required", "tau", "abstain", "certifiable", "sampled")
# Another machine may round the last digit of a probability differently.
_TOLERANCE = 1e-9


def replay(policy: EffectivePolicy, available: Available) -> tuple[tuple[Step, ...], Reply | None]:
    """The steps and the reply, from a record's policy and what was available in the end.

    A search or a read gives what was recorded of it; where nothing was, it fails as it failed then. The reply is None
    where these cannot be the steps of one record: they need a result that it does not have.
    """
    failure, policy = policy.failure, replace(policy, failure=None)
    now, steps = Available(), list[Step]()
    while True:
        step = next_step(policy, now)
        steps.append(step)
        try:
            match step.action:
                case Stop():
                    return tuple(steps), conclude(policy, now, step)
                case Search() if available.passages is not None:
                    now = now.found(available.passages)
                case Read(k) if k in available.answers:
                    answer = available.answers[k]
                    now = now.answered(answer, policy.confidence(answer))
                case _ if failure is not None:
                    policy = after_failure(policy, now, failure.error)
                case _:
                    return tuple(steps), None
        except (UpstreamError, NoPassages):
            return tuple(steps), None


def inputs_of(policy: EffectivePolicy) -> dict[str, object]:
    """Everything that decides beside the heads and what failed: plain values, and dataclasses of them."""
    return {name: getattr(policy, name) for name in _INPUTS}


def step_values(step: Step) -> dict[str, object]:
    """One step, as plain values."""
    return {
        "state": step.state,
        "action": str(step.action),
        "wanted": step.wanted,
        "why": step.why,
        "p": step.p,
    }


@dataclass(frozen=True, slots=True)
class Logged:
    """One decision of the log, with everything that it followed from; each field is the column of that name."""

    id: str
    k: int
    action: str
    reason: str
    confidence: float | None
    certified: bool
    calibrator: str | None
    signals: Mapping[str, float]
    read_signals: Mapping[str, float]
    failed_upstream: str | None
    failure_kind: str | None
    effective_policy: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One decision made again: where it differs from the log, or why it cannot be made."""

    id: str
    differences: tuple[str, ...] = ()
    problem: str | None = None


def replay_logged(decisions: Iterable[Logged], load: Callable[[str], Artifact]) -> Iterator[Replayed]:
    """Decide each again. `load` reads an artifact by its version, and raises ArtifactError if it cannot."""
    known: dict[str | None, Mapping[int, Calibrator] | ArtifactError] = {None: {}}
    for one in decisions:
        if one.calibrator not in known:
            assert one.calibrator is not None
            try:
                known[one.calibrator] = load(one.calibrator).calibrators
            except ArtifactError as error:
                known[one.calibrator] = error
        heads = known[one.calibrator]
        if isinstance(heads, ArtifactError):
            yield Replayed(one.id, problem=f"its calibrator {one.calibrator} cannot be loaded: {heads}")
        else:
            yield Replayed(one.id, differences=tuple(_differences(one, heads)))


def _differences(one: Logged, heads: Mapping[int, Calibrator]) -> Iterator[str]:
    steps, reply = replay(_policy_from(one.effective_policy, heads, _error(one)), _available(one))
    now, then = _flat([step_values(step) for step in steps]), _flat(one.steps)
    now |= _outcome(reply)
    then |= {"k": one.k, "action": one.action, "reason": one.reason}
    then |= {"confidence": one.confidence, "certified": one.certified}
    for name in then | now:
        if not _same(then.get(name), now.get(name)):
            yield f"{name}: logged {then.get(name)}, now {now.get(name)}"


def _error(one: Logged) -> UpstreamError | NoPassages | None:
    if one.failed_upstream is not None:
        return UpstreamError(one.failed_upstream, "as it failed then")
    return None if one.failure_kind is None else NoPassages("as nothing was found then")


def _available(one: Logged) -> Available:
    """What had been bought in the end, by the last state; the texts decide nothing."""
    state = one.steps[-1]["state"].split("+")
    signals = {0: one.signals, one.k: one.read_signals if one.k > 0 else one.signals}
    answers = {k: Answer(k, "", each, Usage()) for k, each in signals.items() if f"k{k}" in state}
    return Available(() if "search" in state else None, answers)


def _outcome(reply: Reply | None) -> dict[str, object]:
    if reply is None:
        return {}
    action = ABSTAIN if reply.withheld else action_of(reply.k)
    return {
        "k": reply.k,
        "action": action,
        "reason": reply.reason.value,
        "confidence": reply.confidence,
        "certified": reply.certified,
    }


def _flat(steps: Iterable[Mapping[str, object]]) -> dict[str, object]:
    return {f"{name} of step {number}": value for number, step in enumerate(steps, 1) for name, value in step.items()}


def _same(then: object, now: object) -> bool:
    if isinstance(then, float) and isinstance(now, float):
        return math.isclose(then, now, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return then == now


def _policy_from(
    inputs: Mapping[str, Any], heads: Mapping[int, Calibrator], error: UpstreamError | NoPassages | None
) -> EffectivePolicy:
    """The policy that `inputs_of` described, as JSON gives its values back."""
    kind = inputs["kind"]
    changed = {
        "ks": tuple(inputs["ks"]),
        "kind": Fixed(kind["k"], Reason(kind["why"]))
        if "k" in kind
        else Graded(Thresholds(**kind["thresholds"]), kind["few"], kind["many"]),
        "sampled": Sampled(**inputs["sampled"]),
        # What was left to give after the failure is worked out again.
        "failure": None if error is None else Failure(error, None),
    }
    return EffectivePolicy(**{**inputs, **changed}, heads=heads)
