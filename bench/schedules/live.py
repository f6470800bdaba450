"""Every schedule against the fixed actions on a real reader: `python bench/schedules/live.py`, `--vllm` on real vLLM.

The gateway's own `Answerer` on real parts in one process, asked the demo world's test questions and nothing that was
ever fitted on. Writes `schedules-live.json` and `.png`, or `schedules-live-vllm.*`.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import orjson

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.cli.console import err, log_to_stderr, progress  # noqa: E402
from app.decision.artifact import Artifact  # noqa: E402
from app.decision.forecast import Schedule  # noqa: E402
from app.errors import FetchwiseError  # noqa: E402
from app.ingest.ingest import ingest  # noqa: E402
from app.parts import Parts, open_parts  # noqa: E402
from app.refit.collect import Labelled, read_questions  # noqa: E402
from app.refit.metrics import plain  # noqa: E402
from bench.schedules.live_asking import ask_all, held_out, of_train, warm_up  # noqa: E402
from bench.schedules.live_figures import FIXED, Answer, as_rows, bars, compare, figures  # noqa: E402
from bench.schedules.live_fit import fit, shipped  # noqa: E402
from bench.schedules.live_readers import Reading, embedded, vllm  # noqa: E402
from bench.schedules.live_report import draw, main_table, stage_table  # noqa: E402
from bench.schedules.live_systems import AUTO, System, label_of, name_of, open_systems  # noqa: E402
from bench.schedules.verdicts import bar_table  # noqa: E402

# How much less accurate than the best fixed action the bar lets a gate be.
EPSILON = 0.02


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start the reader, fit what is to be fitted, ask, and lay the figures side by side."""
    questions, rng = read_questions(options.questions_from), Random(options.seed)
    asked = _some(held_out(questions), options.questions, rng)
    fillers = _some(of_train(questions), max(options.warm_up, 1), rng)
    async with AsyncExitStack() as stack:
        opened = vllm(options.data, python=options.vllm_python, model=options.vllm_model) if options.vllm else None
        with err.status("starting the reader and the embedder…"):
            reading = await stack.enter_async_context(opened or embedded(options.data))
            parts = await stack.enter_async_context(open_parts(reading.settings))
        with err.status("filling the collection…"):
            await ingest([options.passages], collection="demo", embedder=parts.embedder, corpus=parts.vectors)
        artifacts, notes = await _calibrators(options, parts, reading)
        systems = stack.enter_context(open_systems(parts, reading.settings, artifacts, options.systems))
        answers = await _ask(options, systems, asked, fillers, reading, rng=rng)
    return {"reader": "vLLM" if options.vllm else "embedded", "seed": options.seed, "lag": options.lag} | _summary(
        answers, artifacts, systems, [*notes, *(f"auto: {why}" for why in _whys(systems))]
    )


async def _calibrators(
    options: argparse.Namespace, parts: Parts, reading: Reading
) -> tuple[dict[str, Artifact], list[str]]:
    """What a gateway serves, and, with --refit, what it would serve were it fitted for latency."""
    artifact, differing = await shipped(options.calibrators, parts, reading.settings)
    if differing and not options.vllm:
        raise SystemExit(f"{artifact.version} was not fitted on what runs: {'; '.join(differing)}")
    found, notes = [artifact], [f"nothing is promised of these calibrators here: {each}" for each in differing]
    if options.refit:
        fitted, said = await fit(options.outcomes, parts, options.data / "calibrators", epsilon=options.epsilon)
        found.append(fitted)
        notes += said
    return {label_of(artifact): artifact for artifact in found}, notes


async def _ask(
    options: argparse.Namespace,
    systems: Mapping[str, System],
    asked: list[Labelled],
    fillers: list[Labelled],
    reading: Reading,
    *,
    rng: Random,
) -> list[Answer]:
    with progress() as bar:
        if AUTO in systems and options.warm_up:
            warming = bar.add_task("auto gets to know the traffic", total=len(fillers))
            await warm_up(systems[AUTO], fillers, lambda done: bar.update(warming, completed=done))
        asking = bar.add_task("asking", total=None)
        return await ask_all(
            systems,
            asked,
            fillers,
            reading,
            lag=options.lag,
            concurrency=options.concurrency,
            rng=rng,
            on_progress=lambda done, total: bar.update(asking, completed=done, total=total),
        )


def _summary(
    answers: Sequence[Answer], artifacts: Mapping[str, Artifact], systems: Mapping[str, System], notes: list[str]
) -> dict[str, Any]:
    found = compare(answers)
    by_system = {name: figures(found, name) for name in systems}
    label, last = list(artifacts.items())[-1]
    # By train, so that nothing is chosen on what was asked here; and the schedule that a gateway has by default.
    best, headline = FIXED[last.fallback_action], name_of(label, Schedule.SERIAL)
    complete = all(fixed in by_system for fixed in FIXED.values())
    return {
        "questions": len(next(iter(found.answers.values()))),
        "groups": found.groups,
        "calibrators": {name: _about(artifact) for name, artifact in artifacts.items()},
        "notes": notes,
        "best_fixed": best,
        "headline": headline,
        "systems": by_system,
        "bars": bars(by_system, best=best, epsilon=EPSILON, headline=headline) if complete else [],
        "answers": as_rows(found),
    }


def _about(artifact: Artifact) -> dict[str, Any]:
    fit = artifact.policies["graded"]
    early = fit.thresholds.early
    return {
        "version": artifact.version,
        "objective": fit.objective,
        "certified": fit.certificate is not None,
        "why_not": fit.why_not,
        "rows": artifact.window.rows,
        "tau0": fit.thresholds.tau0,
        "tau1": fit.thresholds.tau1,
        "unasked": early.unasked if early else None,
        "exits": list(early.exits) if early else [],
    }


def _whys(systems: Mapping[str, System]) -> list[str]:
    return [plan.why for plan in systems[AUTO].plans] if AUTO in systems else []


def _some(questions: list[Labelled], most: int, rng: Random) -> list[Labelled]:
    """By chance; asked for more of them, the same ones come first."""
    shuffled = rng.sample(questions, len(questions))
    return shuffled[:most]


def _options(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", action="store_true", help="real vLLM on the processor")
    parser.add_argument("--refit", action="store_true", help="also fit a calibrator for latency on the demo's table")
    # A gate that gives up all that the bar allows would miss it about as often as not.
    parser.add_argument("--epsilon", type=float, default=EPSILON / 2.0, help="how much accuracy a fit may give up")
    parser.add_argument("--questions", type=int, default=80, help="how many of the test split, drawn by chance")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=1, help="questions of one system at a time")
    parser.add_argument("--lag", type=int, help="steps between two answers to the same question")
    parser.add_argument("--warm-up", type=int, default=120, help="train questions that auto answers before")
    parser.add_argument("--systems", nargs="*", help="only these")
    parser.add_argument("--vllm-python", type=Path, default=ROOT / ".venv-vllm" / "bin" / "python")
    parser.add_argument("--vllm-model", type=Path, default=ROOT / "build" / "vllm-model")
    parser.add_argument("--calibrators", type=Path, default=ROOT / "calibrators" / "demo")
    parser.add_argument("--outcomes", type=Path, default=ROOT / "demo" / "outcomes.jsonl.gz")
    parser.add_argument("--questions-from", type=Path, default=ROOT / "demo" / "questions.jsonl")
    parser.add_argument("--passages", type=Path, default=ROOT / "demo" / "passages.jsonl")
    parser.add_argument("--data", type=Path, help="where vectors, model and fits are kept between runs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    options = parser.parse_args(given)
    options.name = "schedules-live-vllm" if options.vllm else "schedules-live"
    options.data = options.data or ROOT / "build" / options.name
    # vLLM keeps more prompts than llama.cpp does.
    options.lag = options.lag or (2 if options.vllm else 1)
    return options


def main(given: Sequence[str] | None = None) -> None:
    """Measure, write and print."""
    options = _options(given)
    log_to_stderr("warning")
    for folder in (options.data, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        found = asyncio.run(measure(options))
    except FetchwiseError as error:
        raise SystemExit(str(error)) from error
    written = options.out / options.name
    written.with_suffix(".json").write_bytes(orjson.dumps(plain(found), option=orjson.OPT_INDENT_2))
    title = f"{found['questions']} test questions of the demo world, {found['reader']} reader"
    draw(found["systems"], title, written.with_suffix(".png"))
    print(f"\n{title}, {found['groups']} facts\n\n{main_table(found['systems'])}")
    print(f"\nWhere the time goes\n\n{stage_table(found['systems'])}\n")
    for name, about in found["calibrators"].items():
        print(f"- {name}: {about['version']}, fitted on {about['rows']} rows, certified: {about['certified']}")
    for note in found["notes"]:
        print(f"- {note}")
    print(f"\n{bar_table(found['bars'])}")
    # What vLLM shows is reported, not judged: the calibrators are another reader's.
    if not options.vllm and any(bar.met is False for bar in found["bars"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
