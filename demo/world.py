"""The types of the demo world: passages, facts, and questions about them."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Popularity = Literal["head", "torso", "tail"]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Passage:
    """A short text that stands alone: every key sentence names its subject."""

    id: str
    title: str
    text: str
    topic: str


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact, with two ways to ask for it.

    `passage` is the passage that answers, or None if the encyclopedia leaves the fact out on purpose.
    """

    relation: str
    key: str
    subject: str
    questions: tuple[str, str]
    gold: tuple[str, ...]
    topic: str
    popularity: Popularity
    passage: str | None


# Letters that Unicode does not decompose into a base and an accent.
STROKED = str.maketrans({"ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ı": "i", "’": "'"})


def fold(text: str) -> str:
    """Strip accents, so that "Bogotá" and "Bogota" are the same answer."""
    apart = unicodedata.normalize("NFKD", text.translate(STROKED))
    return "".join(c for c in apart if not unicodedata.combining(c))


def slug(text: str) -> str:
    """Make a readable identifier from a name."""
    return re.sub(r"[^a-z0-9]+", "-", fold(text).lower().replace("'", "")).strip("-")


def normalise(text: str) -> str:
    """Reduce a text to lower-case words, as used to compare answers."""
    plain = fold(text).lower().translate(str.maketrans("", "", string.punctuation + "ʼ"))
    return " ".join(word for word in plain.split() if word not in {"a", "an", "the"})


def mentions(text: str, answer: str) -> bool:
    """Whether the answer occurs in the text as whole words."""
    return f" {normalise(answer)} " in f" {normalise(text)} "


def variants(names: Iterable[str]) -> tuple[str, ...]:
    """Add equivalent spellings: without accents, with spaces for hyphens, Saint for St."""
    spellings: list[str] = []
    for name in names:
        for form in (name, fold(name), name.replace("-", " ")):
            spellings.append(form)
            if form.startswith("St. "):
                spellings.append("Saint " + form[4:])
            if form.startswith("Saint "):
                spellings.append("St. " + form[6:])
    return tuple(dict.fromkeys(spellings))


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """Take `count` items at even steps, so that a subset keeps the mix of well and little known."""
    if count >= len(items):
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def listing(names: Sequence[str]) -> str:
    """Join names the way a sentence does."""
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " and " + names[-1]


def sentence(text: str) -> str:
    """Capitalise the first letter and keep the rest."""
    return text[:1].upper() + text[1:]


def about(number: int) -> str:
    """Round a population, since the exact figure is out of date anyway."""
    if number >= 1_000_000_000:
        return f"{number / 1e9:.1f} billion"
    if number >= 1_000_000:
        return f"{number / 1e6:.1f} million"
    step = 1000 if number >= 10_000 else 100
    return f"{round(number / step) * step:,}"


def ordinal(number: int) -> str:
    """Write 1st, 2nd, 3rd, 11th."""
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
