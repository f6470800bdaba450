"""The calibrators of a live run: the shipped one, one fitted anew, or one from questions collected for the purpose."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.adapters.artifact_store import ArtifactStore
from app.decision.artifact import Artifact, Identity
from app.parts import KS, Parts
from app.refit.collect import Collector, Labelled, collect
from app.refit.embed import embed_questions
from app.refit.options import Options
from app.refit.refit import refit
from app.refit.table import Outcomes, load
from app.settings import Settings

# The same table and options give the same artifact, byte by byte.
_CREATED = "1970-01-01T00:00:00+00:00"
_RISK_TARGET = 0.3


@dataclass(frozen=True, slots=True)
class Fitted:
    """A calibrator, and what the job said about it."""

    artifact: Artifact
    notes: tuple[str, ...]


def shipped(folder: Path) -> Artifact:
    """The artifact that a gateway would serve from this folder."""
    store = ArtifactStore(folder)
    version = store.current()
    if version is None:
        raise SystemExit(f"{folder} has no CURRENT: run `make refit`")
    return store.load(version)


async def running(parts: Parts, settings: Settings) -> Identity:
    """What runs, in a calibrator's words."""
    reader = await parts.reader.identify()
    return reader.within(
        embedder=parts.embedder.name, collection=settings.collection, max_tokens=settings.max_tokens, ks=KS
    )


async def fit_for_latency(table: Path, parts: Parts, folder: Path, on_progress: Callable[[int], None]) -> Fitted:
    """Fit what answers in the least time, pre-gate and exits among its means; kept in `folder` to be looked at."""
    outcomes: Outcomes = await embed_questions(load(table, columns="asked"), parts.embedder, on_progress=on_progress)
    options = Options("live", _CREATED, table.name, objective="latency", risk_target=_RISK_TARGET)
    artifact, summary = await asyncio.to_thread(refit, outcomes, options)
    ArtifactStore(folder).publish(artifact)
    return Fitted(artifact, summary.notes)


async def collect_some(
    questions: Sequence[Labelled],
    table: Path,
    parts: Parts,
    settings: Settings,
    *,
    seconds: float,
    on_progress: Callable[[int, int], None],
) -> None:
    """Ask some questions at every k, for so long; what the table holds of an earlier run stays and counts."""
    identity = await running(parts, settings)
    collector = Collector(
        reader=parts.reader, embedder=parts.embedder, retriever=parts.vectors, identity=identity, ks=KS
    )
    try:
        async with asyncio.timeout(seconds):
            await collect(questions, table, collector, identity=identity, concurrency=1, on_progress=on_progress)
    except TimeoutError:
        # The table holds every question that was finished; that is what time allows.
        return
