"""What is run: the paper's costs at several loads, a sweep of regimes, and outcome tables replayed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from app.decision.cost import Exit
from bench.schedules.measure import ALWAYS, CROWD, PLANS, SETTLED, Run, arrivals, compare, run, saturation
from bench.schedules.readers import (
    ANSWER_OVER_PROMPT_TOKEN,
    CLOSED_BOOK_TOKENS,
    EXIT_AT,
    LARGE,
    SMALL,
    Reader,
    assuming,
)
from bench.schedules.tables import Replay, as_workload
from bench.schedules.workload import Workload, made_up

# The share of retrieving questions that exits must catch for overlap with exits to pay on the small reader's costs.
CAUGHT = 0.64
SATURATED = 1.0
Row = dict[str, Any]
# Something to run; it gives a row a schedule.
Task = Callable[[], list[Row]]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run."""

    loads: tuple[float, ...] = (0.0, 0.5, 0.8, SATURATED)
    replications: int = 5
    # Beyond those that settle a run; more than a crowd is.
    questions: int = 4000
    swept_questions: int = 1000
    ratios: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0)
    skips: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    swept_loads: tuple[float, ...] = (0.0, 0.8)
    catches: tuple[float, ...] = (0.0, 0.2, 0.4, CAUGHT, 0.8, 1.0)


QUICK = Scale(
    loads=(0.0, 0.8, SATURATED),
    replications=2,
    questions=800,
    swept_questions=600,
    ratios=(0.05, 1.0),
    skips=(0.0, 0.4),
    catches=(CAUGHT,),
)


def at_load(
    schedules: Sequence[str],
    work: Workload,
    reader: Reader,
    load: float,
    rng: np.random.Generator,
    *,
    exit_: Exit | None,
    fallback: int = 5,
) -> list[Run]:
    """Every schedule on the same questions: one at a time, at a share of what always-RAG can bear, or as many as go."""
    crowd, times = 1, None
    if load == SATURATED:
        crowd = CROWD
    elif load:
        times = arrivals(work, load * saturation(work, reader.steps), rng)
    runs = []
    for schedule in schedules:
        # Without a gate the fallback is read; always-RAG, against which all are measured, reads five passages.
        own = replace(work, reference=fallback) if schedule == "auto" else work
        if schedule == "always-k1":
            found = run(ALWAYS, replace(work, reference=1), reader.steps, at=times, crowd=crowd)
            runs.append(replace(found, schedule=schedule))
        else:
            runs.append(run(schedule, own, reader.steps, at=times, crowd=crowd, exit_=exit_))
    return runs


def paper(scale: Scale) -> Iterator[Task]:
    """Both readers at the paper's skip rate, every schedule, every load."""
    for reader in (SMALL, LARGE):
        for load in scale.loads:
            yield partial(_paper, reader, load, scale)


def _paper(reader: Reader, load: float, scale: Scale) -> list[Row]:
    runs = []
    for seed in range(scale.replications):
        rng = np.random.default_rng([1, seed])
        work = made_up(
            reader, skip=reader.skip, questions=SETTLED + scale.questions, rng=rng, caught=CAUGHT, warm_up=SETTLED
        )
        runs.append(at_load((*PLANS, "auto"), work, reader, load, rng, exit_=_stated(CAUGHT)))
    return compare(reader.name, "paper", load, runs, skip=reader.skip, caught=CAUGHT, ret_over_ob=_own_ratio(reader))


def catching(scale: Scale, found: Exit) -> Iterator[Task]:
    """What exits give by how many they catch, at batch 1; last, as many as were caught in the replayed table."""
    cut_at = max(1, round(found.spent * CLOSED_BOOK_TOKENS))
    for reader in (SMALL, LARGE):
        for caught in scale.catches:
            yield partial(_catching, reader, f"paper, exits catch {caught:g}", caught, EXIT_AT, scale)
        yield partial(_catching, reader, "paper, exits as measured", found.caught, cut_at, scale)


def _catching(reader: Reader, regime: str, caught: float, exit_at: int, scale: Scale) -> list[Row]:
    rng = np.random.default_rng(2)
    work = made_up(
        reader,
        skip=reader.skip,
        questions=SETTLED + scale.questions,
        rng=rng,
        caught=caught,
        exit_at=exit_at,
        warm_up=SETTLED,
    )
    runs = [at_load((ALWAYS, "serial+exit", "overlap+exit", "race+exit"), work, reader, 0.0, rng, exit_=None)]
    facts = {"skip": reader.skip, "caught": round(caught, 4), "ret_over_ob": _own_ratio(reader)}
    return compare(reader.name, regime, 0.0, runs, **facts)


def assumptions(scale: Scale) -> Iterator[Task]:
    """What the fit had to assume, assumed otherwise: shorter and longer answers, cheaper and dearer batches."""
    for reader in (SMALL, LARGE):
        for load in scale.swept_loads:
            for tokens in (3, 12):
                own = assuming(reader, tokens=tokens, answer_over_prompt=ANSWER_OVER_PROMPT_TOKEN)
                yield partial(_assumed, own, f"answers of {tokens} tokens", load, scale)
            for factor in (1.0, 8.0):
                own = assuming(reader, tokens=CLOSED_BOOK_TOKENS, answer_over_prompt=factor)
                yield partial(_assumed, own, f"an answer's token costs {factor:g} of a prompt's", load, scale)


def _assumed(reader: Reader, assumed: str, load: float, scale: Scale) -> list[Row]:
    rng = np.random.default_rng(5)
    exit_at = max(1, round(reader.tokens[0] / 3))
    work = made_up(
        reader,
        skip=reader.skip,
        questions=SETTLED + scale.questions,
        rng=rng,
        caught=CAUGHT,
        exit_at=exit_at,
        warm_up=SETTLED,
    )
    schedules = (ALWAYS, "serial", "overlap+exit", "race", "auto")
    runs = [at_load(schedules, work, reader, load, rng, exit_=_stated(CAUGHT))]
    return compare(reader.name, f"paper, {assumed}", load, runs, skip=reader.skip, caught=CAUGHT)


def sweep(scale: Scale) -> Iterator[Task]:
    """Regimes from cheap to dear retrieval and from no skip to nearly all; at batch 1 every kind of schedule."""
    for reader in (SMALL, LARGE):
        for load in scale.swept_loads:
            for ratio in scale.ratios:
                for skip in scale.skips:
                    yield partial(_sweep, reader, load, ratio, skip, scale.swept_questions)


def _sweep(reader: Reader, load: float, ratio: float, skip: float, questions: int) -> list[Row]:
    rows = []
    for caught in (CAUGHT, 0.0):
        rng = np.random.default_rng([3, round(1000 * ratio), round(1000 * skip)])
        work = made_up(
            reader,
            skip=skip,
            questions=SETTLED + questions,
            rng=rng,
            caught=caught,
            ret_over_ob=ratio,
            warm_up=SETTLED,
        )
        schedules = [ALWAYS, "auto"]
        if caught and not load:
            schedules += ["serial", "overlap", "overlap+exit", "race"]
        exit_ = _stated(caught) if caught else None
        runs = [at_load(schedules, work, reader, load, rng, exit_=exit_)]
        name = "sweep" if caught else "sweep, no exits"
        rows += compare(reader.name, name, load, runs, skip=skip, caught=caught, ret_over_ob=ratio)
    return rows


def tables(scale: Scale, found: Sequence[tuple[Replay, Reader]]) -> Iterator[Task]:
    """Each table at every load, exits where it has prefixes."""
    for replayed, reader in found:
        for load in scale.loads:
            yield partial(_table, replayed, reader, load, scale)


def _table(replayed: Replay, reader: Reader, load: float, scale: Scale) -> list[Row]:
    own = reader.name == replayed.name
    schedules = [name for name in PLANS if replayed.expected is not None or not name.endswith("+exit")]
    schedules += ["auto", *(["always-k1"] if replayed.fallback == 1 else [])]
    runs = []
    for seed in range(scale.replications):
        rng = np.random.default_rng([4, seed])
        work = as_workload(replayed, reader, SETTLED + scale.questions, rng, own_tokens=own)
        runs.append(at_load(schedules, work, reader, load, rng, exit_=replayed.expected, fallback=replayed.fallback))
    facts: Row = {"skip": round(replayed.k.count(0) / len(replayed.k), 4), "certified": replayed.certified}
    if replayed.found is not None:
        facts["caught"] = round(replayed.found.caught, 4)
    return compare(reader.name, replayed.name, load, runs, **facts)


def _stated(caught: float) -> Exit:
    return Exit(caught, EXIT_AT / CLOSED_BOOK_TOKENS)


def _own_ratio(reader: Reader) -> float:
    return round(reader.costs.ret5 / reader.costs.ob5, 4)
