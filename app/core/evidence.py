"""Evidence: numbers about a question, its passages and its answers, by name. Heads turn them into probabilities.

Offline and online compute it with the same functions. A name never changes its value as more becomes available, and a
number that cannot be computed is absent. A new feature is one function below, under its decorator: it is collected,
stored, fitted and explained by its name.

    scope.*      for the scope test alone      `scope.nearness`, `scope.script:LATIN`
    search.*     what the search found         `search.cosine`
    k1.*         the answer from one passage   `k1.margin`, `k1.support`
    k0~k1.*      two answers                   `k0~k1.agreement`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum, isfinite, sqrt
from typing import TYPE_CHECKING, TypeVar

from app.core.corpus_stats import CorpusStats
from app.core.signals import ALL_NAMES, NAMES
from app.core.words import content_words, passage_words, scripts, sentence_words

if TYPE_CHECKING:
    from app.core.available import Answer, Passage

NEARNESS = "scope.nearness"
SCRIPT = "scope.script:"
COSINE = "search.cosine"
COVERAGE = "search.coverage_max"


@dataclass(frozen=True)
class Asked:
    """A question with the corpus statistics to weigh its words by."""

    text: str
    stats: CorpusStats

    @cached_property
    def words(self) -> frozenset[str]:
        """The content words of the question."""
        return content_words(self.text)

    def shares(self, of: frozenset[str], passages: Sequence[frozenset[str]]) -> list[float]:
        """The share of some words that each passage holds, weighted by rarity; 0 if there are none."""
        total = self.stats.weight(of)
        return [self.stats.weight(of & words) / total if of else 0.0 for words in passages]


@dataclass(frozen=True)
class Found:
    """What the search found, best first, with the words of each passage."""

    asked: Asked
    passages: tuple[Passage, ...]

    @cached_property
    def words(self) -> list[frozenset[str]]:
        """The words of each passage."""
        return [passage_words(passage.title, passage.text) for passage in self.passages]

    @cached_property
    def sentences(self) -> list[tuple[frozenset[str], tuple[frozenset[str], ...]]]:
        """The words of each passage's title, which often names the subject, and of each of its sentences."""
        return [(passage_words(passage.title, ""), sentence_words(passage.text)) for passage in self.passages]

    @cached_property
    def coverages(self) -> list[float]:
        """The share of the question's words that each passage holds."""
        return self.asked.shares(self.asked.words, self.words)


@dataclass(frozen=True)
class Said:
    """An answer to the question, with the words that it adds."""

    asked: Asked
    answer: Answer

    @cached_property
    def new_words(self) -> frozenset[str]:
        """The content words that the question does not have."""
        return content_words(self.answer.text) - self.asked.words


@dataclass(frozen=True)
class Checked:
    """An answer beside the passages."""

    found: Found
    said: Said

    @cached_property
    def supports(self) -> list[float]:
        """The share of the answer's new words that each passage holds; 0 if it only repeats the question."""
        return self.found.asked.shares(self.said.new_words, self.found.words)


OfSearch = Callable[[Found], float | None]
OfAnswer = Callable[[Said], float | None]
OfSupport = Callable[[Checked], float | None]
OfPair = Callable[[Said, Said], float | None]
F = TypeVar("F", bound=Callable[..., float | None])

_SEARCH: dict[str, OfSearch] = {}
_ANSWER: dict[str, OfAnswer] = {}
_SUPPORT: dict[str, OfSupport] = {}
_PAIR: dict[str, OfPair] = {}
# Features of an answer that never lower the probability that it is right.
_RISING: set[str] = set()


def feature(of: dict[str, F], name: str, *, rising: bool = False) -> Callable[[F], F]:
    """Add a feature. `rising`: a larger value never makes the answer that it describes less likely to be right."""

    def add(function: F) -> F:
        of[name] = function
        if rising:
            _RISING.add(name)
        return function

    return add


def _signal(name: str) -> OfAnswer:
    return lambda said: said.answer.signals.get(name)


for _name in ALL_NAMES:
    feature(_ANSWER, _name, rising=True)(_signal(_name))


@feature(_ANSWER, "tokens")
def _tokens(said: Said) -> float:
    return float(said.answer.usage.completion_tokens)


@feature(_ANSWER, "new_words")
def _new_words(said: Said) -> float:
    """How many words the answer adds to the question, up to 8: an echo adds none."""
    return float(min(8, len(said.new_words)))


@feature(_ANSWER, "rarest")
def _rarest(said: Said) -> float | None:
    """How much the rarest new word says: an answer without a name or a number adds common words alone."""
    if not said.asked.stats.passages:
        return None  # every word is equally rare
    return max((said.asked.stats.weight((word,)) for word in said.new_words), default=0.0)


@feature(_SEARCH, "cosine")
def _cosine(found: Found) -> float:
    return found.passages[0].score


@feature(_SEARCH, "gap")
def _gap(found: Found) -> float | None:
    """The best cosine minus the second."""
    return found.passages[0].score - found.passages[1].score if len(found.passages) > 1 else None


@feature(_SEARCH, "gap_last")
def _gap_last(found: Found) -> float | None:
    """The best cosine minus the last."""
    return found.passages[0].score - found.passages[-1].score if len(found.passages) > 1 else None


@feature(_SEARCH, "spread")
def _spread(found: Found) -> float | None:
    """The standard deviation of the cosines."""
    scores = [passage.score for passage in found.passages]
    if len(scores) < 2:
        return None
    mean = fsum(scores) / len(scores)
    return sqrt(fsum((score - mean) ** 2 for score in scores) / len(scores))


@feature(_SEARCH, "coverage")
def _coverage(found: Found) -> float:
    return found.coverages[0]


@feature(_SEARCH, "coverage_max")
def _coverage_max(found: Found) -> float:
    return max(found.coverages)


@feature(_SUPPORT, "support", rising=True)
def _support(checked: Checked) -> float:
    """The support by the best passage."""
    return checked.supports[0]


@feature(_SUPPORT, "support_max", rising=True)
def _support_max(checked: Checked) -> float:
    return max(checked.supports)


@feature(_SUPPORT, "support_mean", rising=True)
def _support_mean(checked: Checked) -> float:
    return fsum(checked.supports) / len(checked.supports)


@feature(_SUPPORT, "joint", rising=True)
def _joint(checked: Checked) -> float:
    """The largest product of support and coverage: one passage that holds both the question and the answer."""
    pairs = zip(checked.supports, checked.found.coverages, strict=True)
    return max(support * coverage for support, coverage in pairs)


@feature(_SUPPORT, "sentence", rising=True)
def _sentence(checked: Checked) -> float:
    """The largest share of the words of question and answer together in a sentence that holds some of the answer."""
    weight, new = checked.found.asked.stats.weight, checked.said.new_words
    both = checked.found.asked.words | new
    held = [
        weight((both & title) | (both & sentence))
        for title, sentences in checked.found.sentences
        for sentence in sentences
        if not (new.isdisjoint(sentence) and new.isdisjoint(title))
    ]
    return max(held) / weight(both) if held else 0.0


@feature(_PAIR, "agreement", rising=True)
def _agreement(one: Said, other: Said) -> float | None:
    """The new words that two answers share, over those of the shorter."""
    a, b = one.new_words, other.new_words
    return len(a & b) / min(len(a), len(b)) if a and b else None


@feature(_PAIR, "overlap", rising=True)
def _overlap(one: Said, other: Said) -> float | None:
    """The new words that two answers share, over those of either."""
    a, b = one.new_words, other.new_words
    return len(a & b) / len(a | b) if a and b else None


def of_question(asked: Asked, vector: Sequence[float] | None) -> dict[str, float]:
    """The evidence of the question alone: its nearness to the collected ones, and its writing systems."""
    near = {NEARNESS: None if vector is None else asked.stats.nearness(vector)}
    return _known(near) | {f"{SCRIPT}{script}": 1.0 for script in scripts(asked.text)}


def of_search(found: Found, answers: Mapping[int, Answer]) -> dict[str, float]:
    """The evidence that a search adds, about the passages and about the answers that were there before it."""
    if not found.passages:
        return {}
    new = {f"search.{name}": compute(found) for name, compute in _SEARCH.items()}
    for answer in answers.values():
        new |= _supports(found, Said(found.asked, answer))
    return _known(new)


def of_answer(asked: Asked, found: Found | None, answer: Answer, others: Mapping[int, Answer]) -> dict[str, float]:
    """The evidence that an answer adds, about itself and beside the other answers."""
    said = Said(asked, answer)
    new = {f"k{answer.k}.{name}": compute(said) for name, compute in _ANSWER.items()}
    if found is not None and found.passages:
        new |= _supports(found, said)
    for other in others.values():
        fewer, more = sorted((said, Said(asked, other)), key=lambda one: one.answer.k)
        new |= {f"k{fewer.answer.k}~k{more.answer.k}.{name}": compute(fewer, more) for name, compute in _PAIR.items()}
    return _known(new)


def _supports(found: Found, said: Said) -> dict[str, float | None]:
    checked = Checked(found, said)
    return {f"k{said.answer.k}.{name}": compute(checked) for name, compute in _SUPPORT.items()}


def _known(evidence: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in evidence.items() if value is not None and isfinite(value)}


def about(name: str) -> frozenset[str]:
    """What a name needs to be available: `k0~k1.agreement` needs k0 and k1, support of k0 needs k0 and search."""
    subject, _, what = name.partition(".")
    needs = frozenset(subject.split("~")) - {"scope"}
    return needs | {"search"} if what in _SUPPORT else needs


def known_in(state: str, evidence: Mapping[str, float]) -> dict[str, float]:
    """The part of the evidence that was known in an earlier state."""
    parts = frozenset(state.split("+"))
    return {name: value for name, value in evidence.items() if about(name) <= parts}


def belongs(name: str, state: str) -> bool:
    """Whether a head of a state such as `search+k0` may use a name."""
    return not name.startswith("scope.") and about(name) <= frozenset(state.split("+"))


def is_rising(name: str, k: int) -> bool:
    """Whether a larger value never makes the answer at k less likely to be right."""
    subject, _, what = name.partition(".")
    return what in _RISING and f"k{k}" in subject.split("~")


def required(state: str) -> tuple[str, ...]:
    """The names without which nothing is predicted in a state: three signals of each answer, and the best cosine."""
    names: list[str] = []
    for part in filter(None, state.split("+")):
        names += [COSINE] if part == "search" else [f"{part}.{name}" for name in NAMES]
    return tuple(names)
