"""`fetchwise tables`: bring outcome tables to the current schema, and merge answers from elsewhere."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.console import app, err, out, waiting
from app.errors import ConfigurationError
from app.settings import Settings, read_settings
from app.upstream.embedders import open_embedder
from app.upstream.parts import resilience_of

if TYPE_CHECKING:
    from app.offline.upgrade import Replies, Upgraded

tables = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Upgrade outcome tables of earlier versions.",
    epilog="`fetchwise collect` makes tables; `fetchwise refit` fits on them.",
)
app.add_typer(tables, name="tables")


@tables.callback()
def _group() -> None:
    """Keep `upgrade` a subcommand while it is the only one."""


@tables.command()
def upgrade(
    table: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Outcome table, .jsonl or .jsonl.gz.")],
    passages: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="The file of passages that was ingested.")
    ],
    out_file: Annotated[Path, typer.Option("--out", help="Table to write, .jsonl or .jsonl.gz; may be TABLE itself.")],
    replies: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="JSON lines of {id, cells, passages}: answers to merge."),
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Merge only replies with this field `set`; repeatable.")
    ] = None,
    questions: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="Questions that replies may add to the table; repeatable."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="The limit on answers that the replies were asked with.")
    ] = None,
    only_new: Annotated[  # noqa: FBT002
        bool, typer.Option("--only-new", help="Write the added rows alone, as a table of the same system.")
    ] = False,
) -> None:
    """Add evidence, vectors and word counts to a table, without asking the reader again.

    Answers come from the table, passages from the ingested file, and embeddings are computed again. With --replies,
    answers that were asked for elsewhere replace those of rows with the same id, or add rows for new questions.
    """
    if replies is None and (sets or questions or max_tokens or only_new):
        raise ConfigurationError("--set, --questions, --max-tokens and --only-new need --replies")
    from app.offline.upgrade import Replies  # noqa: PLC0415

    merged = None if replies is None else Replies(replies, frozenset(sets or ()), tuple(questions or ()), max_tokens)
    done = asyncio.run(_upgrade(read_settings(), table, out_file, passages=passages, replies=merged, only_new=only_new))
    for note in done.notes:
        err.print(note, highlight=False, markup=False)
    out.print(f"{done.rows} rows, {done.added} added, {done.replaced} answers replaced, in {out_file}", highlight=False)


async def _upgrade(
    settings: Settings, table: Path, out_file: Path, *, passages: Path, replies: "Replies | None", only_new: bool
) -> "Upgraded":
    from app.offline.upgrade import upgrade as run  # noqa: PLC0415

    with waiting("loading the embedder…"):
        opening = open_embedder(settings.embedder, resilience_of(settings))
    async with opening as embedder:
        with err.status("upgrading…") as status:
            return await run(
                table,
                out_file,
                passages=passages,
                embedder=embedder,
                replies=replies,
                only_new=only_new,
                on_progress=lambda step: status.update(f"{step}…"),
            )
