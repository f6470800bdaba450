"""The outcome table in memory: one row a question, one numpy column a number.

Every way in which a file can be wrong ends here, in a `DataError` that names the line and the remedy.
"""

import gzip
import re
from collections.abc import Iterable, Mapping, Sequence
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
    """Columns of n rows. Where a number is missing there is a NaN; loaded for fitting, the texts are empty."""

    # None: the table can be evaluated, and what is fitted on it is never served.
    identity: Identity | None
    ids: list[str]
    groups: list[str]
    questions: list[str]
    gold: list[list[str]]
    tags: list[dict[str, Any]]
    # The numbers of passages that a policy chooses among: none, few, many. The columns may hold further ones.
    ks: tuple[int, int, int]
    answers: dict[int, list[str]]
    correct: dict[int, Labels]
    signals: dict[int, dict[str, Floats]]
    prompt_tokens: dict[int, Floats]
    completion_tokens: dict[int, Floats]
    ms: dict[int, Floats]
    # When the first and the last question was asked, as ISO 8601 in UTC; None where no row says.
    first: str | None = None
    last: str | None = None

    def __len__(self) -> int:
        """How many questions."""
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
    """The group of a question that names none: its own words, so that two spellings of it never part."""
    return normalise(question) or question


def read_identity(given: object) -> Identity:
    """The identity of a table's first line; ValueError where a part is missing or too many."""
    names = {part.name for part in fields(Identity)}
    if not isinstance(given, dict) or given.keys() != names:
        raise ValueError(f"identity must hold exactly {', '.join(sorted(names))}")
    return Identity(**(given | {"stop": tuple(given["stop"]), "ks": tuple(given["ks"])}))


def load(path: Path, *, texts: bool = True) -> Outcomes:
    """Read a `.jsonl` or `.jsonl.gz` outcome table whole, or refuse it, naming the line and the remedy.

    Without `texts` questions, gold answers, answers and tags are left out, which fitting does not need.
    """
    try:
        builder = TableBuilder(path, texts=texts)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            builder.consume(lines)
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({error}): name a whole .jsonl or .jsonl.gz file") from error
    return builder.finish()


def not_a_number(signals: Mapping[str, Any]) -> str | None:
    """The name of a signal that is neither a number nor missing, if there is one."""
    return next((name for name, value in signals.items() if value is not None and not _is_number(value)), None)


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
    """Every signal that any row has, a NaN where a row does not have it."""
    names = sorted({name for row in rows for name in row})
    return {name: np.array([row.get(name) for row in rows], dtype=np.float64) for name in names}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class TableBuilder:
    """Takes rows one at a time, from the lines of a file or from elsewhere; the first wrong one ends it."""

    def __init__(self, source: str | Path, *, texts: bool, identity: Identity | None = None) -> None:
        self.source, self.texts = source, texts
        # Where the row at hand stands in the source: its line, or what else names it.
        self.number: int | str = 0
        self.identity = identity
        self.ids: dict[str, int | str] = {}
        self.groups: list[str] = []
        self.questions: list[str] = []
        self.gold: list[list[str]] = []
        self.tags: list[dict[str, Any]] = []
        self.keys: tuple[str, ...] = ()
        # By k: one entry a row.
        self.answers: dict[str, list[str]] = {}
        self.correct: dict[str, list[bool]] = {}
        self.signals: dict[str, list[dict[str, float | None]]] = {}
        self.facts: dict[str, dict[str, list[float | None]]] = {}
        self.first: str | None = None
        self.last: str | None = None

    def consume(self, lines: Iterable[bytes]) -> None:
        """Append every line of a file."""
        for number, line in enumerate(lines, 1):
            self.number = number
            row = self._parse(line)
            if row is None:
                continue
            if "schema" in row and "id" not in row:
                self._head(row)
            else:
                self.add(row)

    def finish(self) -> Outcomes:
        """The table, which must have a row by now."""
        if not self.ids:
            raise DataError(f"{self.source}: no rows: collect outcomes into it first")
        by_k = {int(key[1:]): key for key in self.keys}
        facts = {
            fact: {k: np.array(self.facts[key][fact], dtype=np.float64) for k, key in by_k.items()} for fact in _FACTS
        }
        ks = self._ks
        return Outcomes(
            identity=self.identity,
            ids=list(self.ids),
            groups=self.groups,
            questions=self.questions,
            gold=self.gold,
            tags=self.tags,
            ks=(ks[0], ks[1], ks[-1]),
            answers={k: self.answers[key] for k, key in by_k.items()},
            correct={k: np.array(self.correct[key], dtype=np.bool_) for k, key in by_k.items()},
            signals={k: columns(self.signals[key]) for k, key in by_k.items()},
            first=self.first,
            last=self.last,
            **facts,
        )

    @property
    def _ks(self) -> tuple[int, ...]:
        """The numbers of passages that every row must have."""
        return DEFAULT_KS if self.identity is None else self.identity.ks

    def _wrong(self, message: str) -> DataError:
        return DataError(f"{self.source}:{self.number}: {message}")

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if b"NaN" in line or b"Infinity" in line:
                raise self._wrong("a NaN or an infinity is no JSON number: write null for a missing signal") from error
            raise self._wrong(
                f"not a whole JSON object ({error.msg}): delete the line, or resume `collect`, which asks it again"
            ) from error
        if not isinstance(row, dict):
            raise self._wrong("a row must be a JSON object: delete the line")
        return row

    def _head(self, head: dict[str, Any]) -> None:
        if self.ids or self.identity:
            raise self._wrong("a second identity line: two tables were joined; refit each on its own")
        if head["schema"] != 1:
            raise self._wrong(f"outcome schema {head['schema']!r} is not known here: collect the table again")
        given = head.get("identity")
        if given is None:
            return
        try:
            self.identity = read_identity(given)
        except ValueError as error:
            raise self._wrong(f"{error}: collect the table again") from error
        if len(self.identity.ks) < len(DEFAULT_KS) or self.identity.ks[0] != 0:
            raise self._wrong(f"ks is {list(self.identity.ks)}: a policy needs 0 and two numbers of passages above it")

    def add(self, row: dict[str, Any]) -> None:
        """Append one question, as a line of a table has it."""
        identifier, question = row.get("id"), row.get("question")
        if not isinstance(identifier, str) or not isinstance(question, str):
            raise self._wrong("a row needs the strings id and question: add them")
        if identifier in self.ids:
            first = self.ids[identifier]
            raise self._wrong(f"id {identifier!r} was already on line {first}: delete one of the two, or rename it")
        if not self.keys:
            self._begin(row)
        for key in row:
            if key[:1] == "k" and key not in self.signals and _IS_K.fullmatch(key):
                raise self._wrong(f"{key} is here and not on the first row: collect {key} for all rows or for none")
        for key in self.keys:
            self._cell(key, row.get(key))
        if isinstance(at := row.get("at"), str):
            self.first, self.last = min(self.first or at, at), max(self.last or at, at)
        self.ids[identifier] = self.number
        self.groups.append(str(row.get("group") or normalise_group(question)))
        if self.texts:
            self.questions.append(question)
            self.gold.append(row.get("gold") or [])
            self.tags.append(row.get("tags") or {})

    def _begin(self, row: dict[str, Any]) -> None:
        found = {key for key in row if _IS_K.fullmatch(key)} | {f"k{k}" for k in self._ks}
        self.keys = tuple(sorted(found, key=lambda key: int(key[1:])))
        for key in self.keys:
            self.answers[key], self.correct[key], self.signals[key] = [], [], []
            self.facts[key] = {fact: [] for fact in _FACTS}

    def _cell(self, key: str, cell: object) -> None:
        if not isinstance(cell, dict):
            raise self._wrong(f"{key} is missing: collect the row again, every k at once")
        label = cell.get("correct")
        if label is not True and label is not False and (label not in (0, 1) or isinstance(label, float)):
            raise self._wrong(f"{key}.correct is {label!r}: write true or false")
        self.correct[key].append(bool(label))
        signals = cell.get("signals") or {}
        if (wrong := not_a_number(signals)) is not None:
            raise self._wrong(
                f"{key}.signals.{wrong} is {signals[wrong]!r}, not a number: write null for a missing signal"
            )
        self.signals[key].append(signals)
        for fact, column in self.facts[key].items():
            value = cell.get(fact)
            if value is not None and not _is_number(value):
                raise self._wrong(f"{key}.{fact} is {value!r}: write a number, or leave it out")
            column.append(value)
        if self.texts:
            self.answers[key].append(cell.get("answer") or "")
