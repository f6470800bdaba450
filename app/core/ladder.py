"""The core chooses the next action; the loop in `app.answer` executes it. Every decision about a question is made here.

search if a read is wanted ──► read k passages (k = 0 is the closed-book probe) ──► stop with an answer
"""

from dataclasses import dataclass

from app.core.available import Available
from app.core.effective_policy import EffectivePolicy, Fixed
from app.core.policy import Reason
from app.errors import NoPassages


@dataclass(frozen=True, slots=True)
class Search:
    """Find so many passages; at most once per question."""

    limit: int

    def __str__(self) -> str:
        return f"search {self.limit}"


@dataclass(frozen=True, slots=True)
class Read:
    """Answer from the k best passages; k = 0 is the closed-book probe."""

    k: int

    def __str__(self) -> str:
        return f"read {self.k}"


@dataclass(frozen=True, slots=True)
class Stop:
    """Give the answer at k, or withhold it; None: there is no answer that may be given."""

    k: int | None

    def __str__(self) -> str:
        return "stop" if self.k is None else f"stop {self.k}"


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: the state, the k that the policy chose, and the action within its bounds."""

    state: str
    action: Search | Read | Stop
    # None while the policy needs the probe first.
    wanted: int | None = None
    why: Reason | None = None
    # The probability that decided.
    p: float | None = None

    @property
    def k(self) -> int | None:
        """The number of passages that the answer is read from; None before the probe."""
        action = self.action
        if isinstance(action, Search):
            return action.limit
        return None if action == Read(0) else action.k


def next_step(policy: EffectivePolicy, available: Available) -> Step:
    """The next action. Defined for every input; where a probability is missing, the largest k is read."""
    state = available.state
    wanted, why, p = _choose(policy, available)
    if wanted is None:
        return Step(state, Read(0))
    k = policy.bounded(wanted)
    if k is None or k in available.answers:
        action: Search | Read | Stop = Stop(k)
    else:
        action = Search(k) if k > 0 and available.passages is None else Read(k)
    return Step(state, action, wanted, Reason.EXPLORED if policy.explored else why, p)


def _choose(policy: EffectivePolicy, available: Available) -> tuple[int | None, Reason | None, float | None]:
    """The policy's own choice of k, before its bounds; None if it needs a probe first."""
    p0 = available.confidences.get(0)
    if isinstance(policy.kind, Fixed):
        return policy.kind.k, policy.kind.why, p0
    if 0 not in available.answers:
        return None, None, None
    if p0 is None:
        return policy.ks[-1], Reason.NO_SIGNAL, None
    k, why = policy.kind.choose(p0)
    return k, Reason.RETRIEVAL_REQUIRED if policy.required else why, p0


def is_final(policy: EffectivePolicy, k: int) -> bool:
    """Whether an answer at k can be streamed while it is generated: nothing can replace or withhold it any more.

    A probe never is: its probability is known at its end, and the decision is sent before the answer.
    """
    return k > 0 and policy.failure is None and not policy.may_withhold(k)


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a question."""

    # The number of passages read, also where the answer is then withheld.
    k: int
    # None if there is none, or if it is withheld.
    text: str | None
    confidence: float | None
    reason: Reason
    withheld: bool
    certified: bool
    truncated: bool = False


def conclude(policy: EffectivePolicy, available: Available, step: Step) -> Reply:
    """Give the answer that the last step stopped at, or withhold it; raises if neither is allowed."""
    assert isinstance(step.action, Stop)
    assert step.why is not None
    k, failure = step.action.k, policy.failure
    if k is None:
        return Reply(0, None, None, Reason.NO_PASSAGES, withheld=True, certified=False)
    answer, confidence = available.answers[k], available.confidences[k]
    low = policy.tau is not None and confidence is not None and confidence < policy.tau
    reason, withheld = step.why, policy.abstain and low
    if failure is not None and failure.in_search:
        # A closed-book answer in place of one from passages is only given if its confidence passes tau.
        reason = Reason.NO_PASSAGES if isinstance(failure.error, NoPassages) else Reason.RETRIEVAL_FAILED
        if policy.tau is None or confidence is None or low:
            if not policy.abstain or confidence is None:
                raise failure.error
            withheld = True
    elif withheld:
        reason = Reason.LOW_CONFIDENCE
    elif failure is not None:
        reason = Reason.DEGRADED
    certified = policy.certifiable and failure is None and step.why is not Reason.NO_SIGNAL
    return Reply(
        k, None if withheld else answer.text, confidence, reason, withheld, certified, truncated=answer.truncated
    )
