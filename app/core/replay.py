"""Decides a recorded question again: the same policy and the same upstream results give the same steps and reply."""

from dataclasses import replace

from app.core.available import Available
from app.core.effective_policy import EffectivePolicy, after_failure
from app.core.ladder import Read, Reply, Search, Step, Stop, conclude, next_step
from app.errors import NoPassages, UpstreamError


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
