"""The two prompts: closed-book and open-book. Their digest is part of a calibrator's identity.

Questions and passages are data. They are inserted in a single pass, so that neither can add a placeholder. A passage
is one line, so that it cannot imitate the next one. Markers of chat templates are broken up, so that neither can
imitate another turn.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

_PLACEHOLDER = re.compile(r"\{(question|passages)\}")
# The beginnings of common chat-template markers: <|im_start|>, <|eot_id|>, <start_of_turn>, [INST], </s>, some with a
# wide bar. Readers turn them into control tokens anywhere in a prompt.
_MARKER = re.compile(r"<(?=[|｜]|/?(?:s|bos|eos|start_of_turn|end_of_turn)>)|\[(?=/?(?:INST|SYSTEM_PROMPT)\])")
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

    def render(self, question: str, passages: Sequence[tuple[str, str]] = ()) -> str:
        """Fill in the template; passages are (title, text), numbered from 1, best first."""
        lines = [f"[{i}] {_one_line(title, text)}" for i, (title, text) in enumerate(passages, start=1)]
        values = {"question": break_markers(_flat(question)), "passages": "\n".join(lines)}
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


def break_markers(text: str) -> str:
    """Insert a space into everything that a reader would parse as a control token."""
    return _MARKER.sub(r"\g<0> ", text) if "<" in text or "[" in text else text


def _one_line(title: str, text: str) -> str:
    heading, body = _flat(title), _flat(text)
    return break_markers(f"{heading}: {body}" if heading else body)


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
