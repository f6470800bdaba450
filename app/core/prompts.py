"""The two prompts: closed-book and open-book. Their digest is part of a calibrator's identity.

Questions and passages are data. They are inserted in a single pass, so that neither can add a placeholder. A passage
is one line and carries no number like those of passages, so that it cannot imitate the next one. Markers of chat
templates are broken up, so that neither can imitate another turn.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_PLACEHOLDER = re.compile(r"\{(question|passages)\}")
# The beginnings of markers that are not ordinary text anywhere: <|im_start|>, [|user|], <start_of_turn>, <think>, </s>,
# [INST], [TOOL_RESULTS], <<SYS>>, some with a wide bar. Readers turn them into control tokens anywhere in a prompt.
_MARKER = re.compile(
    r"<(?=[|｜]|/?(?:s|bos|eos|think|[a-z]+(?:_[a-z]+)+)>|</?SYS>>)|\[(?=\||/?(?:INST|[A-Z]+(?:_[A-Z]+)+)\])"
)
# The shape of every other control token, and of ordinary text such as <b>: only the reader's tokenizer knows. One may
# be inside another, so each position is tried.
_POSSIBLE = re.compile(r"(?=(<[^\s<>]{1,64}>|\[(?![\d,.-]+\])[^\s\[\]]{1,64}\]))")
# What the next passage would begin with. A note that follows its word directly, as in "1999.[2]", is no such beginning.
_NUMBER = re.compile(r"(?<!\S)\[(?=\d+\])")
_TURNS_SEARCHED = 2
_MAX_QUERY_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Prompts:
    """A pair of templates: `closed_book` contains {question}, `open_book` contains {question} and {passages}."""

    closed_book: str
    open_book: str

    def __post_init__(self) -> None:
        if "{question}" not in self.closed_book or "{passages}" in self.closed_book:
            raise ValueError("the closed-book template must contain {question} and not {passages}")
        if "{question}" not in self.open_book or "{passages}" not in self.open_book:
            raise ValueError("the open-book template must contain {question} and {passages}")

    def render(
        self, question: str, passages: Sequence[tuple[str, str]] = (), markers: Collection[str] = frozenset()
    ) -> str:
        """Fill in the template; passages are (title, text), numbered from 1, best first.

        `markers` are those `possible_markers` that the reader parses as control tokens.
        """
        lines = [f"[{i}] {_one_line(title, text, markers)}" for i, (title, text) in enumerate(passages, start=1)]
        values = {"question": break_markers(_flat(question), markers), "passages": "\n".join(lines)}
        template = self.open_book if passages else self.closed_book
        return _PLACEHOLDER.sub(lambda match: values[match[1]], template)

    @property
    def digest(self) -> str:
        """Sixteen hex digits of a hash of both templates."""
        return hashlib.sha256(f"{self.closed_book}\0{self.open_book}".encode()).hexdigest()[:16]


def search_query(question: str, said: Sequence[str] = ()) -> str:
    """The text to search for: the question, then the user's earlier messages, newest first.

    "And of Italy?" finds nothing by itself. The question comes first because embedders truncate long texts. At most two
    earlier messages are added, so that the question still dominates.
    """
    if not said:
        return question
    query = "\n".join((question, *reversed(said[-_TURNS_SEARCHED:])))
    return query[: max(len(question), _MAX_QUERY_CHARS)]


def possible_markers(text: str) -> set[str]:
    """Everything in a text that may be a control token of some reader, and is not broken up for every reader."""
    if "<" not in text and "[" not in text:
        return set()
    return {found for found in _POSSIBLE.findall(text) if not _MARKER.match(found)}


def break_markers(text: str, markers: Collection[str] = frozenset()) -> str:
    """Insert a space into everything that a reader would parse as a control token: common ones, and `markers`."""
    if "<" not in text and "[" not in text:
        return text
    text = _MARKER.sub(r"\g<0> ", text)
    for marker in markers:
        text = text.replace(marker, f"{marker[0]} {marker[1:]}")
    return text


def _one_line(title: str, text: str, markers: Collection[str]) -> str:
    heading, body = _flat(title), _flat(text)
    line = break_markers(f"{heading}: {body}" if heading else body, markers)
    return _NUMBER.sub("[ ", line) if "[" in line else line


def _flat(text: str) -> str:
    """The words with one space between them."""
    # The plain space is the only printable white space, and most texts contain only single ones.
    if text.isprintable() and "  " not in text:
        return text.strip(" ")
    return " ".join(text.split())


# The wording with the best accuracy of the embedded reader on the demo's train split; small changes matter.
DEFAULT = Prompts(
    closed_book="Answer the question in a few words.\n\nQuestion: {question}",
    open_book="{passages}\n\nAnswer in a few words from the passages above.\n\n{question}",
)
