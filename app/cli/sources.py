"""Where the rows of a refit come from: an outcome table, or the decision log of a gateway."""

import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from app.adapters.decision_reading import Lessons
from app.adapters.decision_store import SqlDecisionStore
from app.cli.console import err, progress
from app.errors import ConfigurationError, FetchwiseError
from app.parts import open_embedder, resilience_of
from app.settings import Settings

if TYPE_CHECKING:
    from app.refit.from_log import FromLog
    from app.refit.table import Outcomes


def from_table(path: Path, *, questions: bool = False) -> "Outcomes":
    """Read an outcome table, with what was asked where that is wanted."""
    from app.refit.table import load  # noqa: PLC0415

    with err.status("reading the table…"):
        return load(path, columns="asked" if questions else "fit")


async def embed(table: "Outcomes", settings: Settings, *, insist: bool, embed_ms: float | None) -> "Outcomes":
    """Embed a table's questions by the embedder that runs; where that cannot be, as it was, unless `insist`."""
    from app.refit.embed import embed_questions  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        try:
            with err.status("starting the embedder…"):
                embedder = await open_embedder(settings, stack, resilience_of(settings))
            with progress() as bar:
                task = bar.add_task("embedding the questions", total=len(table))
                return await embed_questions(
                    table, embedder, embed_ms=embed_ms, on_progress=lambda done: bar.update(task, completed=done)
                )
        except FetchwiseError as error:
            if insist:
                raise
            err.print(f"note: no pre-gate: {error}", markup=False, highlight=False, soft_wrap=True)
            return table


def from_log(
    settings: Settings, log: str | None, *, since: float | None, clip: float, folders: list[Path]
) -> "FromLog":
    """Read the decision log of the settings, or the one that is named; the folders hold the calibrators it mentions."""
    from app.refit.from_log import identities, read_log  # noqa: PLC0415

    where = log or settings.decision_log_at
    if where is None:
        raise ConfigurationError("FETCHWISE_DECISION_LOG is off, so there is no log to refit from: name one with --log")
    if "://" not in where and not Path(where).is_file():
        raise ConfigurationError(
            f"there is no decision log at {where}: name it with --log, or say with FETCHWISE_DATA_DIR or "
            "FETCHWISE_DECISION_LOG where the gateway keeps it"
        )
    start = 0.0 if since is None else time.time() - since
    store = SqlDecisionStore.open(where)
    try:
        lessons = Lessons(store.engine, collection=settings.collection, since=start)
        with progress() as bar:
            task = bar.add_task("reading the log", total=None)
            return read_log(
                lessons,
                identity_of=identities(*folders),
                clip=clip,
                source=f"decision log, collection {settings.collection}",
                on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    finally:
        store.close()
