"""The calibrators of a live run: the shipped one, one fitted anew, or one from questions collected for the purpose."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from app.adapters.artifact_store import ArtifactStore
from app.cli.console import progress
from app.decision.artifact import Artifact, Identity, mismatches
from app.parts import KS, Parts
from app.refit.collect import Collector, Labelled, collect
from app.refit.embed import embed_questions
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
    runs = await _running(parts, settings)
    differing = mismatches(artifact.identity, runs) if artifact.identity else ["it has no identity"]
    if differing:
        raise SystemExit(f"{version} was not fitted on what runs: {'; '.join(differing)}")
    return artifact


async def fit_for_latency(table: Path, parts: Parts, folder: Path, epsilon: float) -> tuple[Artifact, list[str]]:
    """Fit what answers in the least time, pre-gate and exits among its means; kept in `folder` to be looked at.

    With it comes what the job has to say.
    """
    outcomes = load(table, columns="asked")
    with progress() as bar:
        task = bar.add_task("embedding the table's questions", total=len(set(outcomes.questions)))
        outcomes = await embed_questions(
            outcomes, parts.embedder, on_progress=lambda done: bar.update(task, completed=done)
        )
        task = bar.add_task("fitting", total=None)
        options = Options("live", _CREATED, table.name, objective="latency", epsilon=epsilon, risk_target=_RISK_TARGET)
        artifact, summary = await asyncio.to_thread(refit, outcomes, options)
        bar.update(task, total=1, completed=1)
    ArtifactStore(folder).publish(artifact)
    return artifact, list(summary.notes)


async def collect_some(
    questions: Sequence[Labelled], table: Path, parts: Parts, settings: Settings, *, seconds: float
) -> None:
    """Ask questions at every k, for so long; what the table holds of an earlier run stays and counts."""
    identity = await _running(parts, settings)
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


async def _running(parts: Parts, settings: Settings) -> Identity:
    reader = await parts.reader.identify()
    return reader.within(
        embedder=parts.embedder.name, collection=settings.collection, max_tokens=settings.max_tokens, ks=KS
    )
