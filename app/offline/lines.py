"""The lines of an outcome table: how a file is read, its first line, and the numbers of a row as they are stored.

The first line says which system was asked and how, and counts the words of the corpus, by which evidence weighs words.
Anything wrong with a file raises a `DataError` that names the line and how to fix it.
"""

import base64
import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from app.core.artifact import Identity
from app.core.available import Answer, Available, Usage
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.core.labels import Rule
from app.core.policy import DEFAULT_KS
from app.core.signals import ALL_NAMES
from app.errors import DataError

SCHEMA = 2
# Tables of these schemas can be read. Schema 1 has no evidence, no vectors and no word counts.
_READABLE = (1, SCHEMA)
# Questions are compared by their vectors' direction, for which half precision is enough.
_VECTOR = np.dtype("<f2")
UPGRADE = "`fetchwise tables upgrade` adds it"


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of a table."""

    # None: the table can be evaluated, but an artifact fitted on it is never served.
    identity: Identity | None = None
    # Every k that was asked; a policy chooses among those of the identity.
    ks: tuple[int, ...] = DEFAULT_KS
    rule: Rule = "tokens"
    trigger: bool = False
    # Without centroids; empty if the table has no word counts.
    stats: CorpusStats = NO_STATS
    schema: int = SCHEMA

    @property
    def rungs(self) -> tuple[int, ...]:
        """The numbers of passages that a policy chooses among."""
        return DEFAULT_KS if self.identity is None else self.identity.ks

    @classmethod
    def read(cls, line: Mapping[str, Any], place: str) -> "Head":
        """Read a table's first line; a DataError if it is of another schema, or incomplete."""
        if line["schema"] not in _READABLE:
            raise DataError(f"{place}: outcome schema {line['schema']!r} is not supported: collect the table again")
        try:
            given = line.get("identity")
            identity = None if given is None else read_identity(given)
            rungs = DEFAULT_KS if identity is None else identity.ks
            ks = tuple(int(k) for k in line.get("ks") or rungs)
            corpus = line.get("corpus")
            stats = NO_STATS if corpus is None else CorpusStats(int(corpus["passages"]), dict(corpus["counts"]))
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{place}: {error}: collect the table again") from error
        if len(rungs) < 2 or rungs[0] != 0 or list(rungs) != sorted(set(rungs)):
            raise DataError(f"{place}: ks is {list(rungs)}: a policy needs 0 and rising numbers of passages above it")
        rule: Rule = "compat" if line.get("rule") == "compat" else "tokens"
        return cls(identity, ks, rule, line.get("trigger") is True, stats, line["schema"])

    @property
    def options(self) -> dict[str, Any]:
        """What the rows depend on besides the identity and the corpus."""
        return {"rule": self.rule, "ks": list(self.ks), "trigger": self.trigger}

    def to_line(self) -> dict[str, Any]:
        """The line as it is written, always in the current schema."""
        identity = None if self.identity is None else asdict(self.identity)
        corpus = {"passages": self.stats.passages, "counts": dict(sorted(self.stats.counts.items()))}
        return {"schema": SCHEMA, "identity": identity} | self.options | {"corpus": corpus}


def read_identity(given: object) -> Identity:
    """Read the identity in a table's first line; ValueError if its fields are not those of `Identity`."""
    names = {part.name for part in fields(Identity)}
    if not isinstance(given, dict) or given.keys() != names:
        raise ValueError(f"identity must hold exactly {', '.join(sorted(names))}")
    return Identity(**(given | {"stop": tuple(given["stop"]), "ks": tuple(given["ks"])}))


def is_head(line: Mapping[str, Any]) -> bool:
    """Whether a line is the first of a table, and not a row."""
    return "schema" in line and "id" not in line


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


def is_number(value: object) -> bool:
    """Whether a value of JSON is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def not_a_number(named: Mapping[str, Any]) -> str | None:
    """The first name whose value is neither a number nor null."""
    return next((name for name, value in named.items() if value is not None and not is_number(value)), None)


def rounded(named: Mapping[str, float]) -> dict[str, float]:
    """Numbers as a row stores them: further digits differ between CPUs."""
    return {name: round(value, 7) for name, value in named.items()}


def write_vector(vector: Sequence[float]) -> str:
    """A question's embedding as a row stores it."""
    return base64.b64encode(np.asarray(vector, _VECTOR).tobytes()).decode()


def read_vector(text: object, place: str) -> NDArray[np.float32]:
    """Read what `write_vector` wrote."""
    try:
        vector = np.frombuffer(base64.b64decode(str(text), validate=True), _VECTOR).astype(np.float32)
    except ValueError as error:
        raise DataError(f"{place}: vector is not base64 of half-precision numbers: collect the row again") from error
    if not vector.size or not np.isfinite(vector).all():
        raise DataError(f"{place}: vector is empty or not finite: collect the row again")
    return vector


def evidence_of_answers(question: str, cells: Mapping[int, Mapping[str, Any]]) -> dict[str, float]:
    """The evidence that a row without stored evidence still has: signals, and how far its answers agree.

    What needs passages is absent, and what needs texts too where a cell has no answer.
    """
    available, found = Available.at_first(question, NO_STATS), dict[str, float]()
    for k, cell in sorted(cells.items()):
        signals = {name: value for name, value in (cell.get("signals") or {}).items() if value is not None}
        text, tokens = cell.get("answer"), cell.get("completion_tokens")
        if isinstance(text, str):
            usage = Usage(completion_tokens=0 if tokens is None else int(tokens))
            available = available.answered(Answer(k, text, signals, usage))
        found |= {f"k{k}.{name}": signals[name] for name in ALL_NAMES if name in signals}
    unknown = {f"k{k}.tokens" for k, cell in cells.items() if cell.get("completion_tokens") is None}
    return {name: value for name, value in ({**available.evidence} | found).items() if name not in unknown}
