"""Decides a recorded question again: the same policy and the same upstream results give the same steps and reply.

`replay` takes a record's own nouns. `replay_logged` takes rows of the decision log, and reads the calibrators that they
name; each decision must come out as it was logged.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.artifact import Artifact, Thresholds
from app.core.available import Answer, Available, Passage, Usage, state_of
from app.core.effective_policy import (
    EffectivePolicy,
    Failure,
    Fixed,
    Graded,
    Kind,
    Ladder,
    OneShot,
    Sampled,
    after_failure,
)
from app.core.evidence import known_in
from app.core.ladder import Read, Reply, Search, Step, Stop, conclude, next_step
from app.core.policy import ABSTAIN, Reason, action_of
from app.errors import ArtifactError, NoPassages, UpstreamError

_INPUTS = ("ks", "kind", "minimum", "maximum", "required", "chat", "tau", "abstain", "certifiable", "sampled")
# Another machine may round the last digit of a probability differently.
_TOLERANCE = 1e-9


def replay(policy: EffectivePolicy, available: Available) -> tuple[tuple[Step, ...], Reply | None]:
    """The steps and the reply, from a record's policy and what was available in the end.

    A search or a read gives what was recorded of it; where nothing was, it fails as it failed then. The reply is None
    where these cannot be the steps of one record: they need a result that it does not have.
    """
    failure, policy = policy.failure, replace(policy, failure=None)
    now, steps = _at(available, None, {}), list[Step]()
    while True:
        step = next_step(policy, now)
        steps.append(step)
        try:
            match step.action:
                case Stop():
                    return tuple(steps), conclude(policy, now, step)
                case Search() if available.passages is not None:
                    now = _at(available, available.passages, now.answers)
                case Read(k) if k in available.answers:
                    now = _at(available, now.passages, {**now.answers, k: available.answers[k]})
                case _ if failure is not None:
                    policy = after_failure(policy, now, failure.error)
                case _:
                    return tuple(steps), None
        except (UpstreamError, NoPassages):
            return tuple(steps), None


def _at(recorded: Available, passages: tuple[Passage, ...] | None, answers: Mapping[int, Answer]) -> Available:
    """What was available at one step, with the evidence that was recorded of it."""
    state = state_of(answers, searched=passages is not None)
    return Available(passages, answers, known_in(state, recorded.evidence), recorded.asked)


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
        "options": [
            {"action": str(option.action), "value": option.value, "price": option.price} for option in step.options
        ],
        "moved": [[name, by] for name, by in step.moved],
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
    evidence: Mapping[str, float]
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
    known: dict[str | None, Artifact | ArtifactError | None] = {None: None}
    for one in decisions:
        if one.calibrator not in known:
            assert one.calibrator is not None
            try:
                known[one.calibrator] = load(one.calibrator)
            except ArtifactError as error:
                known[one.calibrator] = error
        artifact = known[one.calibrator]
        if isinstance(artifact, ArtifactError):
            yield Replayed(one.id, problem=f"its calibrator {one.calibrator} cannot be loaded: {artifact}")
        else:
            yield Replayed(one.id, differences=tuple(_differences(one, artifact)))


def _differences(one: Logged, artifact: Artifact | None) -> Iterator[str]:
    steps, reply = replay(_policy_from(one.effective_policy, artifact, _error(one)), _available(one))
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
    """What had been bought in the end, by the last state; evidence decides, texts do not."""
    state = one.steps[-1]["state"].split("+")
    answers = {int(part[1:]): Answer(int(part[1:]), "", {}, Usage()) for part in state if part[:1] == "k"}
    return Available(() if "search" in state else None, answers, one.evidence)


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
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        return then.keys() == now.keys() and all(_same(then[name], now[name]) for name in then)
    if isinstance(then, list) and isinstance(now, list):
        return len(then) == len(now) and all(map(_same, then, now))
    return then == now


def _policy_from(
    inputs: Mapping[str, Any], artifact: Artifact | None, error: UpstreamError | NoPassages | None
) -> EffectivePolicy:
    """The policy that `inputs_of` described, as JSON gives its values back."""
    changed: dict[str, Any] = {
        "ks": tuple(inputs["ks"]),
        "kind": _kind(inputs["kind"]),
        "sampled": Sampled(**inputs["sampled"]),
        # What was left to give after the failure is worked out again.
        "failure": None if error is None else Failure(error, None),
    }
    if artifact is not None:
        changed |= {"heads": artifact.heads, "ladder": artifact.ladder, "scope": artifact.scope}
    return EffectivePolicy(**{**inputs, **changed})


def _kind(given: Mapping[str, Any]) -> Kind:
    if "costs" in given:
        return OneShot(given["t"], given["costs"])
    if "t" in given:
        return Ladder(given["t"])
    if "k" in given:
        return Fixed(given["k"], Reason(given["why"]))
    return Graded(Thresholds(**given["thresholds"]), given["few"], given["many"])
