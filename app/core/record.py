"""The finished decision: one frozen record that the receipt, the metrics and the log are all made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.core.artifact import Identity
from app.core.available import Answer, Available, Passage, Usage
from app.core.effective_policy import EffectivePolicy, Graded, Ladder
from app.core.ladder import Reply, Step
from app.core.policy import ABSTAIN, Reason, action_of
from app.core.question import Question
from app.errors import UpstreamError

# The reasons with which the policy's own choice was carried out.
_CHOSEN = frozenset({Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN, Reason.LOW_CONFIDENCE})


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds of each stage; None if the stage did not run."""

    total: float
    probe: float | None = None
    embed: float | None = None
    search: float | None = None
    read: float | None = None
    # Of the text in chat mode, and of a full answer.
    write: float | None = None
    # Of the last message of a conversation, before anything else.
    rewrite: float | None = None
    # In the queue, before the first call; part of the total.
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer of a full run, as in an outcome table, without its label."""

    answer: str
    signals: Mapping[str, float]
    prompt_tokens: int
    completion_tokens: int
    # Less than k if the search found fewer, or the reader's context was too short.
    passages_read: int
    # Includes retrieval if passages were read.
    ms: float
    # Whether the limit on its length cut it off.
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class FullRun:
    """The answers of one question at every k, generated again in the background; `id` is that of its record."""

    id: str
    # The system that answered: a refit never mixes two systems.
    identity: Identity
    outcomes: Mapping[int, Outcome]
    # Of the question, the search and all the answers, with the corpus statistics in use.
    evidence: Mapping[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Its tokens."""
        return sum(outcome.prompt_tokens + outcome.completion_tokens for outcome in self.outcomes.values())


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """Everything about one answered question, made of the core's nouns.

    Every input of a decision is in it, so that it can be decided again.
    """

    question: Question
    # As it was resolved, with the failure if there was one.
    policy: EffectivePolicy
    steps: tuple[Step, ...]
    available: Available
    reply: Reply
    timings: Timings
    # Searches sent, whether or not they found anything.
    searches: int = 0

    @property
    def action(self) -> str:
        """The action in the end: `k1`, or `abstain`."""
        return ABSTAIN if self.reply.withheld else action_of(self.reply.k)

    @property
    def probe(self) -> Answer | None:
        """The closed-book answer, where one was asked for."""
        return self.available.answers.get(0)

    @property
    def read(self) -> Answer | None:
        """The answer from passages, where any were read."""
        return self.available.answers.get(self.reply.k) if self.reply.k > 0 else None

    @property
    def probe_usage(self) -> Usage | None:
        """The tokens of the closed-book answer."""
        return self.probe.usage if self.probe else None

    @property
    def read_usage(self) -> Usage | None:
        """The tokens of all answers from passages: the ladder may read more than once."""
        usages = [answer.usage for k, answer in self.available.answers.items() if k > 0]
        return sum(usages, start=Usage()) if usages else None

    @property
    def write_usage(self) -> Usage | None:
        """The tokens of the text that was written once k was chosen."""
        return self.reply.written.usage if self.reply.written else None

    @property
    def rewrite_usage(self) -> Usage | None:
        """The tokens of the rewrite of a conversation's last message."""
        return self.question.standalone.usage if self.question.standalone else None

    @property
    def is_full(self) -> bool:
        """Whether the caller sees a longer text than the answer that was decided on, and judges that."""
        return self.reply.written is not None and bool(self.reply.written.text)

    @property
    def passages_read(self) -> int:
        """The passages in all prompts, each as often as it was read."""
        written = self.reply.written.passages if self.reply.written else 0
        return written + sum(answer.passages_read for answer in self.available.answers.values())

    @property
    def p_closed_book(self) -> float | None:
        """P(the closed-book answer is right), where it was asked for and a calibrator matches."""
        return next((step.p for step in reversed(self.steps) if step.p is not None), None)

    @property
    def citations(self) -> tuple[Passage, ...]:
        """The passages that the answer was read from, in the order of their numbers in the prompt.

        One that was too long for the reader is shown as far as it was read.
        """
        if self.reply.written is not None:
            return (self.available.passages or ())[: self.reply.written.passages]
        read = self.read
        cited = () if read is None else (self.available.passages or ())[: read.passages_read]
        if read is None or read.read_chars is None:
            return cited
        return tuple(replace(one, text=f"{one.text[: read.read_chars]}…") for one in cited)

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens of all its generations."""
        usages = [self.rewrite_usage, self.write_usage, *(answer.usage for answer in self.available.answers.values())]
        return sum(usage.prompt_tokens + usage.completion_tokens for usage in usages if usage is not None)

    @property
    def solicited(self) -> bool:
        """Whether the caller is asked for feedback; drawn before the answer is known: an unbiased sample."""
        return self.policy.sampled.solicit and not self.reply.withheld and not self.is_full

    @property
    def propensities(self) -> dict[str, float] | None:
        """The probability of each action; None if nothing was drawn at random.

        The ladder's own choice is not known where k was drawn, so there it is the probability given that k was drawn.
        """
        if isinstance(self.policy.kind, Ladder):
            ks = self.policy.permitted
            return {action_of(k): 1.0 / len(ks) for k in ks} if self.policy.explored else None
        wanted, share = self.steps[-1].wanted, self.policy.sampled.share
        if share == 0.0 or wanted is None:
            return None
        ks = self.policy.permitted
        return {action_of(k): share / len(ks) + (1.0 - share) * (k == wanted) for k in ks}

    @property
    def failure(self) -> tuple[str, str] | None:
        """The upstream that failed, and how, where the question could still be answered."""
        error = self.policy.failure and self.policy.failure.error
        return (error.upstream, error.kind) if isinstance(error, UpstreamError) else None

    @property
    def gated(self) -> bool:
        """Whether a calibrated probability chose k: the questions that gating is judged by.

        False if an upstream then failed or the search found nothing: k is lower, but nothing was saved. False for chat
        and full answers: what they cost depends on the text that is written.
        """
        return (
            not self.policy.chat
            and not self.is_full
            and isinstance(self.policy.kind, Graded | Ladder)
            and (isinstance(self.policy.kind, Ladder) or self.p_closed_book is not None)
            and self.policy.failure is None
            and not self.policy.required
            and not self.policy.explored
            and self.reply.reason in _CHOSEN
        )

    def outline(self) -> dict[str, str | float | None]:
        """How it was decided, for logs and traces: never the question, the answer or a passage."""
        reply = self.reply
        return {
            "decision_id": self.question.id,
            "action": self.action,
            "k": reply.k,
            "reason": reply.reason.value,
            "policy": self.question.options.policy.value,
            "p_closed_book": self.p_closed_book,
            "confidence": reply.confidence,
            "calibrator": self.policy.version,
            "certified": reply.certified,
            "passages": len(self.citations),
        }
