"""An operator's rules for questions that must be answered from passages, such as questions about news or regulations.

A rule is a word or a phrase, matched case-insensitively on word boundaries. There are no patterns to escape or to slow
down a question.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Mandatory:
    """Compiled rules: each phrase as a list of words, indexed by its first word."""

    phrases: dict[str, tuple[tuple[tuple[str, ...], str], ...]]

    def matches(self, question: str) -> str | None:
        """The first rule that the question contains, as the operator wrote it; None if it contains none."""
        if not self.phrases:
            return None
        words = _words(question)
        for at, word in enumerate(words):
            for phrase, rule in self.phrases.get(word, ()):
                if tuple(words[at : at + len(phrase)]) == phrase:
                    return rule
        return None


def compile_rules(rules: Iterable[str]) -> Mandatory:
    """Compile an operator's words and phrases; ValueError if one contains no word."""
    phrases: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for rule in rules:
        words = tuple(_words(rule))
        if not words:
            raise ValueError(f"{rule!r} contains no word")
        phrases.setdefault(words[0], []).append((words, rule))
    return Mandatory({first: tuple(each) for first, each in phrases.items()})


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
