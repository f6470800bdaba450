"""The two prompts: closed-book and open-book. Their digest is part of a calibrator's identity.

Questions and passages are data. They are put into a template in a single pass, so that neither can bring a
placeholder of its own, and a passage is one line, so that it cannot pretend to be the next one.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

_PLACEHOLDER = re.compile(r"\{(question|passages)\}")


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
        values = {"question": " ".join(question.split()), "passages": "\n".join(lines)}
        template = self.open_book if passages else self.closed_book
        return _PLACEHOLDER.sub(lambda match: values[match[1]], template)

    @property
    def digest(self) -> str:
        """Sixteen hex digits that change with any character of either template."""
        return hashlib.sha256(f"{self.closed_book}\0{self.open_book}".encode()).hexdigest()[:16]


def _one_line(title: str, text: str) -> str:
    heading, body = " ".join(title.split()), " ".join(text.split())
    return f"{heading}: {body}" if heading else body


# Worded by what the embedded reader answered best on the demo world's train split; it is sensitive to small changes.
DEFAULT = Prompts(
    closed_book="Answer the question in a few words.\n\nQuestion: {question}",
    open_book="{passages}\n\nAnswer in a few words from the passages above.\n\n{question}",
)
