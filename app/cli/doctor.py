"""`fetchwise doctor`: check every part in the way the gateway uses it, and print how to fix each failure."""

import asyncio
import stat
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from app.access import keys_required
from app.access.keys import Scope
from app.calibrators.store import ArtifactStore
from app.cli.console import app, err, out
from app.core.artifact import mismatches
from app.core.signals import NAMES, extract
from app.economics.breakeven import passages
from app.errors import (
    ArtifactError,
    DataError,
    FetchwiseError,
    StoreInUse,
    UpstreamBadReply,
    UpstreamError,
    UpstreamUnavailable,
)
from app.ports import Embedder, Prompt, Reader
from app.settings import Settings, groups, read_settings
from app.storage import open_rows
from app.storage.reading import count
from app.upstream.embedders import open_embedder
from app.upstream.parts import identity_of, resilience_of
from app.upstream.readers import open_reader
from app.upstream.vectors import open_vectors
from app.wiring.gateway import key_file


@dataclass(slots=True)
class _Checked:
    """The parts opened so far; later checks use them."""

    settings: Settings
    stack: AsyncExitStack
    reader: Reader | None = None
    embedder: Embedder | None = None


@app.command()
def doctor() -> None:
    """Check every part and print how to fix each failure. The exit code is 1 if a check fails."""
    healthy = asyncio.run(_examine(read_settings()))
    if not healthy:
        raise typer.Exit(1)


async def _examine(settings: Settings) -> bool:
    checks: dict[str, Callable[[_Checked], Awaitable[str]]] = {
        "python": _python,
        "data directory": _data_dir,
        "keys": _keys,
        "decision log": _decision_log,
        "reader": _reader,
        "embedder": _embedder,
        "vectors": _vectors,
        "calibrator": _calibrator,
    }
    table = Table("part", "", "finding", title="Fetchwise doctor")
    healthy = True
    async with AsyncExitStack() as stack:
        checked = _Checked(settings, stack)
        for name, check in checks.items():
            with err.status(f"checking the {name}…"):
                try:
                    table.add_row(name, "[green]ok[/]", escape(await check(checked)))
                except FetchwiseError as error:
                    healthy = False
                    table.add_row(name, "[red]failed[/]", escape(str(error)))
    out.print(table)
    return healthy


async def _python(_: _Checked) -> str:
    return sys.version.split()[0]


async def _data_dir(checked: _Checked) -> str:
    folder = checked.settings.server.data_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".doctor"
        probe.write_text("ok")
        probe.unlink()
    except OSError as error:
        raise DataError(f"{folder} is not writable ({error.strerror}): set FETCHWISE_DATA_DIR") from error
    others = stat.S_IMODE(folder.stat().st_mode) & 0o077
    return f"{folder.resolve()}{f', other users can look into it: run `chmod 700 {folder}`' if others else ''}"


async def _keys(checked: _Checked) -> str:
    return await asyncio.to_thread(_keys_found, checked.settings)


def _keys_found(settings: Settings) -> str:
    file, required = key_file(settings.keys_at), keys_required(settings.access, settings.server.host)
    keys = file.read()
    if keys is None and not required:
        return "off: anyone who reaches this address can ask and see everything"
    active = [one for one in keys or () if one.revoked is None]
    if not active:
        raise DataError(f"there is no active key in {file.where}, so no request is served: run `fetchwise keys create`")
    others = stat.S_IMODE(settings.keys_at.stat().st_mode) & 0o077 if isinstance(settings.keys_at, Path) else 0
    if others & 0o022:
        raise DataError(f"other users can write to {file.where} and add keys: run `chmod 600 {file.where}`")
    scopes = ", ".join(f"{scope.value} {sum(scope in one.scopes for one in active)}" for scope in Scope)
    seen = f"other users can read it: run `chmod 600 {file.where}`" if others & 0o044 else "readable by its owner only"
    return f"on: {len(active)} active (scopes: {scopes}) in {file.where}, {seen}"


async def _decision_log(checked: _Checked) -> str:
    store = await asyncio.to_thread(open_rows, checked.settings)
    if store is None:
        return "off: decisions are not stored, and feedback is refused"
    try:
        name = store.database.name
        return f"{name}: {await asyncio.to_thread(count, store.database, 0.0)} decisions"
    finally:
        store.close()


async def _reader(checked: _Checked) -> str:
    settings = checked.settings.reader
    checked.reader = await _opened_reader(checked, settings)
    if len(settings.urls) == 1:
        return await _reads(checked.reader)
    findings = []
    for url in settings.urls:
        alone = settings.model_copy(update={"backend": url})
        try:
            findings.append(f"{url}: {await _reads(await _opened_reader(checked, alone))}")
        except UpstreamError as error:
            raise UpstreamUnavailable("reader", f"{url}: {error}") from error
    return "\n".join(findings)


async def _opened_reader(checked: _Checked, reader: groups.Reader) -> Reader:
    settings = checked.settings
    data_dir, at_once = settings.server.data_dir, settings.limits.max_in_flight
    opening = open_reader(reader, resilience_of(settings), data_dir=data_dir, at_once=at_once)
    return await checked.stack.enter_async_context(opening)


async def _reads(reader: Reader) -> str:
    identity = await reader.identify()
    generation = await reader.generate(Prompt("What is the capital of France?"), max_tokens=8)
    missing = [name for name in NAMES if name not in extract(generation.tokens)]
    if missing:
        raise UpstreamBadReply(
            "reader",
            f"it answers, but {', '.join(missing)} cannot be computed from its log-probabilities: start it with "
            "--max-logprobs 20",
        )
    return f"{identity.reader} ({identity.quantisation}) answers {generation.text!r}"


async def _embedder(checked: _Checked) -> str:
    settings = checked.settings
    opening = open_embedder(settings.embedder, resilience_of(settings))
    checked.embedder = await checked.stack.enter_async_context(opening)
    return f"{checked.embedder.name}, {checked.embedder.dimension} dimensions"


async def _vectors(checked: _Checked) -> str:
    settings = checked.settings
    try:
        vectors = open_vectors(settings.vectors, resilience_of(settings), data_dir=settings.server.data_dir)
    except StoreInUse as error:
        return f"in use by a running gateway, which is fine: {error}"
    checked.stack.push_async_callback(vectors.close)
    await vectors.ping()
    return f"{settings.vectors.collection}: {await vectors.count(settings.vectors.collection)} passages"


async def _calibrator(checked: _Checked) -> str:
    settings, store = checked.settings, ArtifactStore(checked.settings.calibration.where)
    version = store.current()
    if version is None:
        most = passages(settings.calibration.ks[-1])
        raise ArtifactError(f"none in {store.where}, so every question reads {most}: collect and refit")
    artifact = store.load(version)
    store.load_stats(artifact)
    if checked.reader is None or checked.embedder is None:
        raise ArtifactError(f"{version} cannot be checked: fix the reader and the embedder first")
    running = await identity_of(checked.reader, checked.embedder, settings)
    differing = mismatches(artifact.identity, running) if artifact.identity else ["it has no identity"]
    if differing:
        raise ArtifactError(f"{version} does not match the running system ({'; '.join(differing)}): collect and refit")
    return f"{version}, {'certified' if artifact.certified else 'not certified, so its fallback is used'}"
