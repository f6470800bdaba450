"""Asks every question at every k, through the same parts as the gateway, and writes the outcome table.

The table is append-only: one finished question is one line, so an interrupted run is resumed by running it again.
Its first line says which system was asked, and how: rows of another system, or judged by another rule, never join it.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any

import orjson

from app.answer.full_run import full_run
from app.core.artifact import Identity, mismatches
from app.core.labels import Rule, judge
from app.core.record import Outcome
from app.errors import DataError, NoPassages, PromptTooLong, UpstreamError
from app.offline.table import Outcomes, normalise_group, read_identity
from app.ports import Clock, Embedder, Prompt, Reader, Retriever

SCHEMA = 1
ATTEMPTS = 3
RETRY_S = 2.0
TRIGGER = "Do you need to look up the answer to this question? Answer yes or no: {question}"


@dataclass(frozen=True, slots=True)
class Labelled:
    """A question with the answers that count as right; `group` is the fact behind it."""

    id: str
    question: str
    gold: tuple[str, ...]
    group: str
    tags: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collected:
    """What a run did: asked now, found in the file from before, and given up on, each by its id and the reason."""

    asked: int
    known: int
    failed: tuple[tuple[str, str], ...]


def read_questions(path: Path) -> list[Labelled]:
    """Read JSON lines of {id?, group?, question, gold, tags?}; what is wrong is named by its line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): name a file of labelled questions") from error
    questions: dict[str, Labelled] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
            text, gold = row["question"], row["gold"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError(f"{path}:{number}: not a labelled question ({error}): mend or delete the line") from error
        if not isinstance(text, str) or not text.strip() or not gold or not all(isinstance(g, str) for g in gold):
            raise DataError(f"{path}:{number}: `question` must be text and `gold` a list of texts")
        group = str(row.get("group") or normalise_group(text))
        one = Labelled(str(row.get("id") or f"q{number}"), text, tuple(gold), group, row.get("tags") or {})
        if one.id in questions:
            raise DataError(f"{path}:{number}: the id {one.id!r} stands twice: ids must be unique")
        questions[one.id] = one
    if not questions:
        raise DataError(f"{path}: holds no question")
    return list(questions.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Answers one question at every k and judges the answers."""

    reader: Reader
    embedder: Embedder
    retriever: Retriever
    identity: Identity
    ks: tuple[int, ...]
    rule: Rule = "tokens"
    trigger: bool = False
    clock: Clock = time.perf_counter
    today: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        """Refuse what is no number of passages."""
        if min(self.ks) < 0:
            raise DataError(f"k={min(self.ks)} is no number of passages: a further k must be 1 or more")

    @property
    def manner(self) -> dict[str, Any]:
        """What the rows depend on beside the identity, as the table's first line has it."""
        return {"rule": self.rule, "ks": list(self.ks), "trigger": self.trigger}

    async def row(self, question: Labelled) -> dict[str, Any]:
        """Ask with every number of passages, and judge the answers."""
        passages, outcomes = await full_run(
            question.question,
            self.ks,
            reader=self.reader,
            embedder=self.embedder,
            retriever=self.retriever,
            identity=self.identity,
            clock=self.clock,
        )
        row: dict[str, Any] = {
            "id": question.id,
            "group": question.group,
            "question": question.question,
            "gold": list(question.gold),
            "tags": question.tags,
            "at": self.today().isoformat(timespec="seconds"),
        }
        row |= {f"k{k}": self._cell(question, k, outcome) for k, outcome in outcomes.items()}
        if self.trigger:
            row["k0"]["signals"] |= await self._need(question.question)
        row["passages"] = [passage.id for passage in passages]
        return row

    async def _need(self, question: str) -> dict[str, float]:
        """The reader's own word on whether it must look the answer up, as log-odds of not having to."""
        asked = Prompt(TRIGGER.replace("{question}", question))
        generation = await self.reader.generate(asked, max_tokens=1)
        said = generation.text.strip().lower()
        if not generation.tokens or said not in {"yes", "no"}:
            return {}
        p = math.exp(min(-1e-9, generation.tokens[0].logprob))
        log_odds = math.log(p / (1.0 - p))
        return {"trigger": round(log_odds if said == "no" else -log_odds, 7)}

    def _cell(self, question: Labelled, k: int, outcome: Outcome) -> dict[str, Any]:
        return {
            "answer": outcome.answer,
            "correct": judge(outcome.answer, question.gold, self.rule),
            "signals": {name: round(value, 7) for name, value in outcome.signals.items()},
            "prompt_tokens": outcome.prompt_tokens,
            "completion_tokens": outcome.completion_tokens,
            "ms": round(outcome.ms, 2),
            **({"passages_read": outcome.passages_read} if k else {}),
        }


async def collect(
    questions: Sequence[Labelled],
    out: Path,
    collector: Collector,
    *,
    concurrency: int = 2,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Collected:
    """Append every question's row that `out` does not hold yet; `on_progress` hears done and total."""
    if out.suffix == ".gz":
        raise DataError(f"{out}: a compressed table cannot be appended to: collect to a .jsonl file, compress it after")
    known = _resume(out, collector)
    todo = [question for question in questions if question.id not in known]
    done = len(questions) - len(todo)
    failed: list[tuple[str, str]] = []
    on_progress(done, len(questions))
    with out.open("ab") as file:
        if file.tell() == 0:
            _append(file, {"schema": SCHEMA, "identity": asdict(collector.identity)} | collector.manner)
        async for question, row in _rows(todo, collector, concurrency):
            if isinstance(row, str):
                failed.append((question.id, row))
            else:
                _append(file, row)
                done += 1
            on_progress(done, len(questions))
    return Collected(len(todo) - len(failed), len(questions) - len(todo), tuple(failed))


async def _rows(
    questions: Sequence[Labelled], collector: Collector, concurrency: int
) -> AsyncIterator[tuple[Labelled, dict[str, Any] | str]]:
    """Rows as they finish, `concurrency` at a time; the reason instead for a question that is given up."""
    waiting = iter(questions)
    running = {asyncio.create_task(_attempt(q, collector)): q for q in islice(waiting, concurrency)}
    try:
        while running:
            finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                yield running.pop(task), task.result()
                for question in islice(waiting, 1):
                    running[asyncio.create_task(_attempt(question, collector))] = question
    finally:
        for task in running:
            task.cancel()


async def _attempt(question: Labelled, collector: Collector) -> dict[str, Any] | str:
    reason = ""
    for attempt in range(ATTEMPTS):
        try:
            return await collector.row(question)
        except (PromptTooLong, NoPassages) as error:
            return str(error)  # asking again would change nothing
        except UpstreamError as error:
            reason = f"{error.upstream}: {error}"
            # A reader that restarts needs a moment; a question is only given up after the last attempt.
            if attempt + 1 < ATTEMPTS:
                await asyncio.sleep(RETRY_S * (attempt + 1))
    return reason


def _append(file: IO[bytes], row: dict[str, Any]) -> None:
    file.write(orjson.dumps(row) + b"\n")
    file.flush()


def _resume(out: Path, collector: Collector) -> set[str]:
    """The ids already collected. A last line without its newline was torn by an interruption and is cut off."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        return set()
    raw = out.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        with out.open("r+b") as file:
            file.truncate(len(whole))
    lines = whole.splitlines()
    if not lines:
        return set()
    try:
        head = orjson.loads(lines[0])
        before = read_identity(head["identity"])
        known = {str(orjson.loads(line)["id"]) for line in lines[1:]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{out}: is not an outcome table that can be resumed ({error}): choose another file") from error
    differing = mismatches(before, collector.identity)
    if differing:
        raise DataError(
            f"{out}:1: was collected with another system ({'; '.join(differing)}): choose another file, "
            "or run with the system that it was begun with"
        )
    changed = [
        f"{name}: begun with {head.get(name)!r}, now {now!r}"
        for name, now in collector.manner.items()
        if head.get(name) != now
    ]
    if changed:
        raise DataError(
            f"{out}:1: was collected in another manner ({'; '.join(changed)}): choose another file, or the same options"
        )
    return known


def apply_corrections(outcomes: Outcomes, path: Path) -> Outcomes:
    """Overrule labels by hand: one JSON line `{id, k, correct}` each; a later line overrules an earlier one."""
    rows = {identifier: row for row, identifier in enumerate(outcomes.ids)}
    correct = {k: labels.copy() for k, labels in outcomes.correct.items()}
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): name the file of corrections") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{where}: not a whole JSON object ({error}): mend or delete the line") from error
        if not isinstance(entry, dict) or not {"id", "k", "correct"} <= entry.keys():
            raise DataError(f'{where}: a correction is {{"id": ..., "k": 0, "correct": true}}: name all three')
        row, k, label = rows.get(entry["id"]), entry["k"], entry["correct"]
        if row is None:
            raise DataError(f"{where}: no row of the table has the id {entry['id']!r}: mend the id or delete the line")
        if k not in correct:
            known = ", ".join(map(str, correct))
            raise DataError(f"{where}: k = {k!r} was not collected: choose among {known}")
        if label not in (True, False):
            raise DataError(f"{where}: correct is {label!r}: write true or false")
        correct[k][row] = bool(label)
    return replace(outcomes, correct=correct)
