"""Bring a table to the current schema without asking again: evidence, vectors and word counts from stored answers.

Passages are found by their ids in the file that was ingested; cosines are dot products of embeddings that are computed
again. Replies can be merged: answers that were asked for elsewhere replace those of rows, or add rows of new questions.
"""

import asyncio
import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from app.core.available import Answer, Passage, Usage, evidence_of
from app.core.corpus_stats import MAX_PASSAGES, CorpusStats
from app.corpus.documents import Skipped, read
from app.corpus.ingest import embedded_text, passages_of
from app.errors import DataError
from app.offline.lines import Head, is_head, not_a_number, read_lines, rounded, write_vector
from app.offline.questions import LabelledQuestion, label, read_questions
from app.ports import Embedder
from app.upstream.vectors.payload import point_id

_BATCH = 256
# Cosines that are computed again may differ by this much: batches and CPUs round differently.
_TOLERANCE = 1e-3
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Replies:
    """Answers from elsewhere: JSON lines of {id, cells: {k0: {answer, signals, ...}}, passages: [ids]}."""

    path: Path
    # Take only lines whose field `set` is one of these; empty: all lines.
    sets: frozenset[str] = frozenset()
    # Files of questions that may be added; labels of new rows come from them.
    questions: tuple[Path, ...] = ()
    # The longest answer that was allowed, if it differs from the table's.
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What was done: rows written, rows added, cells replaced, and notes for the person who runs it."""

    rows: int
    added: int
    replaced: int
    notes: tuple[str, ...]


async def upgrade(
    table: Path,
    out: Path,
    *,
    passages: Path,
    embedder: Embedder,
    replies: Replies | None = None,
    only_new: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Upgraded:
    """Write a table in the current schema. `only_new` writes added rows alone: a new table of the same system."""
    head, rows = read_table(table)
    known = len(rows)
    if head.identity is not None and embedder.name != head.identity.embedder:
        raise DataError(
            f"{table}:1: was collected with the embedder {head.identity.embedder}, the settings name {embedder.name}: "
            "set FETCHWISE_EMBEDDER to the one of the table"
        )
    replaced, notes = set[tuple[str, str]](), list[str]()
    if replies is not None:
        replaced, notes = merge(head, rows, replies)
        if replies.max_tokens is not None and head.identity is not None:
            if not only_new and replies.max_tokens != head.identity.max_tokens:
                _check_cut(list(rows.values())[:known], replaced, head.identity.max_tokens)
            head = replace(head, identity=replace(head.identity, max_tokens=replies.max_tokens))
    wanted = list(rows.values())[known if only_new else 0 :]
    if not wanted:
        raise DataError(f"{out}: no rows to write: name --replies with answers to questions that {table} does not have")
    on_progress("reading passages")
    corpus = read_passages(passages)
    head = replace(head, stats=count_words(corpus.values()))
    on_progress("embedding")
    by_id = await _embed_passages(embedder, corpus, wanted, passages)
    unordered = 0
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        vectors = await asyncio.gather(*(embedder.embed_query(row["question"]) for row in batch))
        for row, vector in zip(batch, vectors, strict=True):
            unordered += _add_evidence(row, head, vector, corpus, by_id)
        on_progress(f"{min(start + _BATCH, len(wanted))} of {len(wanted)} rows")
    if unordered:
        notes.append(f"{unordered} rows: passages are not in the order of their cosines: is it the same embedder?")
    write_table(out, head, wanted)
    return Upgraded(len(wanted), len(rows) - known, len(replaced), tuple(notes))


def read_table(path: Path) -> tuple[Head, dict[str, Row]]:
    """The first line and the rows of a table, by id."""
    lines = list(read_lines(path))
    if not lines or not is_head(lines[0][1]):
        raise DataError(f"{path}: has no first line that names the system: it cannot be upgraded, collect it again")
    return Head.read(lines[0][1], lines[0][0]), {str(row["id"]): row for _, row in lines[1:]}


def write_table(path: Path, head: Head, rows: Iterable[Row]) -> None:
    """Write a `.jsonl` or `.jsonl.gz` table; the same rows give the same bytes."""
    content = b"".join(orjson.dumps(line) + b"\n" for line in (head.to_line(), *rows))
    temporary = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    temporary.rename(path)


def read_passages(path: Path) -> dict[str, Passage]:
    """The passages of a file with the ids that `fetchwise ingest` gives them."""
    found: dict[str, Passage] = {}
    for item in read(path):
        if isinstance(item, Skipped):
            raise DataError(f"{item}: name the file that was ingested")
        found |= {passage.id: passage for passage in passages_of(item)}
    return found


def count_words(passages: Iterable[Passage]) -> CorpusStats:
    """The same counts as `collect` makes of a collection with these passages."""
    drawn = sorted(passages, key=lambda passage: point_id(passage.id))[:MAX_PASSAGES]
    return CorpusStats.of((passage.title, passage.text) for passage in drawn)


def merge(head: Head, rows: dict[str, Row], replies: Replies) -> tuple[set[tuple[str, str]], list[str]]:
    """Replace cells of rows, and append rows of new questions; returns the id and key of replaced cells, and notes."""
    questions = {one.id: one for path in replies.questions for one in read_questions(path)}
    keys = [f"k{k}" for k in head.ks]
    replaced, seen, new = set[tuple[str, str]](), set[str](), list[Row]()
    for place, reply in read_lines(replies.path):
        if replies.sets and reply.get("set") not in replies.sets:
            continue
        identifier, cells = str(reply.get("id")), reply.get("cells")
        if not isinstance(cells, dict) or not cells or not cells.keys() <= set(keys):
            raise DataError(f"{place}: `cells` must hold some of {', '.join(keys)}: fix or delete the line")
        if identifier in seen:
            raise DataError(f"{place}: a second reply for {identifier!r}: delete one, or choose with --set")
        seen.add(identifier)
        row = rows.get(identifier)
        if row is None:
            row = _new_row(questions.get(identifier), reply, keys, place)
            new.append(row)
        else:
            _check_passages(row, reply, place)
            replaced |= {(identifier, key) for key in cells}
        for key, cell in cells.items():
            row[key] = _cell(cell, row, head, f"{place}: {key}")
    order = {identifier: number for number, identifier in enumerate(questions)}
    rows |= {row["id"]: row for row in sorted(new, key=lambda row: order[row["id"]])}
    missing = sum(identifier not in rows for identifier in questions)
    return replaced, [f"{missing} questions have neither a row nor a reply, and are left out"] if missing else []


def _new_row(question: LabelledQuestion | None, reply: Mapping[str, Any], keys: list[str], place: str) -> Row:
    identifier = str(reply.get("id"))
    if question is None:
        raise DataError(
            f"{place}: the id {identifier!r} is neither in the table nor in a file of --questions: name the file that "
            "has it, choose other replies with --set, or delete the line"
        )
    missing = [key for key in keys if key not in reply["cells"]]
    if missing or not reply.get("passages"):
        what = ", ".join([*missing, *([] if reply.get("passages") else ["passages"])])
        raise DataError(f"{place}: a new row needs every cell and its passages, without {what}: ask it again")
    at = {"at": reply["at"]} if "at" in reply else {}
    return question.to_row() | at | dict.fromkeys(keys) | {"passages": list(reply["passages"])}


def _check_passages(row: Row, reply: Mapping[str, Any], place: str) -> None:
    """Answers of one row are about the same passages."""
    read_some = any(key != "k0" for key in reply["cells"])
    if read_some and "passages" in reply and list(reply["passages"]) != list(row.get("passages") or []):
        raise DataError(f"{place}: was answered from other passages than its row: ask it again on the same collection")


def _cell(cell: Mapping[str, Any], row: Row, head: Head, place: str) -> Row:
    answer, signals = cell.get("answer"), cell.get("signals")
    if not isinstance(answer, str) or not isinstance(signals, dict) or not_a_number(signals) is not None:
        raise DataError(f"{place} needs a text `answer` and `signals` that are numbers: ask it again")
    if not answer.strip() and signals:
        raise DataError(f"{place}: the answer is empty but has signals: ask it again, or leave its signals out")
    names = ("prompt_tokens", "completion_tokens", "ms", "passages_read")
    facts = {name: cell[name] for name in names if name in cell}
    cut = {"truncated": True} if cell.get("truncated") else {}
    return {"answer": answer, "correct": label(row, answer, head.rule), "signals": rounded(signals)} | facts | cut


def _check_cut(rows: Iterable[Row], replaced: set[tuple[str, str]], limit: int) -> None:
    """An answer that the table's own limit cut off is not the one that a higher limit gives."""
    cut = {
        row["id"]
        for row in rows
        for k, cell in _cells(row).items()
        if int(cell.get("completion_tokens") or 0) >= limit and (row["id"], f"k{k}") not in replaced
    }
    if cut:
        raise DataError(
            f"{len(cut)} rows, such as {min(cut)!r}, have answers that the limit of {limit} tokens cut off, and no "
            "reply with another limit: ask them again, and add them to --replies"
        )


def _cells(row: Row) -> dict[int, Row]:
    return {int(key[1:]): cell for key, cell in row.items() if key[0] == "k" and key[1:].isdecimal()}


async def _embed_passages(
    embedder: Embedder, corpus: Mapping[str, Passage], rows: Sequence[Row], path: Path
) -> dict[str, NDArray[np.float32]]:
    """The vectors of all passages that rows name."""
    ids = list(dict.fromkeys(identifier for row in rows for identifier in row.get("passages") or ()))
    for row in rows:
        unknown = [identifier for identifier in row.get("passages") or () if identifier not in corpus]
        if unknown:
            raise DataError(
                f"{path}: has no passage {unknown[0]}, which row {row['id']!r} read: name the ingested file"
            )
        most = max(_cells(row))
        if len(row.get("passages") or ()) < min(most, len(corpus)):
            found = len(row.get("passages") or ())
            raise DataError(f"row {row['id']!r} names {found} passages, fewer than k={most}: collect it again")
    vectors: list[Sequence[float]] = []
    for start in range(0, len(ids), _BATCH):
        vectors += await embedder.embed_passages([embedded_text(corpus[one]) for one in ids[start : start + _BATCH]])
    return {one: np.asarray(vector, np.float32) for one, vector in zip(ids, vectors, strict=True)}


def _add_evidence(
    row: Row,
    head: Head,
    vector: Sequence[float],
    corpus: Mapping[str, Passage],
    by_id: Mapping[str, NDArray[np.float32]],
) -> bool:
    """Add evidence and vector to a row; whether its passages are in another order than their cosines."""
    asked = np.asarray(vector, np.float32)
    found = [replace(corpus[one], score=float(by_id[one] @ asked)) for one in row["passages"]]
    limit = head.identity.max_tokens if head.identity else 0
    for cell in _cells(row).values():
        # Tables of schema 1 have no marks.
        if "truncated" not in cell and limit and int(cell.get("completion_tokens") or 0) >= limit:
            cell["truncated"] = True
    answers = [_answer(k, cell) for k, cell in _cells(row).items()]
    row["evidence"] = rounded(evidence_of(row["question"], head.stats, vector, found, answers))
    row["vector"] = write_vector(vector)
    return any(one.score < other.score - _TOLERANCE for one, other in pairwise(found))


def _answer(k: int, cell: Mapping[str, Any]) -> Answer:
    signals = {name: value for name, value in cell["signals"].items() if value is not None}
    usage = Usage(int(cell.get("prompt_tokens") or 0), int(cell.get("completion_tokens") or 0))
    return Answer(k, cell["answer"], signals, usage, int(cell.get("passages_read", k)), cell.get("truncated") is True)
