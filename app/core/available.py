"""What is available for a question so far: the passages that were found, the answers, and the evidence of both."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.core import evidence
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.core.evidence import Asked, Found

Scalar = str | int | bool
# The longest contexts have about this many tokens.
_MOST_TOKENS = 10**7


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a collection; `score` is its similarity in a search, higher is nearer."""

    id: str
    title: str
    text: str
    score: float = 0.0
    payload: Mapping[str, Scalar] = field(default_factory=dict)


def count(value: object) -> int:
    """A number of tokens, or 0 if the server sent something else: what counts them must not fail on it."""
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one generation."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @classmethod
    def of(cls, reported: object) -> "Usage":
        """The tokens that a server reports, with the names of OpenAI's API."""
        if not isinstance(reported, dict):
            return cls()
        return cls(count(reported.get("prompt_tokens")), count(reported.get("completion_tokens")))

    @classmethod
    def so_far(cls, event: Mapping[str, object]) -> "Usage | None":
        """The tokens that an event of a stream reports, with OpenAI's names or llama.cpp's; None if it does not."""
        timings = event.get("timings")
        if event.get("usage") or not isinstance(timings, dict):
            return cls.of(event["usage"]) if event.get("usage") else None
        # Cached prompt tokens count too.
        read = count(timings.get("cache_n")) + count(timings.get("prompt_n"))
        return cls(read, count(timings.get("predicted_n")))

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
    # Of the best passage, where even that alone was too long for the reader.
    read_chars: int | None = None


NOTHING_ASKED = Asked("", NO_STATS)


@dataclass(frozen=True, slots=True)
class Available:
    """Everything that was searched and read so far. Results and evidence are added and never changed."""

    # Best first; None until the search has run.
    passages: tuple[Passage, ...] | None = None
    answers: Mapping[int, Answer] = field(default_factory=dict)
    evidence: Mapping[str, float] = field(default_factory=dict)
    asked: Asked = NOTHING_ASKED

    @classmethod
    def at_first(cls, text: str, stats: CorpusStats, vector: Sequence[float] | None = None) -> "Available":
        """What is available of a question before anything is bought. `vector` is its embedding, where there is one."""
        asked = Asked(text, stats)
        return cls(evidence=evidence.of_question(asked, vector), asked=asked)

    @property
    def state(self) -> str:
        """What is available, by name: `search+k0+k1`."""
        return state_of(self.answers, searched=self.passages is not None)

    def found(self, passages: Sequence[Passage]) -> "Available":
        """A copy with the passages that the search found."""
        found = Found(self.asked, tuple(passages))
        return replace(
            self, passages=found.passages, evidence={**self.evidence, **evidence.of_search(found, self.answers)}
        )

    def answered(self, answer: Answer) -> "Available":
        """A copy with one more answer."""
        found = None if self.passages is None else Found(self.asked, self.passages)
        new = evidence.of_answer(self.asked, found, answer, self.answers)
        return replace(self, answers={**self.answers, answer.k: answer}, evidence={**self.evidence, **new})


def state_of(answers: Iterable[int], *, searched: bool) -> str:
    """The name of a state: whether the search has run, and which answers exist."""
    return "+".join([*(["search"] if searched else []), *(f"k{k}" for k in sorted(answers))])


def evidence_of(
    text: str,
    stats: CorpusStats,
    vector: Sequence[float] | None,
    passages: Sequence[Passage],
    answers: Iterable[Answer],
) -> dict[str, float]:
    """All evidence of a question once everything was bought: what a row of an outcome table stores."""
    available = Available.at_first(text, stats, vector).found(passages)
    for answer in sorted(answers, key=lambda answer: answer.k):
        available = available.answered(answer)
    return dict(available.evidence)
