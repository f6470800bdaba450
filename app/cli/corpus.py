"""`fetchwise ingest`: fill a collection from files."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from app.cli.console import app, err, log_to_stderr, out, waiting
from app.corpus.ingest import Ingested
from app.corpus.ingest import Progress as IngestProgress
from app.corpus.ingest import ingest as ingest_files
from app.ports import Embedder, VectorStore
from app.settings import Settings, read_settings
from app.upstream.embedders import open_embedder
from app.upstream.parts import resilience_of
from app.upstream.vectors import open_vectors

_SHOWN = 20


@app.command()
def ingest(
    paths: Annotated[list[Path], typer.Argument(help="Files or folders: .jsonl(.gz), .txt, .md, .html, .pdf.")],
    collection: Annotated[str | None, typer.Option(help="Collection to fill. Default: FETCHWISE_COLLECTION.")] = None,
) -> None:
    """Cut files into passages of about 100 words, embed and store them. Run it again to resume.

    A JSON line is {title?, text, ...}; requests can filter by its other fields. The id of a passage is a hash of its
    content, so a second run adds nothing.
    """
    settings = read_settings()
    log_to_stderr(settings.server.log_level)
    report = asyncio.run(_ingest(settings, paths, collection or settings.vectors.collection))
    out.print(
        f"{report.added} passages added, {report.known} already stored, {len(report.skipped)} skipped, "
        f"{report.seconds:.1f} s, into {collection or settings.vectors.collection!r}"
    )
    for skipped in report.skipped[:_SHOWN]:
        out.print(f"  skipped {skipped}", markup=False, highlight=False)
    if len(report.skipped) > _SHOWN:
        out.print(f"  … and {len(report.skipped) - _SHOWN} more")


async def _ingest(settings: Settings, paths: Sequence[Path], collection: str) -> Ingested:
    async with AsyncExitStack() as stack:
        resilience = resilience_of(settings)
        vectors = open_vectors(settings.vectors, resilience, data_dir=settings.server.data_dir)
        stack.push_async_callback(vectors.close)
        with waiting("loading the embedder…"):
            embedder = await stack.enter_async_context(open_embedder(settings.embedder, resilience))
        return await fill(paths, collection, embedder, vectors)


async def fill(paths: Sequence[Path], collection: str, embedder: Embedder, vectors: VectorStore) -> Ingested:
    """Ingest with a progress bar on a terminal, else with one line."""
    if not err.is_terminal:
        err.print(f"ingesting into {collection}…", highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[added]} new passages, left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(f"ingesting into {collection}", total=None, added=0)

        def show(progress: IngestProgress) -> None:
            bar.update(task, completed=progress.bytes_done, total=progress.bytes_total, added=progress.added)

        return await ingest_files(paths, collection=collection, embedder=embedder, corpus=vectors, on_progress=show)
