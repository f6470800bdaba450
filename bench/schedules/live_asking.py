"""A live run: the same questions to every system, one answer at a time, judged and timed."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from app.decision.labels import judge
from app.decision.record import DecisionRecord, Usage
from app.refit.collect import Labelled
from app.refit.split import TRAIN_SHARE, VALIDATION_SHARE, position
from bench.schedules.live_figures import STAGES, Answer
from bench.schedules.live_order import belt, padding
from bench.schedules.live_readers import Reading
from bench.schedules.live_systems import System


def held_out(questions: Sequence[Labelled]) -> list[Labelled]:
    """Those on which nothing was ever fitted or chosen."""
    return [question for question in questions if position(question.group) >= TRAIN_SHARE + VALIDATION_SHARE]


def of_train(questions: Sequence[Labelled]) -> list[Labelled]:
    """Those for warming up and filling gaps."""
    return [question for question in questions if position(question.group) < TRAIN_SHARE]


async def ask_all(
    systems: Mapping[str, System],
    questions: Sequence[Labelled],
    fillers: Sequence[Labelled],
    reading: Reading,
    *,
    lag: int,
    concurrency: int,
    rng: Random,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Answer]:
    """Every system's answer to every question, `concurrency` questions of one system at a time."""
    batches = [questions[start : start + concurrency] for start in range(0, len(questions), concurrency)]
    total = (len(batches) + padding(len(systems), lag)) * len(systems)
    answers: list[Answer] = []
    cached = await reading.idle()
    for done, (number, name) in enumerate(belt(len(batches), list(systems), lag=lag, rng=rng)):
        counts = 0 <= number < len(batches)
        batch = batches[number] if counts else _filling(fillers, number, concurrency)
        on_progress(done, total)
        given = await asyncio.gather(*(_ask(systems[name], question) for question in batch))
        before, cached = cached, await reading.idle()
        if counts:
            answers += [replace(answer, cached_tokens=(cached - before) / len(batch)) for answer in given]
        for _ in batch:
            await systems[name].look()
    on_progress(total, total)
    return answers


async def warm_up(system: System, questions: Sequence[Labelled], on_progress: Callable[[int], None]) -> None:
    """Let a system answer questions that do not count, one after the other."""
    for done, question in enumerate(questions, start=1):
        await system.answer(question.question)
        await system.look()
        on_progress(done)


async def _ask(system: System, question: Labelled) -> Answer:
    began = time.perf_counter()
    record = await system.answer(question.question)
    ms = (time.perf_counter() - began) * 1000.0
    return as_answer(system.name, question, record, ms)


def as_answer(system: str, question: Labelled, record: DecisionRecord, ms: float) -> Answer:
    """What a record comes to, judged by the project's own rule."""
    paid = [record.probe_usage, record.read_usage, record.wasted_usage]
    return Answer(
        system=system,
        question=question.id,
        group=question.group,
        right=judge(record.answer or "", question.gold, "tokens"),
        ms=ms,
        k=record.k,
        reason=record.reason.value,
        schedule=record.schedule,
        tokens=sum(_tokens(usage) for usage in paid),
        wasted_tokens=_tokens(record.wasted_usage),
        cached_tokens=0.0,
        calls_used=record.retrieval_calls if record.citations else 0,
        calls_wasted=0 if record.citations else record.retrieval_calls,
        stages={stage: spent for stage in STAGES if (spent := getattr(record.timings, stage)) is not None},
    )


def _tokens(usage: Usage | None) -> int:
    return usage.prompt_tokens + usage.completion_tokens if usage else 0


def _filling(fillers: Sequence[Labelled], number: int, size: int) -> list[Labelled]:
    return [fillers[(number * size + place) % len(fillers)] for place in range(size)]
