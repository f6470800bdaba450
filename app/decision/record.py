"""The finished decision: one frozen record that the receipt, the metrics and the log are all made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.decision.artifact import Identity, Thresholds
from app.decision.passage import Passage
from app.decision.policy import ABSTAIN, Policy, Reason, Retrieval, action_of

# Policies that choose k by a probability, and the reasons that stand where their choice was carried out.
_GATING = frozenset({Policy.GRADED, Policy.BINARY})
_CHOSEN = frozenset({Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN, Reason.LOW_CONFIDENCE})


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one generation."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """The tokens of two generations."""
        return Usage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds of each stage; None where the stage did not run."""

    total: float
    probe: float | None = None
    embed: float | None = None
    search: float | None = None
    read: float | None = None
    # In line, before anything was done; part of the total.
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer of a question that is asked at every k, as an outcome table has it, without its label."""

    answer: str
    signals: Mapping[str, float]
    prompt_tokens: int
    completion_tokens: int
    # Fewer than k where the search found fewer, or the reader's context held fewer.
    passages_read: int
    # Retrieval included where passages were read.
    ms: float


@dataclass(frozen=True, slots=True)
class Shadow:
    """What every action would have answered to a question that was served by one; `id` is that of its record."""

    id: str
    # What was asked: a refit never mixes two systems.
    identity: Identity
    outcomes: Mapping[int, Outcome]

    @property
    def tokens(self) -> int:
        """What the run cost."""
        return sum(outcome.prompt_tokens + outcome.completion_tokens for outcome in self.outcomes.values())


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """Everything about one answered question."""

    id: str
    question: str
    collection: str
    policy: Policy
    retrieval: Retrieval
    abstain: bool
    filtered: bool
    # None when withheld.
    answer: str | None
    # What was really read, also when the answer was then withheld: all cost accounting goes by k.
    k: int
    reason: Reason
    confidence: float | None
    p_closed_book: float | None
    signals: Mapping[str, float]
    read_signals: Mapping[str, float]
    thresholds: Thresholds | None
    tau_abstain: float | None
    calibrator: str | None
    certified: bool
    timings: Timings
    # What the reader was given, in the order of its numbers in the prompt.
    citations: tuple[Passage, ...] = ()
    probe_usage: Usage | None = None
    read_usage: Usage | None = None
    # How many searches were sent, whether or not their passages were read.
    retrieval_calls: int = 0
    # A part that failed on the way, and how, though the question could still be settled.
    failure: tuple[str, str] | None = None
    # Every action answers this question in the background, when there is time.
    shadowed: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    # Where chance had a part in the choice: how likely each action was, and whether chance overruled the policy.
    propensities: Mapping[str, float] | None = None
    explored: bool = False
    # Whether the asker was asked for feedback.
    solicited: bool = False
    # The public id of the asker's key, where callers have keys.
    key: str | None = None
    # Whether the answer was longer than it might be.
    cut_off: bool = False

    @property
    def action(self) -> str:
        """What was done in the end."""
        return ABSTAIN if self.answer is None else action_of(self.k)

    def outline(self) -> dict[str, str | float | None]:
        """How it was decided, for logs and traces: never the question, the answer or a passage."""
        return {
            "receipt": self.id,
            "action": self.action,
            "k": self.k,
            "reason": self.reason.value,
            "policy": self.policy.value,
            "p_closed_book": self.p_closed_book,
            "confidence": self.confidence,
            "calibrator": self.calibrator,
            "certified": self.certified,
            "passages": len(self.citations),
        }

    @property
    def gated(self) -> bool:
        """Whether a calibrated probability chose k: the questions that gating is judged by.

        Not where the search then failed or found nothing: k is 0 there, and nothing was saved.
        """
        return (
            self.p_closed_book is not None
            and self.retrieval is Retrieval.AUTO
            and self.policy in _GATING
            and self.reason in _CHOSEN
            and not self.explored
        )
