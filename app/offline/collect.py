"""Ask every question at every k, through the same parts as the gateway, and write the outcome table.

The table is append-only with one line per question, so an interrupted run resumes when it is started again. The first
line says which system was asked, and with which options. Rows of another system, or with other options, are refused.
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
from app.offline.table import Outcomes, normalise_group, read_identity, read_lines
from app.ports import Clock, Embedder, Prompt, Reader, Retriever

SCHEMA = 1
ATTEMPTS = 3
RETRY_S = 2.0
TRIGGER = "Do you need to look up the answer to this question? Answer yes or no: {question}"


@dataclass(frozen=True, slots=True)
class LabelledQuestion:
    """A question with the answers that count as right; questions about the same fact share a `group`."""

    id: str
    question: str
    gold: tuple[str, ...]
    group: str
    tags: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collected:
    """How many questions were asked now, how many an earlier run asked, and which failed: id and reason."""

    asked: int
    skipped: int
    failed: tuple[tuple[str, str], ...]


def read_questions(path: Path) -> list[LabelledQuestion]:
    """Read JSON lines of {id?, group?, question, gold, tags?}; a question without an id is named by its line."""
    questions: dict[str, LabelledQuestion] = {}
    for place, row in read_lines(path):
        text, gold = row.get("question"), row.get("gold")
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{place}: `question` is {text!r}: write a text")
        if not isinstance(gold, list) or not gold or not all(isinstance(answer, str) for answer in gold):
            raise DataError(f"{place}: `gold` is {gold!r}: write a list of texts")
        identifier = str(row.get("id") or f"q{place.rpartition(':')[2]}")
        if identifier in questions:
            raise DataError(f"{place}: the id {identifier!r} is not unique: rename it")
        group = str(row.get("group") or normalise_group(text))
        questions[identifier] = LabelledQuestion(identifier, text, tuple(gold), group, row.get("tags") or {})
    if not questions:
        raise DataError(f"{path}: has no questions")
    return list(questions.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Answers one question at every k and labels the answers."""

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
        """Refuse a negative number of passages."""
        if min(self.ks) < 0:
            raise DataError(f"k={min(self.ks)} is negative: an additional k must be 1 or more")

    @property
    def options(self) -> dict[str, Any]:
        """What the rows depend on besides the identity; part of the table's first line."""
        return {"rule": self.rule, "ks": list(self.ks), "trigger": self.trigger}

    async def row(self, question: LabelledQuestion) -> dict[str, Any]:
        """Answer with every number of passages, and label the answers."""
        answers = await full_run(
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
        row |= {f"k{k}": self._cell(question, k, outcome) for k, outcome in answers.outcomes.items()}
        if self.trigger:
            row["k0"]["signals"] |= await self._trigger(question.question)
        row["passages"] = [passage.id for passage in answers.passages]
        return row

    async def _trigger(self, question: str) -> dict[str, float]:
        """Ask the reader whether it needs to look the answer up; the signal is the log-odds of "no"."""
        asked = Prompt(TRIGGER.replace("{question}", question))
        generation = await self.reader.generate(asked, max_tokens=1)
        said = generation.text.strip().lower()
        if not generation.tokens or said not in {"yes", "no"}:
            return {}
        p = math.exp(min(-1e-9, generation.tokens[0].logprob))
        log_odds = math.log(p / (1.0 - p))
        return {"trigger": round(log_odds if said == "no" else -log_odds, 7)}

    def _cell(self, question: LabelledQuestion, k: int, outcome: Outcome) -> dict[str, Any]:
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
    questions: Sequence[LabelledQuestion],
    out: Path,
    collector: Collector,
    *,
    concurrency: int = 2,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Collected:
    """Append the rows that `out` does not have yet; `on_progress` gets the numbers done and in total."""
    if out.suffix == ".gz":
        raise DataError(
            f"{out}: a compressed table cannot be appended to: collect to a .jsonl file and compress it afterwards"
        )
    known = _resume(out, collector)
    todo = [question for question in questions if question.id not in known]
    done = len(questions) - len(todo)
    failed: list[tuple[str, str]] = []
    on_progress(done, len(questions))
    with out.open("ab") as file:
        if file.tell() == 0:
            _append(file, {"schema": SCHEMA, "identity": asdict(collector.identity)} | collector.options)
        async for question, row in _rows(todo, collector, concurrency):
            if isinstance(row, str):
                failed.append((question.id, row))
            else:
                _append(file, row)
                done += 1
            on_progress(done, len(questions))
    return Collected(len(todo) - len(failed), len(questions) - len(todo), tuple(failed))


async def _rows(
    questions: Sequence[LabelledQuestion], collector: Collector, concurrency: int
) -> AsyncIterator[tuple[LabelledQuestion, dict[str, Any] | str]]:
    """Rows as they finish, `concurrency` at a time; for a question that fails, the reason instead."""
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


async def _attempt(question: LabelledQuestion, collector: Collector) -> dict[str, Any] | str:
    reason = ""
    for attempt in range(ATTEMPTS):
        try:
            return await collector.row(question)
        except (PromptTooLong, NoPassages) as error:
            return str(error)  # a retry would fail the same way
        except UpstreamError as error:
            reason = f"{error.upstream}: {error}"
            # A reader that restarts needs a moment.
            if attempt + 1 < ATTEMPTS:
                await asyncio.sleep(RETRY_S * (attempt + 1))
    return reason


def _append(file: IO[bytes], row: dict[str, Any]) -> None:
    file.write(orjson.dumps(row) + b"\n")
    file.flush()


def _resume(out: Path, collector: Collector) -> set[str]:
    """The ids already collected. A last line without a newline was interrupted, and is removed."""
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
        raise DataError(
            f"{out}: cannot be resumed, it is not an outcome table ({error}): choose another file"
        ) from error
    differing = mismatches(before, collector.identity)
    if differing:
        raise DataError(
            f"{out}:1: was collected with another system ({'; '.join(differing)}): choose another file, "
            "or run with the system that it was started with"
        )
    changed = [
        f"{name}: was {head.get(name)!r}, now {now!r}"
        for name, now in collector.options.items()
        if head.get(name) != now
    ]
    if changed:
        raise DataError(
            f"{out}:1: was collected with other options ({'; '.join(changed)}): choose another file or the same options"
        )
    return known


def apply_corrections(outcomes: Outcomes, path: Path) -> Outcomes:
    """Change labels by hand: one JSON line `{id, k, correct}` each; a later line overrides an earlier one."""
    rows = {identifier: row for row, identifier in enumerate(outcomes.ids)}
    correct = {k: labels.copy() for k, labels in outcomes.correct.items()}
    for place, entry in read_lines(path):
        if not {"id", "k", "correct"} <= entry.keys():
            raise DataError(f'{place}: a correction is {{"id": ..., "k": 0, "correct": true}}: write all three')
        row, k, label = rows.get(entry["id"]), entry["k"], entry["correct"]
        if row is None:
            raise DataError(f"{place}: no row of the table has the id {entry['id']!r}: fix the id or delete the line")
        if k not in correct:
            raise DataError(f"{place}: k = {k!r} was not collected: choose among {', '.join(map(str, correct))}")
        if label not in (True, False):
            raise DataError(f"{place}: correct is {label!r}: write true or false")
        correct[k][row] = bool(label)
    return replace(outcomes, correct=correct)
