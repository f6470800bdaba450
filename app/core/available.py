"""What is available for a question so far: the passages that were found, and the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.core.question import Scalar


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a collection; `score` is its similarity in a search, higher is nearer."""

    id: str
    title: str
    text: str
    score: float = 0.0
    payload: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one generation."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """The tokens of two generations."""
        return Usage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to the question, read from up to k passages; k = 0 is the closed-book probe."""

    k: int
    text: str
    signals: Mapping[str, float]
    usage: Usage
    # Less than k if the search found fewer, or the reader's context was too short.
    passages_read: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Available:
    """Everything that was searched and read so far. Results are added and never changed."""

    # Best first; None until the search has run.
    passages: tuple[Passage, ...] | None = None
    answers: Mapping[int, Answer] = field(default_factory=dict)
    # P(right) of each answer; None if its k is not calibrated, or a signal is missing.
    confidences: Mapping[int, float | None] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """What is available, by name: `search+k0+k1`."""
        return "+".join([*(["search"] if self.passages is not None else []), *(f"k{k}" for k in sorted(self.answers))])

    def found(self, passages: Sequence[Passage]) -> "Available":
        """A copy with the passages that the search found."""
        return replace(self, passages=tuple(passages))

    def answered(self, answer: Answer, confidence: float | None) -> "Available":
        """A copy with one more answer, and the probability that it is right."""
        answers = {**self.answers, answer.k: answer}
        return Available(self.passages, answers, {**self.confidences, answer.k: confidence})
