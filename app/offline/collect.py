"""Ask every question at every k, through the same parts as the gateway, and write the outcome table.

The table is append-only with one line per question, so an interrupted run resumes when it is started again. The first
line says which system was asked, with which options, and counts the words of the corpus. Rows of another system, or
with other options, are refused.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any

import orjson

from app.answer.full_run import full_run
from app.core.artifact import Identity, mismatches
from app.core.corpus_stats import MAX_PASSAGES, NO_STATS, CorpusStats
from app.core.labels import Rule
from app.core.record import Outcome
from app.errors import DataError, NoPassages, PromptTooLong, UpstreamError
from app.offline.lines import SCHEMA, Head, rounded, write_vector
from app.offline.questions import LabelledQuestion, label
from app.ports import Clock, Embedder, Prompt, Reader, VectorStore

ATTEMPTS = 3
RETRY_S = 2.0
TRIGGER = "Do you need to look up the answer to this question? Answer yes or no: {question}"


@dataclass(frozen=True, slots=True)
class Collected:
    """How many questions were asked now, how many an earlier run asked, and which failed: id and reason."""

    asked: int
    skipped: int
    failed: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Answers one question at every k and labels the answers."""

    reader: Reader
    embedder: Embedder
    retriever: VectorStore
    identity: Identity
    ks: tuple[int, ...]
    rule: Rule = "tokens"
    trigger: bool = False
    # Word counts of the corpus, to weigh words by; `collect` takes them from the collection.
    stats: CorpusStats = NO_STATS
    clock: Clock = time.perf_counter
    today: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        """Refuse a negative number of passages."""
        if min(self.ks) < 0:
            raise DataError(f"k={min(self.ks)} is negative: an additional k must be 1 or more")

    @property
    def head(self) -> Head:
        """The first line of the table."""
        return Head(self.identity, self.ks, self.rule, self.trigger, self.stats)

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
            stats=self.stats,
        )
        row = question.to_row() | {"at": self.today().isoformat(timespec="seconds")}
        row |= {f"k{k}": self._cell(row, k, outcome) for k, outcome in answers.outcomes.items()}
        if self.trigger:
            row["k0"]["signals"] |= await self._trigger(question.question)
        row["passages"] = [passage.id for passage in answers.passages]
        row["evidence"] = rounded(answers.evidence)
        row["vector"] = write_vector(answers.vector)
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

    def _cell(self, row: dict[str, Any], k: int, outcome: Outcome) -> dict[str, Any]:
        return {
            "answer": outcome.answer,
            "correct": label(row, outcome.answer, self.rule),
            "signals": rounded(outcome.signals),
            "prompt_tokens": outcome.prompt_tokens,
            "completion_tokens": outcome.completion_tokens,
            "ms": round(outcome.ms, 2),
            **({"passages_read": outcome.passages_read} if k else {}),
            **({"truncated": True} if outcome.truncated else {}),
        }


async def collect(
    questions: Sequence[LabelledQuestion],
    out: Path,
    collector: Collector,
    *,
    concurrency: int = 1,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Collected:
    """Append the rows that `out` does not have yet; `on_progress` gets the numbers done and in total.

    One question at a time by default: answers that a reader computes in one batch differ in their last bits from those
    that it computes alone, so a table would depend on the order of arrival.
    """
    if out.suffix == ".gz":
        raise DataError(
            f"{out}: a compressed table cannot be appended to: collect to a .jsonl file and compress it afterwards"
        )
    known, stats = _resume(out, collector)
    collector = replace(
        collector, stats=stats or await corpus_stats(collector.retriever, collector.identity.collection)
    )
    if collector.stats.passages < max(collector.ks):
        raise DataError(
            f"the collection {collector.identity.collection!r} holds {collector.stats.passages} passages, fewer than "
            f"k={max(collector.ks)} reads: ingest more, or choose smaller numbers in FETCHWISE_KS"
        )
    todo = [question for question in questions if question.id not in known]
    done = len(questions) - len(todo)
    failed: list[tuple[str, str]] = []
    on_progress(done, len(questions))
    with out.open("ab") as file:
        if file.tell() == 0:
            _append(file, collector.head.to_line())
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


async def corpus_stats(vectors: VectorStore, collection: str) -> CorpusStats:
    """Count the words of a collection, or of a sample of it."""
    passages = await vectors.sample(collection, limit=MAX_PASSAGES)
    return CorpusStats.of((passage.title, passage.text) for passage in passages)


def _resume(out: Path, collector: Collector) -> tuple[set[str], CorpusStats | None]:
    """The ids already collected, and the word counts that their evidence was computed with; None for a new file.

    A last line without a newline was interrupted, and is removed.
    """
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        return set(), None
    raw = out.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        with out.open("r+b") as file:
            file.truncate(len(whole))
    lines = whole.splitlines()
    if not lines:
        return set(), None
    try:
        head = Head.read(orjson.loads(lines[0]), f"{out}:1")
        known = {str(orjson.loads(line)["id"]) for line in lines[1:]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{out}: cannot be resumed, it is not an outcome table ({error}): choose another file"
        ) from error
    if head.schema != SCHEMA:
        raise DataError(f"{out}:1: has no evidence (schema {head.schema}): run `fetchwise tables upgrade` on it first")
    differing = ["no identity"] if head.identity is None else mismatches(head.identity, collector.identity)
    if differing:
        raise DataError(
            f"{out}:1: was collected with another system ({'; '.join(differing)}): choose another file, "
            "or run with the system that it was started with"
        )
    changed = [
        f"{name}: was {head.options[name]!r}, now {now!r}"
        for name, now in collector.head.options.items()
        if head.options[name] != now
    ]
    if changed:
        raise DataError(
            f"{out}:1: was collected with other options ({'; '.join(changed)}): choose another file or the same options"
        )
    return known, head.stats
