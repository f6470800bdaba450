"""Two rules that decide whether an answer is right, and a closed list of phrases that decline to answer.

`compat` is the rule of the published work, kept for comparison: a gold answer of three characters or more
matches any substring, so "yesterday" is right for "yes". `tokens`, the default, folds Unicode, compares whole words,
and understands yes, no and numbers.
"""

import re
import string
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Literal

Rule = Literal["tokens", "compat"]

_ARTICLES = frozenset(("a", "an", "the"))
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Shorter gold answers are words like "I", which any sentence contains.
_COMPAT_MIN_CHARS = 3
_MIN_CHARS = 2

_SCALES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
# fmt: off
_WORDS = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50,
    "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}
# fmt: on
# Remove accents and invisible characters, treat control characters as spaces, and make all dashes the same.
_PLAIN = {"Mn": "", "Mc": "", "Me": "", "Cf": "", "Cc": " ", "Pd": "-"}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# A minus sign only where a number follows and no word precedes: "1914-1918" and "Covid-19" contain no negative number.
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
_POINT = re.compile(r"(?<=\d)\.(?=\d)")

# An answer with one of these phrases is a refusal; the list is closed, so that a label never depends on a model.
_REFUSALS = (
    "I don't know", "I do not know", "I am not sure", "I'm not sure", "no idea",
    "not mentioned", "not stated", "not specified", "not provided", "not in the passages", "not in the text",
    "does not say", "doesn't say", "do not say", "don't say", "does not mention", "doesn't mention",
    "do not mention", "don't mention", "does not contain", "do not contain", "does not provide", "do not provide",
    "cannot answer", "can not answer", "can't answer", "unable to answer", "not able to answer", "cannot be answered",
    "can't be answered", "cannot determine", "can't determine", "cannot be determined", "can't be determined",
    "cannot provide", "can't provide", "unable to provide", "not able to provide", "cannot help", "can't help",
    "unable to help", "unable to assist", "cannot find", "can't find", "could not find", "couldn't find",
    "no information", "not enough information", "insufficient information", "do not have information",
    "don't have information", "do not have enough", "don't have enough", "do not have access", "don't have access",
    "no answer",
)  # fmt: skip
# One of these is a refusal only if it is the whole answer: as a word it may be part of a name.
_REFUSAL_WORDS = frozenset((("unknown",), ("unanswerable",), ("none",), ("nothing",)))


def is_right(answer: str, gold: Sequence[str], rule: Rule = "tokens", *, out_of_corpus: bool = False) -> bool:
    """Whether an answer is right. A question that the corpus cannot answer is answered right by a refusal alone."""
    return is_refusal(answer) if out_of_corpus else judge(answer, gold, rule)


def is_refusal(answer: str) -> bool:
    """Whether an answer declines to answer, by a closed list of phrases."""
    given = words(answer)
    return given in _REFUSAL_WORDS or any(_contains(given, phrase) for phrase in _refusals())


@cache
def _refusals() -> tuple[tuple[str, ...], ...]:
    return tuple(map(words, _REFUSALS))


def judge(answer: str, gold: Sequence[str], rule: Rule = "tokens") -> bool:
    """Whether an answer matches the gold answer or any of its aliases."""
    if rule == "compat":
        return _judge_compat(answer, gold)
    given = words(answer)
    return any(_matches(given, words(alias)) for alias in gold)


def words(text: str) -> tuple[str, ...]:
    """Split a text into comparable words: folded, without accents, punctuation and articles.

    Digit groups are joined ("1,234" is "1234"), decimals and signs stay, and dashes and slashes separate words.
    """
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    plain = "".join(_PLAIN.get(unicodedata.category(c), "-" if c == "\u2212" else c) for c in folded)
    # Mark signs and decimal points of numbers, so that they are not removed with the punctuation. The marks are control
    # characters, of which none is left in the text by now.
    joined = _POINT.sub("\0", _MINUS.sub("\1", _THOUSANDS.sub("", plain))).replace("-", " ").replace("/", " ")
    bare = "".join(c for c in joined if unicodedata.category(c)[0] not in "PS").replace("\0", ".").replace("\1", "-")
    every = bare.split()
    # A title made of articles alone ("The The") keeps them: otherwise nothing would be left to compare.
    return tuple(word for word in every if word not in _ARTICLES) or tuple(every)


def normalise(text: str) -> str:
    """One string for all spellings that `words` treats as equal."""
    return " ".join(words(text))


def _matches(given: tuple[str, ...], gold: tuple[str, ...]) -> bool:
    if not given or not gold:
        return False
    if gold in (("yes",), ("no",)):
        # Yes or no must come first: "there is no evidence" is not the answer "no", and "yes and no" is neither.
        return given[0] == gold[0] and not {"yes", "no"} <= set(given)
    wanted = _quantities(gold)
    if wanted is not None:
        return wanted in _numbers(given)
    if given == gold:
        return True
    return len("".join(gold)) >= _MIN_CHARS and _contains(given, gold)


def _contains(given: tuple[str, ...], gold: tuple[str, ...]) -> bool:
    width = len(gold)
    return any(given[start : start + width] == gold for start in range(len(given) - width + 1))


def _quantities(gold: tuple[str, ...]) -> float | None:
    """The gold answer as a number, or None if it is anything else."""
    if not (_NUMBER.fullmatch(gold[0]) or gold[0] in _WORDS):
        return None
    if len(gold) == 1 or (len(gold) == 2 and gold[1] in _SCALES):
        return next(iter(_numbers(gold)))
    return None


def _numbers(given: tuple[str, ...]) -> list[float]:
    """Every number of an answer, "12 million" as one. Number words count only as the first word: "no one" is not 1."""
    found = []
    for place, word in enumerate(given):
        value = float(word) if _NUMBER.fullmatch(word) else _WORDS.get(word) if place == 0 else None
        if value is not None:
            following = given[place + 1] if place + 1 < len(given) else ""
            found.append(value * _SCALES.get(following, 1.0))
    return found


def _judge_compat(answer: str, gold: Sequence[str]) -> bool:
    given = _normalise_compat(answer)
    aliases = [_normalise_compat(alias) for alias in gold]
    return any(given == alias or (len(alias) >= _COMPAT_MIN_CHARS and alias in given) for alias in aliases)


def _normalise_compat(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_ASCII_PUNCTUATION)).split())
