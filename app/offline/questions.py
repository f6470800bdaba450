"""Labelled questions: what `collect` asks, and how an answer becomes a cell of a row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.core.labels import Rule, is_right
from app.errors import DataError
from app.offline.lines import read_lines
from app.offline.table import normalise_group


@dataclass(frozen=True, slots=True)
class LabelledQuestion:
    """A question with the answers that count as right; questions about the same fact share a `group`."""

    id: str
    question: str
    gold: tuple[str, ...]
    group: str
    tags: dict[str, Any] = field(default_factory=dict)
    # The corpus cannot answer it, so that only a refusal is right.
    out_of_corpus: bool = False

    def to_row(self) -> dict[str, Any]:
        """The start of its row in a table."""
        row = {"id": self.id, "group": self.group, "question": self.question, "gold": list(self.gold)}
        return row | {"tags": self.tags} | ({"out_of_corpus": True} if self.out_of_corpus else {})


def read_questions(path: Path, *, label_later: bool = False) -> list[LabelledQuestion]:
    """Read JSON lines of {id?, group?, question, gold, tags?, out_of_corpus?}; without an id the line names it.

    With `label_later` a question needs no gold answers: a person judges what is answered.
    """
    questions: dict[str, LabelledQuestion] = {}
    for place, row in read_lines(path):
        text, gold, outside = row.get("question"), row.get("gold"), row.get("out_of_corpus") is True
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{place}: `question` is {text!r}: write a text")
        if label_later and gold is None:
            gold = []
        if not isinstance(gold, list) or not all(isinstance(answer, str) for answer in gold):
            raise DataError(f"{place}: `gold` is {gold!r}: write a list of texts")
        if bool(gold) == outside and (outside or not label_later):
            fix = "leave `gold` empty: only a refusal is right" if outside else "write a list of texts"
            raise DataError(f"{place}: `gold` is {gold!r} and `out_of_corpus` is {str(outside).lower()}: {fix}")
        identifier = str(row.get("id") or f"q{place.rpartition(':')[2]}")
        if identifier in questions:
            raise DataError(f"{place}: the id {identifier!r} is not unique: rename it")
        group = str(row.get("group") or normalise_group(text))
        tags = row.get("tags") or {}
        questions[identifier] = LabelledQuestion(identifier, text, tuple(gold), group, tags, outside)
    if not questions:
        raise DataError(f"{path}: has no questions")
    return list(questions.values())


def label(row: Mapping[str, Any], answer: str, rule: Rule) -> bool | None:
    """Whether an answer to the question of a row is right; None if a person has to judge it."""
    gold, outside = row.get("gold") or [], row.get("out_of_corpus") is True
    return is_right(answer, gold, rule, out_of_corpus=outside) if gold or outside else None
