"""A long answer by its sentences: which passage supports each, and how sure the reader was of its words.

Both numbers describe words. Neither is a probability that a sentence is right: nothing calibrates them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, isfinite
from typing import Literal

from app.core.available import Passage
from app.core.evidence import Asked
from app.core.words import content_words, passage_words

Mark = Literal["supported", "uncertain", "unsupported"]
# A passage supports a sentence if it holds at least this share of its words.
SUPPORTED = 0.6
# The reader is unsure of a sentence if its tokens have a lower probability than this, as a geometric mean.
UNSURE = 0.5

_CITATION = re.compile(r"[ \t]*\[(\d{1,4}(?: ?, ?\d{1,4})*)\]")
# What the next piece of text may turn into a citation, or into white space at the end.
_UNSETTLED = re.compile(r"\s*(?:\[[\d, ]*)?\Z")
# The end of a sentence with the citations and the white space behind it. A line break always ends one.
_END = re.compile(
    r"(?:(?P<stop>[.!?]+)[\"'”’)]*(?:[ \t]*\[[\d, ]+\])*(?=\s|\Z)|[。！？]+[”’」）]*(?:[ \t]*\[[\d, ]+\])*|\n)\s*"
)
_BETWEEN_WORDS = re.compile(r"[\s(\"'“]")
# Shorter sentences may well come twice.
_FEW_WORDS = 3
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_ABBREVIATIONS = frozenset(
    {"approx", "ca", "cf", "dr", "e.g", "etc", "i.e", "jr", "mr", "mrs", "ms", "prof", "sr", "st", "vs"}
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a long answer."""

    text: str
    # The share of its words that `passage` holds, without those of the question; None without passages or new words.
    support: float | None
    # The number of the passage that supports it most.
    passage: int | None
    # The mean log-probability of its tokens; None if the reader did not report them.
    logprob: float | None

    @property
    def mark(self) -> Mark:
        """How it is shown. A passage counts for more than the reader's own certainty."""
        if self.support is not None and self.support >= SUPPORTED:
            return "supported"
        return "uncertain" if self.logprob is not None and exp(self.logprob) < UNSURE else "unsupported"


class LongAnswer:
    """A long answer while it is written. What is shown of it never changes.

    Citations of passages that were not read are removed. A supported sentence without a citation gets one.
    """

    def __init__(self, asked: Asked, passages: Sequence[Passage]) -> None:
        self.sentences: list[Sentence] = []
        self.text = ""
        # Whether a sentence came twice. Small readers then write it again and again, so nothing is added any more.
        self.repeats = False
        self._asked = asked
        self._held = [passage_words(passage.title, passage.text) for passage in passages]
        # The sentence that is not complete yet, as the reader wrote it; the ends and log-probabilities of its tokens.
        self._rest = ""
        self._ends: list[tuple[int, float]] = []
        # The complete sentences as they are given, and the white space behind them.
        self._done = ""
        self._gap = ""

    def add(self, piece: str, tokens: Sequence[tuple[str, float]] = ()) -> str:
        """Add a piece with its tokens and their log-probabilities; returns what can be shown now."""
        at = len(self._rest)
        self._rest += piece
        for token, logprob in tokens:
            # A token may be a part of a character, whose text comes with another.
            at = min(at + len(token), len(self._rest))
            self._ends.append((at, logprob))
        return self._complete(settled(self._rest), keep=1)

    def finish(self) -> str:
        """No piece follows; returns the rest."""
        return self._complete(self._rest, keep=0)

    def _complete(self, text: str, *, keep: int) -> str:
        """Take complete sentences from the text. The last `keep` may still go on."""
        spans = [] if self.repeats else _spans(text)
        for start, end in spans[: len(spans) - keep]:
            said = "" if self.repeats else self._given(self._rest[start:end])
            if said:
                logprobs = [logprob for at, logprob in self._ends if start < at <= end]
                known = logprobs and all(map(isfinite, logprobs))
                mean = fsum(logprobs) / len(logprobs) if known else None
                sentence = _sentence(said, mean, self._asked, self._held)
                self.repeats = len(said.split()) > _FEW_WORDS and any(
                    sentence.text == one.text for one in self.sentences
                )
                self.sentences.append(sentence)
                self._done += self._gap + self.sentences[-1].text
                self._gap = self._rest[start:end][len(self._rest[start:end].rstrip()) :]
        taken = spans[-keep - 1][1] if len(spans) > keep else 0
        self._rest = self._rest[taken:]
        self._ends = [(at - taken, logprob) for at, logprob in self._ends if at > taken]
        going = "" if self.repeats else self._given(text[taken:])
        shown, self.text = self.text, self._done + (self._gap + going if going else "")
        return self.text[len(shown) :]

    def _given(self, text: str) -> str:
        return cite_read(text, len(self._held)).strip()


def _sentence(said: str, logprob: float | None, asked: Asked, passages: Sequence[frozenset[str]]) -> Sentence:
    support, passage = _support(said, asked, passages)
    found = Sentence(said, support, passage, logprob)
    if found.mark == "supported" and not _CITATION.search(said):
        return replace(found, text=f"{said} [{passage}]")
    return found


def cite_read(text: str, passages: int) -> str:
    """The text without citations of passages that were not read."""

    def kept(citation: re.Match[str]) -> str:
        numbers = citation[1].split(",")
        read = [number for number in numbers if 1 <= int(number) <= passages]
        if len(read) == len(numbers):
            return citation[0]
        return f"{citation[0][: citation[0].index('[')]}[{','.join(read).strip()}]" if read else ""

    return _CITATION.sub(kept, text)


def settled(text: str) -> str:
    """The part of an unfinished text that `cite_read` gives the same result for, whatever follows."""
    return _UNSETTLED.sub("", text, count=1)


def _spans(text: str) -> list[tuple[int, int]]:
    """Where each sentence begins and ends; together they are the whole text."""
    spans, start = [], 0
    for end in _END.finditer(text):
        if not _continues(text[start : end.start()], end["stop"], text[end.end() : end.end() + 1]):
            spans.append((start, end.end()))
            start = end.end()
    return [*spans, (start, len(text))] if start < len(text) else spans


def _continues(sentence: str, stop: str | None, following: str) -> bool:
    """Whether a full stop belongs to an abbreviation or to the number of a list, and not to the end of a sentence."""
    if stop != "." or not following:
        return False
    word = _BETWEEN_WORDS.split(sentence)[-1]
    numbered = word.isdecimal() and word == sentence.strip()
    return following.islower() or numbered or bool(_INITIALS.fullmatch(word)) or word.casefold() in _ABBREVIATIONS


def _support(said: str, asked: Asked, passages: Sequence[frozenset[str]]) -> tuple[float | None, int | None]:
    """The largest share of the new words of a sentence in one passage, and the number of that passage."""
    new = content_words(_CITATION.sub("", said)) - asked.words
    if not new or not passages:
        return None, None
    shares = asked.shares(new, passages)
    support = max(shares)
    return support, shares.index(support) + 1 if support > 0 else None
