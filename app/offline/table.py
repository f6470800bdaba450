"""The outcome table in memory: one row per question, one numpy column per number.

Anything wrong with a file raises a `DataError` that names the line and how to fix it.
"""

import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from app.core.artifact import Identity
from app.core.labels import normalise
from app.core.policy import DEFAULT_KS
from app.errors import DataError

Floats = NDArray[np.float64]
Labels = NDArray[np.bool_]
_FACTS = ("prompt_tokens", "completion_tokens", "ms")
_IS_K = re.compile(r"k\d+")


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Columns of n rows. A missing number is NaN; a table loaded without texts has no questions and answers."""

    # None: the table can be evaluated, but an artifact fitted on it is never served.
    identity: Identity | None
    ids: list[str]
    groups: list[str]
    questions: list[str]
    gold: list[list[str]]
    tags: list[dict[str, Any]]
    # The numbers of passages that a policy chooses among: none, few, many. The columns may have further ones.
    ks: tuple[int, int, int]
    answers: dict[int, list[str]]
    correct: dict[int, Labels]
    signals: dict[int, dict[str, Floats]]
    prompt_tokens: dict[int, Floats]
    completion_tokens: dict[int, Floats]
    ms: dict[int, Floats]
    # When the first and the last question was asked, as ISO 8601 in UTC; None if no row has a time.
    first: str | None = None
    last: str | None = None

    def __len__(self) -> int:
        """The number of questions."""
        return len(self.ids)

    def take(self, index: NDArray[np.intp]) -> "Outcomes":
        """The rows at `index`, in its order."""
        rows = index.tolist()

        def pick(column: list[Any]) -> list[Any]:
            return [column[row] for row in rows] if column else []

        def pick_each(columns: dict[int, Any]) -> dict[int, Any]:
            return {k: column[index] for k, column in columns.items()}

        return replace(
            self,
            ids=pick(self.ids),
            groups=pick(self.groups),
            questions=pick(self.questions),
            gold=pick(self.gold),
            tags=pick(self.tags),
            answers={k: pick(texts) for k, texts in self.answers.items()},
            correct=pick_each(self.correct),
            signals={k: {name: values[index] for name, values in named.items()} for k, named in self.signals.items()},
            prompt_tokens=pick_each(self.prompt_tokens),
            completion_tokens=pick_each(self.completion_tokens),
            ms=pick_each(self.ms),
        )


def normalise_group(question: str) -> str:
    """The group of a question without one: its normalised words, so that two spellings share a group."""
    return normalise(question) or question


def read_identity(given: object) -> Identity:
    """Read the identity in a table's first line; ValueError if its fields are not those of `Identity`."""
    names = {part.name for part in fields(Identity)}
    if not isinstance(given, dict) or given.keys() != names:
        raise ValueError(f"identity must hold exactly {', '.join(sorted(names))}")
    return Identity(**(given | {"stop": tuple(given["stop"]), "ks": tuple(given["ks"])}))


def load(path: Path, *, texts: bool = True) -> Outcomes:
    """Read a whole `.jsonl` or `.jsonl.gz` outcome table.

    Without `texts` it has no questions, gold answers, answers and tags: fitting does not need them.
    """
    builder = TableBuilder(texts=texts)
    for place, row in read_lines(path):
        if "schema" in row and "id" not in row:
            builder.begin(row, place)
        else:
            builder.add(row, place)
    return builder.finish(path)


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in a `.jsonl` or `.jsonl.gz` file, each with its place as `file:line`; blank lines are skipped."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    place = f"{path}:{number}"
                    yield place, _parse(line, place)
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({error}): name a complete .jsonl or .jsonl.gz file") from error


def _parse(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if b"NaN" in line or b"Infinity" in line:
            raise DataError(f"{place}: JSON has no NaN and no Infinity: write null for a missing signal") from error
        raise DataError(f"{place}: not a complete JSON object ({error.msg}): fix or delete the line") from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: not a JSON object: fix or delete the line")
    return row


def not_a_number(signals: Mapping[str, Any]) -> str | None:
    """The name of the first signal that is neither a number nor null."""
    return next((name for name, value in signals.items() if value is not None and not _is_number(value)), None)


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
    """A column for every signal that any row has; NaN in rows without it."""
    names = sorted({name for row in rows for name in row})
    return {name: np.array([row.get(name) for row in rows], dtype=np.float64) for name in names}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class TableBuilder:
    """Builds a table from rows of a file or of the decision log; a wrong row raises a DataError with its place."""

    def __init__(self, *, texts: bool, identity: Identity | None = None) -> None:
        self._texts = texts
        self._identity = identity
        self._ids: dict[str, str] = {}
        self._groups: list[str] = []
        self._questions: list[str] = []
        self._gold: list[list[str]] = []
        self._tags: list[dict[str, Any]] = []
        # By k, as in "k5": one entry per row.
        self._answers: dict[str, list[str]] = {}
        self._correct: dict[str, list[bool]] = {}
        self._signals: dict[str, list[dict[str, float | None]]] = {}
        self._facts: dict[str, dict[str, list[float | None]]] = {}
        self._first: str | None = None
        self._last: str | None = None

    @property
    def _ks(self) -> tuple[int, ...]:
        """The numbers of passages that every row must have."""
        return DEFAULT_KS if self._identity is None else self._identity.ks

    def begin(self, head: dict[str, Any], place: str) -> None:
        """Read the first line of a file, which says what system was asked."""
        if self._ids or self._identity:
            raise DataError(f"{place}: a second identity line: two tables were joined; refit each on its own")
        if head["schema"] != 1:
            raise DataError(f"{place}: outcome schema {head['schema']!r} is not supported: collect the table again")
        given = head.get("identity")
        if given is None:
            return
        try:
            self._identity = read_identity(given)
        except ValueError as error:
            raise DataError(f"{place}: {error}: collect the table again") from error
        if len(self._ks) < len(DEFAULT_KS) or self._ks[0] != 0:
            raise DataError(f"{place}: ks is {list(self._ks)}: a policy needs 0 and two numbers of passages above it")

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
        ks = self._ks
        return Outcomes(
            identity=self._identity,
            ids=list(self._ids),
            groups=self._groups,
            questions=self._questions,
            gold=self._gold,
            tags=self._tags,
            ks=(ks[0], ks[1], ks[-1]),
            answers={k: self._answers[key] for k, key in by_k.items()},
            correct={k: np.array(self._correct[key], dtype=np.bool_) for k, key in by_k.items()},
            signals={k: columns(self._signals[key]) for k, key in by_k.items()},
            first=self._first,
            last=self._last,
            **facts,
        )

    def _add_columns(self, row: dict[str, Any]) -> None:
        found = {key for key in row if _IS_K.fullmatch(key)} | {f"k{k}" for k in self._ks}
        for key in sorted(found, key=lambda key: int(key[1:])):
            self._answers[key], self._correct[key], self._signals[key] = [], [], []
            self._facts[key] = {fact: [] for fact in _FACTS}

    def _add_cell(self, key: str, cell: object, place: str) -> None:
        if not isinstance(cell, dict):
            raise DataError(f"{place}: {key} is missing: collect the row again, every k at once")
        label = cell.get("correct")
        if label is not True and label is not False and (label not in (0, 1) or isinstance(label, float)):
            raise DataError(f"{place}: {key}.correct is {label!r}: write true or false")
        self._correct[key].append(bool(label))
        signals = cell.get("signals") or {}
        if (wrong := not_a_number(signals)) is not None:
            raise DataError(
                f"{place}: {key}.signals.{wrong} is {signals[wrong]!r}, not a number: write null for a missing signal"
            )
        self._signals[key].append(signals)
        for fact, column in self._facts[key].items():
            value = cell.get(fact)
            if value is not None and not _is_number(value):
                raise DataError(f"{place}: {key}.{fact} is {value!r}: write a number, or leave it out")
            column.append(value)
        if self._texts:
            self._answers[key].append(cell.get("answer") or "")
