"""The two prompts: closed-book and open-book. Their digest is part of a calibrator's identity.

Questions and passages are data. They are put into a template in a single pass, so that neither can bring a
placeholder of its own; a passage is one line, so that it cannot pretend to be the next one; and what a chat template
marks turns with is taken apart, so that neither can pretend to be somebody else's.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

_PLACEHOLDER = re.compile(r"\{(question|passages)\}")
# How common chat templates begin a marker: <|im_start|>, <|eot_id|>, <start_of_turn>, [INST], </s> and such, some with
# a wide bar. Readers turn them into control tokens wherever in a prompt they stand.
_MARKER = re.compile(r"<(?=[|｜]|/?(?:s|bos|eos|start_of_turn|end_of_turn)>)|\[(?=/?(?:INST|SYSTEM_PROMPT)\])")
_TURNS_SEARCHED = 2
_MAX_QUERY_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Prompts:
    """A pair of templates: `closed_book` names {question}, `open_book` names {question} and {passages}."""

    closed_book: str
    open_book: str

    def __post_init__(self) -> None:
        if "{question}" not in self.closed_book or "{passages}" in self.closed_book:
            raise ValueError("the closed-book template must name {question} and not {passages}")
        if "{question}" not in self.open_book or "{passages}" not in self.open_book:
            raise ValueError("the open-book template must name {question} and {passages}")

    def render(self, question: str, passages: Sequence[tuple[str, str]] = ()) -> str:
        """Fill the template in; passages are (title, text), numbered from 1, best first."""
        lines = [f"[{i}] {_one_line(title, text)}" for i, (title, text) in enumerate(passages, start=1)]
        values = {"question": break_markers(_flat(question)), "passages": "\n".join(lines)}
        template = self.open_book if passages else self.closed_book
        return _PLACEHOLDER.sub(lambda match: values[match[1]], template)

    @property
    def digest(self) -> str:
        """Sixteen hex digits that change with any character of either template."""
        return hashlib.sha256(f"{self.closed_book}\0{self.open_book}".encode()).hexdigest()[:16]


def search_query(question: str, said: Sequence[str] = ()) -> str:
    """What to search for: the question, and what its asker said before it, the newest first.

    "And of Italy?" finds nothing by itself. The question comes first because embedders cut off the end of what is too
    long for them, and no more than two turns join it, because they would drown it.
    """
    if not said:
        return question
    query = "\n".join((question, *reversed(said[-_TURNS_SEARCHED:])))
    return query[: max(len(question), _MAX_QUERY_CHARS)]


def break_markers(text: str) -> str:
    """The text with a space inside whatever a reader would take for a control token; any other text as it is."""
    return _MARKER.sub(r"\g<0> ", text) if "<" in text or "[" in text else text


def _one_line(title: str, text: str) -> str:
    heading, body = _flat(title), _flat(text)
    return break_markers(f"{heading}: {body}" if heading else body)


def _flat(text: str) -> str:
    """The words with one space between them."""
    # Of all white space only the plain space is printable; most texts have nothing else, one at a time.
    if text.isprintable() and "  " not in text:
        return text.strip(" ")
    return " ".join(text.split())


# Worded by what the embedded reader answered best on the demo world's train split; it is sensitive to small changes.
DEFAULT = Prompts(
    closed_book="Answer the question in a few words.\n\nQuestion: {question}",
    open_book="{passages}\n\nAnswer in a few words from the passages above.\n\n{question}",
)
