"""An operator's rules for questions that must be answered from passages: words that ask for what is new, or regulated.

Plain words and phrases, case-folded, on word boundaries: no pattern can be slow, and none needs escaping.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Mandatory:
    """Compiled rules: each phrase as its words, by the first of them."""

    phrases: dict[str, tuple[tuple[tuple[str, ...], str], ...]]

    def matches(self, question: str) -> str | None:
        """The first rule that the question holds, as the operator wrote it; None where there is none."""
        if not self.phrases:
            return None
        words = _words(question)
        for at, word in enumerate(words):
            for phrase, rule in self.phrases.get(word, ()):
                if tuple(words[at : at + len(phrase)]) == phrase:
                    return rule
        return None


def compile_rules(rules: Iterable[str]) -> Mandatory:
    """Make rules out of an operator's words and phrases; ValueError where one has no word in it."""
    phrases: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for rule in rules:
        words = tuple(_words(rule))
        if not words:
            raise ValueError(f"{rule!r} has no word that a question could hold")
        phrases.setdefault(words[0], []).append((words, rule))
    return Mandatory({first: tuple(each) for first, each in phrases.items()})


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
