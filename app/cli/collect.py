"""`fetchwise collect`: ask labelled questions, and write an outcome table."""

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from app.cli.console import app, err, log_to_stderr, opened_parts, out, progress
from app.errors import UpstreamUnavailable
from app.settings import Settings, read_settings
from app.upstream.parts import identity_of

# numpy is optional and slow to import, so the command imports what it needs.

RuleOption = Annotated[
    Literal["tokens", "compat"], typer.Option(help="Label rule: whole tokens, or substrings as in the paper.")
]


@app.command()
def collect(
    questions: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="JSON lines of {id, group?, question, gold, tags?, out_of_corpus?}."
        ),
    ],
    out_file: Annotated[Path, typer.Option("--out", help="Outcome table to append to.")],
    k: Annotated[
        list[int] | None,
        typer.Option(min=1, help="An additional k to ask with, besides those of FETCHWISE_KS; repeatable."),
    ] = None,
    rule: RuleOption = "tokens",
    concurrency: Annotated[
        int,
        typer.Option(
            min=1, max=64, help="Questions at the same time. Above 1 is faster, but not repeatable to the bit."
        ),
    ] = 1,
    trigger: Annotated[  # noqa: FBT002
        bool, typer.Option(help="Also ask the reader whether it needs to look the answer up.")
    ] = False,
    label_later: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Allow questions without gold, and write the answers that a person must label here."
        ),
    ] = None,
) -> None:
    """Ask every question at every k of FETCHWISE_KS with the gateway's own parts, and write an outcome table.

    You can interrupt it at any time: started again, it continues where it stopped.
    """
    settings = read_settings()
    log_to_stderr(settings.server.log_level)
    ks = tuple(sorted({*settings.calibration.ks, *(k or ())}))
    asyncio.run(
        _collect(
            settings,
            questions,
            out_file,
            ks=ks,
            rule=rule,
            concurrency=concurrency,
            trigger=trigger,
            label_later=label_later,
        )
    )


async def _collect(
    settings: Settings,
    questions: Path,
    out_file: Path,
    *,
    ks: tuple[int, ...],
    rule: Literal["tokens", "compat"],
    concurrency: int,
    trigger: bool,
    label_later: Path | None,
) -> None:
    from app.offline.collect import Collector, collect  # noqa: PLC0415
    from app.offline.labelling import write_unlabelled  # noqa: PLC0415
    from app.offline.questions import read_questions  # noqa: PLC0415

    labelled = read_questions(questions, label_later=label_later is not None)
    async with opened_parts(settings) as parts:
        collector = Collector(
            reader=parts.reader,
            embedder=parts.embedder,
            retriever=parts.vectors,
            identity=await identity_of(parts.reader, parts.embedder, settings),
            ks=ks,
            rule=rule,
            trigger=trigger,
        )
        with progress() as bar:
            task = bar.add_task("asking", total=len(labelled))
            report = await collect(
                labelled,
                out_file,
                collector,
                concurrency=concurrency,
                on_progress=lambda done, _: bar.update(task, completed=done),
            )
    out.print(f"{report.asked} asked, {report.skipped} already in {out_file}, {len(report.failed)} failed")
    for identifier, reason in report.failed:
        err.print(f"{identifier}: {reason}", highlight=False, markup=False)
    if report.failed:
        raise UpstreamUnavailable("reader", f"{len(report.failed)} questions failed: run it again to retry them")
    if label_later is not None:
        needed, spared = write_unlabelled(out_file, label_later)
        out.print(
            f"{needed} answers to label in {label_later}: set `correct` to true or false, then run `fetchwise refit "
            f"--labels {label_later}`. {spared} more need no label, because all answers to their question are equal.",
            highlight=False,
        )
