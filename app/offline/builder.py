"""Outcome tables from rows: of a file, or of the decision log.

Anything wrong with a row raises a `DataError` that names the line and how to fix it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from app.core.labels import normalise
from app.errors import DataError
from app.offline.lines import (
    UPGRADE,
    Head,
    evidence_of_answers,
    is_head,
    is_number,
    not_a_number,
    read_lines,
    read_vector,
)
from app.offline.table import Floats, Outcomes, Vectors, normalise_group

_FACTS = ("prompt_tokens", "completion_tokens", "ms")
_IS_K = re.compile(r"k\d+")


def load(path: Path, *, texts: bool = True) -> Outcomes:
    """Read a whole `.jsonl` or `.jsonl.gz` outcome table.

    Without `texts` it has no questions, gold answers, answers and tags: fitting does not need them.
    """
    builder = TableBuilder(texts=texts)
    for place, row in read_lines(path):
        if is_head(row):
            builder.begin(row, place)
        else:
            builder.add(row, place)
    return builder.finish(path)


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
    """A column for every name that any row has; NaN in rows without it."""
    names = sorted({name for row in rows for name in row})
    return {name: np.array([row.get(name) for row in rows], dtype=np.float64) for name in names}


class TableBuilder:
    """Builds a table from rows of a file or of the decision log; a wrong row raises a DataError with its place."""

    def __init__(self, *, texts: bool, head: Head | None = None) -> None:
        self._texts = texts
        self._head = head
        self._ids: dict[str, str] = {}
        self._groups: list[str] = []
        self._questions: list[str] = []
        self._gold: list[list[str]] = []
        self._tags: list[dict[str, Any]] = []
        # By k, as in "k5": one entry per row.
        self._answers: dict[str, list[str]] = {}
        self._correct: dict[str, list[bool]] = {}
        self._unlabelled: dict[str, list[bool]] = {}
        self._alike: list[bool] = []
        self._signals: dict[str, list[dict[str, float | None]]] = {}
        self._facts: dict[str, dict[str, list[float | None]]] = {}
        self._extra = _Extra()
        self._first: str | None = None
        self._last: str | None = None

    @property
    def _ks(self) -> tuple[int, ...]:
        """The numbers of passages that every row must have."""
        return (self._head or Head()).rungs

    def begin(self, head: dict[str, Any], place: str) -> None:
        """Read the first line of a file, which says what system was asked."""
        if self._ids or self._head:
            raise DataError(f"{place}: a second identity line: two tables were joined; refit each on its own")
        self._head = Head.read(head, place)

    def add(self, row: dict[str, Any], place: str) -> None:
        """Append one question."""
        identifier, question = row.get("id"), row.get("question")
        if not isinstance(identifier, str) or not isinstance(question, str):
            raise DataError(f"{place}: a row needs the strings id and question: add them")
        if identifier in self._ids:
            first = self._ids[identifier]
            raise DataError(f"{place}: id {identifier!r} is already at {first}: delete one of the two, or rename it")
        if not self._signals:
            self._add_columns(row)
        for key in row:
            if key[:1] == "k" and key not in self._signals and _IS_K.fullmatch(key):
                raise DataError(f"{place}: {key} is not on the first row: collect {key} for all rows or for none")
        for key in self._signals:
            self._add_cell(key, row.get(key), place)
        judged = all(not column[-1] for column in self._unlabelled.values())
        self._alike.append(not judged and len({normalise(row[f"k{k}"].get("answer") or "") for k in self._ks}) == 1)
        self._extra.add(row, {int(key[1:]): row[key] for key in self._signals}, place)
        if isinstance(at := row.get("at"), str):
            self._first, self._last = min(self._first or at, at), max(self._last or at, at)
        self._ids[identifier] = place
        self._groups.append(str(row.get("group") or normalise_group(question)))
        if self._texts:
            self._questions.append(question)
            self._gold.append(row.get("gold") or [])
            self._tags.append(row.get("tags") or {})

    def finish(self, source: str | Path) -> Outcomes:
        """The table, which must have rows."""
        if not self._ids:
            raise DataError(f"{source}: no rows: collect outcomes into it first")
        by_k = {int(key[1:]): key for key in self._signals}
        facts = {
            fact: {k: np.array(self._facts[key][fact], dtype=np.float64) for k, key in by_k.items()} for fact in _FACTS
        }
        head = self._head or Head()
        return Outcomes(
            identity=head.identity,
            ids=list(self._ids),
            groups=self._groups,
            questions=self._questions,
            gold=self._gold,
            tags=self._tags,
            ks=self._ks,
            answers={k: self._answers[key] for k, key in by_k.items()},
            correct={k: np.array(self._correct[key], dtype=np.bool_) for k, key in by_k.items()},
            unlabelled={k: np.array(self._unlabelled[key], dtype=np.bool_) for k, key in by_k.items()}
            if any(map(any, self._unlabelled.values()))
            else {},
            alike=np.array(self._alike, dtype=np.bool_),
            signals={k: columns(self._signals[key]) for k, key in by_k.items()},
            evidence=columns(self._extra.evidence),
            out_of_corpus=np.array(self._extra.out_of_corpus, dtype=np.bool_),
            kinds=self._extra.kinds,
            vectors=self._extra.matrix,
            stats=head.stats,
            first=self._first,
            last=self._last,
            notes=self._extra.notes(source),
            prompt_tokens=facts["prompt_tokens"],
            completion_tokens=facts["completion_tokens"],
            ms=facts["ms"],
        )

    def _add_columns(self, row: dict[str, Any]) -> None:
        found = {key for key in row if _IS_K.fullmatch(key)} | {f"k{k}" for k in self._ks}
        for key in sorted(found, key=lambda key: int(key[1:])):
            self._answers[key], self._correct[key], self._signals[key], self._unlabelled[key] = [], [], [], []
            self._facts[key] = {fact: [] for fact in _FACTS}

    def _add_cell(self, key: str, cell: object, place: str) -> None:
        if not isinstance(cell, dict):
            raise DataError(f"{place}: {key} is missing: collect the row again, every k at once")
        label = cell.get("correct", "missing")
        if label is not None and not isinstance(label, bool) and (label not in (0, 1) or isinstance(label, float)):
            raise DataError(f"{place}: {key}.correct is {label!r}: write true or false, or null to label it later")
        self._correct[key].append(bool(label))
        self._unlabelled[key].append(label is None)
        signals = cell.get("signals") or {}
        if (wrong := not_a_number(signals)) is not None:
            raise DataError(
                f"{place}: {key}.signals.{wrong} is {signals[wrong]!r}, not a number: write null for a missing signal"
            )
        self._signals[key].append(signals)
        for fact, column in self._facts[key].items():
            value = cell.get(fact)
            if value is not None and not is_number(value):
                raise DataError(f"{place}: {key}.{fact} is {value!r}: write a number, or leave it out")
            column.append(value)
        if self._texts:
            self._answers[key].append(cell.get("answer") or "")


@dataclass(slots=True)
class _Extra:
    """What rows of schema 2 have in addition; made from signals and answers where a row has none."""

    evidence: list[dict[str, float]] = field(default_factory=list)
    out_of_corpus: list[bool] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    # The rows that have a vector.
    vectors: dict[int, Vectors] = field(default_factory=dict)
    empty: int = 0
    bare: int = 0

    def add(self, row: Mapping[str, Any], cells: Mapping[int, Mapping[str, Any]], place: str) -> None:
        stored = row.get("evidence")
        if stored is not None and (not isinstance(stored, dict) or not_a_number(stored) is not None):
            raise DataError(f"{place}: evidence is not an object of numbers: run `fetchwise tables upgrade` on it")
        self.bare += stored is None
        self.evidence.append(evidence_of_answers(str(row["question"]), cells) if stored is None else stored)
        if row.get("vector") is not None:
            vector = read_vector(row["vector"], place)
            if len(next(iter(self.vectors.values()), vector)) != len(vector):
                raise DataError(f"{place}: vector has {len(vector)} numbers, others have more or fewer: collect again")
            self.vectors[len(self.kinds)] = vector
        self.out_of_corpus.append(row.get("out_of_corpus") is True)
        self.kinds.append(str((row.get("tags") or {}).get("kind", "")))
        self.empty += sum(cell.get("answer") == "" for cell in cells.values())

    @property
    def matrix(self) -> Vectors | None:
        if not self.vectors:
            return None
        found = np.full((len(self.kinds), len(next(iter(self.vectors.values())))), np.nan, np.float32)
        for row, vector in self.vectors.items():
            found[row] = vector
        return found

    def notes(self, source: str | Path) -> tuple[str, ...]:
        bare = f"{source}: {self.bare} of {len(self.kinds)} rows have no evidence of passages: {UPGRADE}"
        empty = f"{source}: {self.empty} answers are empty: they have no signals, so no probability is predicted"
        return (*([bare] if self.bare else ()), *([empty] if self.empty else ()))
