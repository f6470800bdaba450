"""The calibrators of a live run: the shipped one, and one fitted for latency."""

import asyncio
from pathlib import Path

from app.adapters.artifact_store import ArtifactStore
from app.cli.console import err, progress
from app.decision.artifact import Artifact, mismatches
from app.parts import Parts, identity_of
from app.refit.embed import embed_questions
from app.refit.options import Options
from app.refit.refit import refit
from app.refit.table import load
from app.settings import Settings

# The same table and options give the same artifact, byte by byte.
_CREATED = "1970-01-01T00:00:00+00:00"
_RISK_TARGET = 0.3


async def shipped(folder: Path, parts: Parts, settings: Settings) -> tuple[Artifact, list[str]]:
    """The artifact that a gateway would serve from this folder, and in what it differs from what runs."""
    store = ArtifactStore(folder)
    version = store.current()
    if version is None:
        raise SystemExit(f"{folder} has no CURRENT: run `make refit`")
    artifact = store.load(version)
    runs = await identity_of(parts.reader, parts.embedder, settings)
    return artifact, mismatches(artifact.identity, runs) if artifact.identity else ["it has no identity"]


async def fit(table: Path, parts: Parts, folder: Path, *, epsilon: float) -> tuple[Artifact, list[str]]:
    """A calibrator for latency, with pre-gate and exits among its means, and what the job has to say; kept there."""
    outcomes = load(table, columns="asked")
    with progress() as bar:
        task = bar.add_task("embedding the table's questions", total=len(set(outcomes.questions)))
        outcomes = await embed_questions(
            outcomes, parts.embedder, on_progress=lambda done: bar.update(task, completed=done)
        )
    options = Options("live", _CREATED, table.name, objective="latency", epsilon=epsilon, risk_target=_RISK_TARGET)
    with err.status("fitting…"):
        artifact, summary = await asyncio.to_thread(refit, outcomes, options)
    ArtifactStore(folder).publish(artifact)
    return artifact, [f"fitted for latency: {note}" for note in summary.notes]
