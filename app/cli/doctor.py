"""`fetchwise doctor`: try every part as the gateway would use it, and say how to mend what fails."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import typer
from rich.markup import escape
from rich.table import Table

from app.adapters.artifact_store import ArtifactStore
from app.adapters.decision_reading import count
from app.cli.console import app, err, out
from app.decision.artifact import mismatches
from app.decision.signals import NAMES, extract
from app.errors import ArtifactError, DataError, FetchwiseError, StoreInUse, UpstreamBadReply
from app.parts import KS, open_decision_store, open_embedder, open_reader, open_vectors
from app.ports import Embedder, Prompt, Reader
from app.settings import Settings


@dataclass(slots=True)
class _Patient:
    """What has been opened so far; later checks need it."""

    settings: Settings
    stack: AsyncExitStack
    reader: Reader | None = None
    embedder: Embedder | None = None


@app.command()
def doctor() -> None:
    """Check every part, and say how to mend what fails; exit code 1 if anything does."""
    healthy = asyncio.run(_examine(Settings()))
    if not healthy:
        raise typer.Exit(1)


async def _examine(settings: Settings) -> bool:
    checks: dict[str, Callable[[_Patient], Awaitable[str]]] = {
        "python": _python,
        "data directory": _data_dir,
        "decision log": _decision_log,
        "reader": _reader,
        "embedder": _embedder,
        "vectors": _vectors,
        "calibrator": _calibrator,
    }
    table = Table("part", "", "finding", title="Fetchwise doctor")
    healthy = True
    async with AsyncExitStack() as stack:
        patient = _Patient(settings, stack)
        for name, check in checks.items():
            with err.status(f"checking the {name}…"):
                try:
                    table.add_row(name, "[green]ok[/]", escape(await check(patient)))
                except FetchwiseError as error:
                    healthy = False
                    table.add_row(name, "[red]failed[/]", escape(str(error)))
    out.print(table)
    return healthy


async def _python(_: _Patient) -> str:
    return sys.version.split()[0]


async def _data_dir(patient: _Patient) -> str:
    folder = patient.settings.data_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".doctor"
        probe.write_text("ok")
        probe.unlink()
    except OSError as error:
        raise DataError(f"{folder} cannot be written to ({error.strerror}): set FETCHWISE_DATA_DIR") from error
    return str(folder.resolve())


async def _decision_log(patient: _Patient) -> str:
    store = await asyncio.to_thread(open_decision_store, patient.settings)
    if store is None:
        return "off: no decisions are kept, and feedback is refused"
    try:
        name = store.engine.url.render_as_string(hide_password=True)
        return f"{name}: {await asyncio.to_thread(count, store.engine, 0.0)} decisions"
    finally:
        store.close()


async def _reader(patient: _Patient) -> str:
    patient.reader = await open_reader(patient.settings, patient.stack)
    identity = await patient.reader.identify()
    generation = await patient.reader.generate(Prompt("What is the capital of France?"), max_tokens=8)
    missing = [name for name in NAMES if name not in extract(generation.tokens)]
    if missing:
        raise UpstreamBadReply(
            "reader",
            f"it answers, but its log-probabilities give no {', '.join(missing)}: start it with --max-logprobs 20",
        )
    return f"{identity.model} ({identity.quantisation}) answers {generation.text!r}"


async def _embedder(patient: _Patient) -> str:
    patient.embedder = await open_embedder(patient.settings, patient.stack)
    return f"{patient.embedder.name}, {patient.embedder.dimension} dimensions"


async def _vectors(patient: _Patient) -> str:
    settings = patient.settings
    try:
        vectors = open_vectors(settings)
    except StoreInUse as error:
        return f"in use by a running gateway, which is fine: {error}"
    patient.stack.push_async_callback(vectors.close)
    await vectors.ping()
    return f"{settings.collection}: {await vectors.count(settings.collection)} passages"


async def _calibrator(patient: _Patient) -> str:
    settings, store = patient.settings, ArtifactStore(patient.settings.calibrators)
    version = store.current()
    if version is None:
        raise ArtifactError(f"none in {store.folder}: every question reads five passages until `fetchwise refit`")
    artifact = store.load(version)
    if patient.reader is None or patient.embedder is None:
        raise ArtifactError(f"{version} cannot be compared with what runs: mend the reader and the embedder first")
    reader = await patient.reader.identify()
    running = reader.within(
        embedder=patient.embedder.name, collection=settings.collection, max_tokens=settings.max_tokens, ks=KS
    )
    differing = mismatches(artifact.identity, running) if artifact.identity else ["it has no identity"]
    if differing:
        raise ArtifactError(f"{version} does not match what runs ({'; '.join(differing)}): collect and refit")
    fit = artifact.policies.get("graded")
    return f"{version}, {'certified' if fit and fit.certificate else 'not certified: its fallback serves'}"
