"""Every schedule against the fixed actions on a real reader: `python bench/schedules/live.py`, `--vllm` on real vLLM.

The gateway's own `Answerer` on real parts in one process, asked the demo world's test questions and nothing that was
ever fitted on. Writes `schedules-live.json` and `.png`, or `schedules-live-vllm.*`.
"""

import argparse
import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import orjson

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.cli.console import err, log_to_stderr, progress  # noqa: E402
from app.decision.artifact import Artifact, mismatches  # noqa: E402
from app.decision.forecast import Schedule  # noqa: E402
from app.ingest.ingest import ingest  # noqa: E402
from app.parts import Parts, open_parts  # noqa: E402
from app.refit.collect import Labelled, read_questions  # noqa: E402
from app.refit.metrics import plain  # noqa: E402
from app.refit.table import load  # noqa: E402
from bench.schedules.live_asking import ask_all, held_out, of_train, warm_up  # noqa: E402
from bench.schedules.live_figures import FIXED, as_rows, bars, compare, figures  # noqa: E402
from bench.schedules.live_fit import collect_some, fit_for_latency, running, shipped  # noqa: E402
from bench.schedules.live_order import padding  # noqa: E402
from bench.schedules.live_readers import Reading, embedded, vllm  # noqa: E402
from bench.schedules.live_report import draw, main_table, stage_table  # noqa: E402
from bench.schedules.live_systems import AUTO, System, label_of, name_of, open_systems  # noqa: E402
from bench.schedules.verdicts import Bar, as_json, bar_table  # noqa: E402

EPSILON = 0.02
# Of the time that a bounded run has: for collecting, and for all else but asking.
_COLLECTING, _SETTING_UP_S = 0.4, 60.0
_FEWEST = 20


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start the reader, fit what is to be fitted, ask, and lay the figures side by side."""
    began = time.monotonic()
    data: Path = arguments.data
    data.mkdir(parents=True, exist_ok=True)
    questions = read_questions(arguments.questions_from)
    rng = Random(arguments.seed)
    asked = rng.sample(held_out(questions), min(arguments.questions, len(held_out(questions))))
    fillers = rng.sample(of_train(questions), min(len(of_train(questions)), max(arguments.warm_up, 1)))
    async with AsyncExitStack() as stack:
        opened = (
            vllm(data, python=arguments.vllm_python, model=arguments.vllm_model) if arguments.vllm else embedded(data)
        )
        with err.status("starting the reader and the embedder…"):
            reading = await stack.enter_async_context(opened)
            parts = await stack.enter_async_context(open_parts(reading.settings))
        with err.status("filling the collection…"):
            await ingest([arguments.passages], collection="demo", embedder=parts.embedder, corpus=parts.vectors)
        if arguments.vllm:
            left = _COLLECTING * arguments.minutes * 60.0
            artifacts, notes = await _collected(arguments, questions, asked, parts, reading, seconds=left)
        else:
            artifacts, notes = await _shipped(arguments, parts, reading)
        systems = stack.enter_context(open_systems(parts, reading.settings, artifacts, arguments.systems))
        if arguments.vllm:
            left = arguments.minutes * 60.0 - (time.monotonic() - began)
            asked = asked[: _affordable(data / "outcomes.jsonl", len(systems), arguments.lag, left)]
        answers = await _ask(arguments, systems, asked, fillers, reading, rng)
    found = compare(answers)
    by_system = {name: figures(found, name) for name in systems}
    label, last = list(artifacts.items())[-1]
    best = FIXED[last.fallback_action]
    headline = name_of(label, Schedule.SERIAL)
    return {
        "reader": "vllm" if arguments.vllm else "embedded",
        "questions": len(asked),
        "groups": found.groups,
        "seed": arguments.seed,
        "lag": arguments.lag,
        "concurrency": arguments.concurrency,
        "intervals": "95 %, paired bootstrap over groups",
        "calibrators": {name: _about(artifact) for name, artifact in artifacts.items()},
        "notes": notes,
        # By train, so that nothing is chosen on what was asked here.
        "best_fixed": best,
        "headline": headline,
        "auto": [{"plan": plan.name, "bypass": plan.bypass, "why": plan.why} for plan in _plans(systems)],
        "systems": by_system,
        "bars": as_json(bars(by_system, best=best, epsilon=EPSILON, headline=headline) if _complete(by_system) else []),
        "answers": as_rows(found),
    }


async def _shipped(
    arguments: argparse.Namespace, parts: Parts, reading: Reading
) -> tuple[dict[str, Artifact], list[str]]:
    """What a gateway serves, and, with --refit, what it would serve were it fitted for latency."""
    found, notes = [shipped(arguments.calibrators)], list[str]()
    differing = mismatches(found[0].identity, await running(parts, reading.settings)) if found[0].identity else ["all"]
    if differing:
        raise SystemExit(f"the calibrator was not fitted on what runs: {'; '.join(differing)}")
    if arguments.refit:
        with progress() as bar:
            task = bar.add_task("embedding the questions of the table", total=None)
            fitted = await fit_for_latency(
                arguments.outcomes, parts, arguments.data / "calibrators", lambda done: bar.update(task, completed=done)
            )
        found.append(fitted.artifact)
        notes += fitted.notes
    return {label_of(artifact): artifact for artifact in found}, notes


async def _collected(
    arguments: argparse.Namespace,
    questions: list[Labelled],
    asked: list[Labelled],
    parts: Parts,
    reading: Reading,
    *,
    seconds: float,
) -> tuple[dict[str, Artifact], list[str]]:
    """A calibrator fitted on what little could be collected; none of it is asked later."""
    table = arguments.data / "outcomes.jsonl"
    kept = {question.group for question in asked}
    others = [question for question in questions if question.group not in kept]
    some = Random(arguments.seed).sample(others, min(arguments.collect, len(others)))
    with progress() as bar:
        task = bar.add_task("collecting", total=len(some))
        await collect_some(
            some,
            table,
            parts,
            reading.settings,
            seconds=seconds,
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
        embedding = bar.add_task("embedding and fitting", total=None)
        fitted = await fit_for_latency(
            table, parts, arguments.data / "calibrators", lambda done: bar.update(embedding, completed=done)
        )
    said = f"fitted on {fitted.artifact.window.rows} questions alone, so nothing is claimed of these thresholds"
    return {label_of(fitted.artifact): fitted.artifact}, [said, *fitted.notes]


def _affordable(table: Path, systems: int, lag: int, seconds: float) -> int:
    """How many questions there is time for, by what the collected ones took; a few at least."""
    took = {k: float(np.nanmean(ms)) / 1000.0 for k, ms in load(table, columns="fit").ms.items()}
    a_step = took[5] + took[1] + (systems - 2) * (took[0] + took[1])
    warm = padding(systems, lag) + systems
    return max(_FEWEST, int((seconds - _SETTING_UP_S) / a_step) - warm)


async def _ask(
    arguments: argparse.Namespace,
    systems: dict[str, System],
    asked: list[Labelled],
    fillers: list[Labelled],
    reading: Reading,
    rng: Random,
) -> list[Any]:
    with progress() as bar:
        if AUTO in systems and arguments.warm_up:
            warming = bar.add_task("auto gets to know the traffic", total=len(fillers))
            await warm_up(systems[AUTO], fillers, lambda done: bar.update(warming, completed=done))
        asking = bar.add_task("asking", total=None)
        return await ask_all(
            systems,
            asked,
            fillers,
            reading,
            lag=arguments.lag,
            concurrency=arguments.concurrency,
            rng=rng,
            on_progress=lambda done, total: bar.update(asking, completed=done, total=total),
        )


def _about(artifact: Artifact) -> dict[str, Any]:
    fit = artifact.policies["graded"]
    return {
        "version": artifact.version,
        "objective": fit.objective,
        "certified": fit.certificate is not None,
        "why_not": fit.why_not,
        "rows": artifact.window.rows,
        "tau0": fit.thresholds.tau0,
        "tau1": fit.thresholds.tau1,
        "unasked": fit.thresholds.early.unasked if fit.thresholds.early else None,
        "exits": list(fit.thresholds.early.exits) if fit.thresholds.early else [],
    }


def _plans(systems: dict[str, System]) -> list[Any]:
    return systems[AUTO].plans if AUTO in systems else []


def _complete(systems: dict[str, Any]) -> bool:
    return all(fixed in systems for fixed in FIXED.values())


def _arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", action="store_true", help="real vLLM on the processor, and a calibrator of its own")
    parser.add_argument("--refit", action="store_true", help="also fit a calibrator for latency on the demo's table")
    parser.add_argument("--questions", type=int, default=150, help="how many of the test split, drawn by chance")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=1, help="questions of one system at a time")
    parser.add_argument("--lag", type=int, default=None, help="steps between two answers to the same question")
    parser.add_argument("--warm-up", type=int, default=60, help="train questions that auto answers before")
    parser.add_argument("--systems", nargs="*", default=None, help="only these")
    parser.add_argument("--minutes", type=float, default=25.0, help="with --vllm, about how long it may take")
    parser.add_argument("--collect", type=int, default=300, help="with --vllm, how many questions to fit on at most")
    parser.add_argument("--vllm-python", type=Path, default=ROOT / ".venv-vllm" / "bin" / "python")
    parser.add_argument("--vllm-model", type=Path, default=ROOT / "build" / "vllm-model")
    parser.add_argument("--calibrators", type=Path, default=ROOT / "calibrators" / "demo")
    parser.add_argument("--outcomes", type=Path, default=ROOT / "demo" / "outcomes.jsonl.gz")
    parser.add_argument("--questions-from", type=Path, default=ROOT / "demo" / "questions.jsonl")
    parser.add_argument("--passages", type=Path, default=ROOT / "demo" / "passages.jsonl")
    parser.add_argument("--data", type=Path, default=None, help="where vectors, model and fits are kept between runs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    arguments = parser.parse_args(given)
    arguments.name = "schedules-live-vllm" if arguments.vllm else "schedules-live"
    arguments.data = arguments.data or ROOT / "build" / arguments.name
    # vLLM keeps more prompts than llama.cpp does.
    arguments.lag = arguments.lag or (2 if arguments.vllm else 1)
    return arguments


def main(given: list[str] | None = None) -> None:
    """Measure, write and print."""
    arguments = _arguments(given)
    log_to_stderr("warning")
    found = asyncio.run(measure(arguments))
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{arguments.name}.json").write_bytes(orjson.dumps(plain(found), option=orjson.OPT_INDENT_2))
    title = f"{found['questions']} test questions of the demo world, {found['reader']} reader"
    draw(found["systems"], title, out / f"{arguments.name}.png")
    print(f"\n{title}, {found['groups']} facts\n\n{main_table(found['systems'])}")
    print(f"\nWhere the time goes\n\n{stage_table(found['systems'])}\n")
    for name, about in found["calibrators"].items():
        print(f"- {name}: {about['version']}, fitted on {about['rows']} rows, certified: {about['certified']}")
    for note in [*found["notes"], *(f"auto: {plan['why']}" for plan in found["auto"])]:
        print(f"- {note}")
    print(f"\n{_bars(found)}")
    # What vLLM shows is reported, not judged: its calibrator rests on too little.
    if not arguments.vllm and any(bar["met"] is False for bar in found["bars"]):
        sys.exit(1)


def _bars(found: dict[str, Any]) -> str:
    return bar_table([Bar(**bar) for bar in found["bars"]])


if __name__ == "__main__":
    main()
