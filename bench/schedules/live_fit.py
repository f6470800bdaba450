"""The calibrators of a live run: the shipped one, one fitted anew, or one from questions collected for the purpose."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from app.adapters.artifact_store import ArtifactStore
from app.cli.console import progress
from app.decision.artifact import Artifact, mismatches
from app.parts import KS, Parts, identity_of
from app.refit.collect import Collector, Labelled, collect
from app.refit.embed import embed_questions
from app.refit.ledger import Objective
from app.refit.options import Options
from app.refit.refit import refit
from app.refit.table import load
from app.settings import Settings

# The same table and options give the same artifact, byte by byte.
_CREATED = "1970-01-01T00:00:00+00:00"
_RISK_TARGET = 0.3


async def shipped(folder: Path, parts: Parts, settings: Settings) -> Artifact:
    """The artifact that a gateway would serve from this folder; refused where it was fitted on something else."""
    store = ArtifactStore(folder)
    version = store.current()
    if version is None:
        raise SystemExit(f"{folder} has no CURRENT: run `make refit`")
    artifact = store.load(version)
    runs = await identity_of(parts.reader, parts.embedder, settings)
    differing = mismatches(artifact.identity, runs) if artifact.identity else ["it has no identity"]
    if differing:
        raise SystemExit(f"{version} was not fitted on what runs: {'; '.join(differing)}")
    return artifact


async def fit(
    table: Path, parts: Parts, folder: Path, *, objectives: Sequence[Objective], epsilon: float
) -> tuple[list[Artifact], list[str]]:
    """A calibrator for each objective; for latency, pre-gate and exits are among its means. Kept in `folder`.

    With them comes what the job has to say.
    """
    outcomes = load(table, columns="asked")
    fitted, notes = [], list[str]()
    with progress() as bar:
        task = bar.add_task("embedding the table's questions", total=len(set(outcomes.questions)))
        outcomes = await embed_questions(
            outcomes, parts.embedder, on_progress=lambda done: bar.update(task, completed=done)
        )
        fitting = bar.add_task("fitting", total=len(objectives))
        for objective in objectives:
            options = Options(
                "live", _CREATED, table.name, objective=objective, epsilon=epsilon, risk_target=_RISK_TARGET
            )
            artifact, summary = await asyncio.to_thread(refit, outcomes, options)
            ArtifactStore(folder).publish(artifact)
            fitted.append(artifact)
            notes += [f"fitted for {objective}: {note}" for note in summary.notes]
            bar.advance(fitting)
    return fitted, notes


async def collect_some(
    questions: Sequence[Labelled], table: Path, parts: Parts, settings: Settings, *, seconds: float
) -> None:
    """Ask questions at every k, for so long; what the table holds of an earlier run stays and counts."""
    identity = await identity_of(parts.reader, parts.embedder, settings)
    collector = Collector(
        reader=parts.reader, embedder=parts.embedder, retriever=parts.vectors, identity=identity, ks=KS
    )
    with progress() as bar:
        task = bar.add_task(f"collecting, for {seconds / 60.0:.0f} minutes at most", total=len(questions))
        try:
            async with asyncio.timeout(seconds):
                await collect(
                    questions,
                    table,
                    collector,
                    identity=identity,
                    concurrency=1,
                    on_progress=lambda done, _: bar.update(task, completed=done),
                )
        except TimeoutError:
            # Every question that was finished is in the table: that is what time allows.
            return
