"""The core chooses the next action; the loop in `app.answer` executes it. Every decision about a question is made here.

search ──► read k passages (k = 0 is the closed-book probe) ──► read more ──► stop with an answer, or withhold it
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.available import Available, Usage
from app.core.effective_policy import REASONS, EffectivePolicy, Fixed, Graded, Ladder, OneShot
from app.core.heads import Blend, Head
from app.core.policy import Reason
from app.core.sentences import Sentence
from app.errors import NoPassages


@dataclass(frozen=True, slots=True)
class Search:
    """Find the passages that the largest k needs; at most once per question."""

    def __str__(self) -> str:
        return "search"


@dataclass(frozen=True, slots=True)
class Read:
    """Answer from the k best passages; k = 0 is the closed-book probe."""

    k: int

    def __str__(self) -> str:
        return f"read {self.k}"


@dataclass(frozen=True, slots=True)
class Stop:
    """Give the answer at k, write one from k passages, or withhold it; None: no answer may be given."""

    k: int | None

    def __str__(self) -> str:
        return "stop" if self.k is None else f"stop {self.k}"


Action = Search | Read | Stop


@dataclass(frozen=True, slots=True)
class Option:
    """One action that the ladder weighed: the probability of being right in the end, and what it costs."""

    action: Action
    value: float
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: the state, what the policy weighed, and the action within its bounds."""

    state: str
    action: Action
    # The k that the policy chose; None while it has not.
    wanted: int | None = None
    why: Reason | None = None
    # P(the closed-book answer is right), where there is one.
    p: float | None = None
    options: tuple[Option, ...] = ()
    # The evidence that moved the chosen value most, and how far in log-odds.
    moved: tuple[tuple[str, float], ...] = ()

    @property
    def out_of_scope(self) -> bool:
        """Whether the evidence of this state put the question out of scope."""
        return self.why is Reason.OUT_OF_SCOPE


def next_step(policy: EffectivePolicy, available: Available) -> Step:
    """The next action. Defined for every input; where a probability is missing, the largest k is read."""
    if policy.alarm(available) is not None:
        # Judged as soon as the evidence is there, before anything else is bought.
        if policy.abstain:
            return Step(available.state, Stop(None), why=Reason.OUT_OF_SCOPE)
        # No passage is about a chat turn out of scope; a question may still be answered from some.
        return _toward(policy, available, 0 if policy.chat else policy.ks[-1], Reason.OUT_OF_SCOPE)
    kind = policy.kind
    if isinstance(kind, Fixed):
        return _toward(policy, available, kind.k, kind.why, policy.p0(available) if 0 in available.answers else None)
    if isinstance(kind, Graded):
        return _grade(policy, kind, available)
    if isinstance(kind, OneShot):
        return _choose_once(policy, kind, available)
    return (_explore if policy.explored else _climb)(policy, kind, available)


def _toward(
    policy: EffectivePolicy, available: Available, wanted: int, why: Reason | None, p: float | None = None
) -> Step:
    """The next action on the way to the answer at a k, within the bounds of the policy."""
    k = policy.bounded(wanted)
    # Chat reads nothing: it is written from the passages.
    written = policy.chat and (k == 0 or available.passages is not None)
    if k is None or written or k in available.answers:
        action: Action = Stop(k)
    else:
        action = Search() if k > 0 and available.passages is None else Read(k)
    return Step(available.state, action, wanted, why, p)


def _explore(policy: EffectivePolicy, ladder: Ladder, available: Available) -> Step:
    """The k that was drawn. A search with which the ladder begins comes first: then the state is one of its own."""
    if not available.state and policy.failure is None:
        first = _climb(replace(policy, minimum=policy.permitted[0], maximum=policy.ks[-1]), ladder, available)
        if first.action == Search():
            return first
    return _toward(policy, available, policy.minimum, Reason.EXPLORED)


def _grade(policy: EffectivePolicy, graded: Graded, available: Available) -> Step:
    """The paper's policy: probe, then thresholds on the probability of its answer."""
    if 0 not in available.answers:
        return Step(available.state, Read(0))
    p0 = policy.p0(available)
    if p0 is None:
        return _toward(policy, available, policy.ks[-1], Reason.EXPLORED if policy.explored else Reason.NO_SIGNAL)
    k, why = graded.choose(p0)
    if policy.explored or policy.required:
        why = Reason.EXPLORED if policy.explored else Reason.RETRIEVAL_REQUIRED
    return _toward(policy, available, k, why, p0)


def _climb(policy: EffectivePolicy, ladder: Ladder, available: Available) -> Step:
    """Make the best purchase while it is worth its price, else stop with the most probable answer."""
    assert policy.ladder is not None
    fit, state = policy.ladder, available.state
    probabilities, values = policy.heads.get(state, {}), fit.values.get(state, {})
    heads: list[tuple[Action, Head | None, float]] = [
        (Stop(k), probabilities.get(k), 0.0) for k in available.answers if policy.bounded(k) == k
    ]
    for purchase in purchases(policy, available):
        name = name_of(purchase)
        heads.append((purchase, values.get(name), fit.costs.get(name, 0.0)))
    step = _weigh(available, ladder.t, heads)
    if step is None:
        # Fail toward evidence: where a head lacks some, read the most.
        return _toward(policy, available, policy.ks[-1], Reason.NO_SIGNAL)
    if not isinstance(step.action, Stop):
        return step
    can_buy = any(not isinstance(option.action, Stop) for option in step.options)
    why = Reason.RETRIEVAL_REQUIRED if policy.required else Reason.CONFIDENT if can_buy else Reason.UNCERTAIN
    return replace(step, why=why)


def _weigh(available: Available, t: float, heads: Sequence[tuple[Action, Head | None, float]]) -> Step | None:
    """The action whose value minus its price is the largest, of actions with their heads and costs.

    None where a head is missing or lacks evidence.
    """
    options = list[Option]()
    for action, head, cost in heads:
        value = None if head is None else head.predict(available.evidence)
        if value is None:
            return None
        options.append(Option(action, value, t * cost))
    if not options:
        return None
    # Of equal ones the cheaper, also where accuracy has no price: to stop costs nothing.
    at = max(range(len(options)), key=lambda i: (options[i].value - options[i].price, -heads[i][2]))
    action, head, _ = heads[at]
    moved = head.explain(available.evidence) if isinstance(head, Blend) else ()
    p0 = next((option.value for option in options if option.action == Stop(0)), None)
    wanted = action.k if isinstance(action, Stop) else None
    return Step(available.state, action, wanted, None, p0, tuple(options), moved)


def _choose_once(policy: EffectivePolicy, rule: OneShot, available: Available) -> Step:
    """Chat: search and probe, then choose k by the probabilities of answers that are not bought.

    The choice is made also where k was drawn at random: the log keeps what would have been chosen.
    """
    if policy.failure is None and available.passages is None:
        return Step(available.state, Search())
    if policy.failure is None and 0 not in available.answers:
        return Step(available.state, Read(0))
    probabilities = policy.heads.get(available.state, {})
    weighed = _weigh(
        available, rule.t, [(Stop(k), probabilities.get(k), rule.costs[f"k{k}"]) for k in policy.permitted]
    )
    if weighed is None:
        return _toward(policy, available, policy.ks[-1], Reason.EXPLORED if policy.explored else Reason.NO_SIGNAL)
    k = weighed.wanted
    assert k is not None
    why = REASONS[0] if k == 0 else REASONS[2] if k == policy.ks[-1] else REASONS[1]
    if policy.explored or policy.required:
        why = Reason.EXPLORED if policy.explored else Reason.RETRIEVAL_REQUIRED
    return replace(weighed, action=Stop(policy.bounded(k)), why=why)


def purchases(policy: EffectivePolicy, available: Available) -> list[Search | Read]:
    """What can be bought next: the search, once; without an answer any k, with one only the next larger."""
    if policy.failure is not None and available.answers:
        return []
    searched = available.passages is not None
    found: list[Search | Read] = []
    if not searched and policy.may_search and policy.failure is None:
        found.append(Search())
    largest = max(available.answers, default=None)
    if largest is None:
        ks = [k for k in policy.permitted if k == 0 or searched]
    else:
        ks = [k for k in policy.ks if k > largest][:1] if searched else []
    return found + [Read(k) for k in ks if policy.bounded(k) == k]


def name_of(action: Search | Read) -> str:
    """The name of a purchase in an artifact: `search`, `k1`."""
    return "search" if isinstance(action, Search) else f"k{action.k}"


def is_final(policy: EffectivePolicy, step: Step) -> bool:
    """Whether the answer that a step reads can be streamed while it is generated: nothing can replace or withhold it.

    A probe never is: its probability is known at its end, and the decision is sent before the answer.
    """
    assert isinstance(step.action, Read)
    k, chosen = step.action.k, not isinstance(policy.kind, Ladder) or policy.explored or step.out_of_scope
    return k > 0 and chosen and policy.failure is None and not policy.may_withhold(k)


@dataclass(frozen=True, slots=True)
class Written:
    """The text that was written once k was chosen."""

    usage: Usage
    # Fewer than k if the reader's context was too short.
    passages: int
    # The reader's own reply to a chat request; None if it was streamed.
    reply: Mapping[str, Any] | None = None
    # A full answer. The reply itself stays the short one, which the decision is about.
    text: str = ""
    sentences: tuple[Sentence, ...] = ()
    truncated: bool = False


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
    in_scope: bool = True
    written: Written | None = None


def conclude(policy: EffectivePolicy, available: Available, step: Step) -> Reply:
    """Give the answer that the last step stopped at, or withhold it; raises if neither is allowed.

    Chat has no text and no confidence yet: the answer is written from k passages.
    """
    assert isinstance(step.action, Stop)
    assert step.why is not None
    k, failure, in_scope = step.action.k, policy.failure, not step.out_of_scope and policy.complete(available)
    if k is None:
        nothing = step.why if step.out_of_scope else Reason.NO_PASSAGES
        return Reply(0, None, None, nothing, withheld=True, certified=False, in_scope=in_scope)
    answer = None if policy.chat else available.answers[k]
    confidence = confidence_of(policy, available, step, k)
    low = policy.tau is not None and confidence is not None and confidence < policy.tau
    reason, withheld = step.why, policy.abstain and low
    if failure is not None and failure.in_search:
        # A closed-book answer in place of one from passages is only given if its confidence passes tau.
        reason = Reason.NO_PASSAGES if isinstance(failure.error, NoPassages) else Reason.RETRIEVAL_FAILED
        if policy.chat:
            withheld = policy.abstain
        elif policy.tau is None or confidence is None or low:
            if not policy.abstain or confidence is None:
                raise failure.error
            withheld = True
    elif withheld:
        reason = Reason.LOW_CONFIDENCE
    elif failure is not None:
        reason = Reason.DEGRADED
    certified = policy.certifiable and in_scope and failure is None and step.why is not Reason.NO_SIGNAL
    text = None if withheld or answer is None else answer.text
    truncated = answer is not None and answer.truncated
    return Reply(k, text, confidence, reason, withheld, certified, truncated=truncated, in_scope=in_scope)


def confidence_of(policy: EffectivePolicy, available: Available, step: Step, k: int) -> float | None:
    """The confidence shown: the probability of the answer given, and one more step where the ladder chose it.

    None out of scope, where no probability means anything, and for chat, whose words are not written yet.
    """
    if step.out_of_scope or policy.chat:
        return None
    # Weighed already, where the ladder chose.
    weighed = next((option.value for option in step.options if option.action == step.action), None)
    if weighed is None:
        return policy.probability(available, k)
    if policy.ladder is None or policy.required or policy.failure is not None:
        return weighed
    return policy.ladder.confidence.apply(weighed)
