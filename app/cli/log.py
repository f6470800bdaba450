"""`fetchwise log`: export the decision log as JSON lines or Parquet, prune it, count it, replay it."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.table import Table

from app.calibrators.store import ArtifactStore
from app.cli.console import AsJson, app, out, progress
from app.core.replay import replay_logged
from app.errors import ConfigurationError, DataError, UnknownDecision
from app.settings import read_settings
from app.storage.decisions import SqlDecisionStore
from app.storage.reading import NEWEST, count, logged, pages, stats
from app.storage.tables import decisions, feedback
from app.telemetry.log_lines import printable

_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
_PRUNED_AT_ONCE = 1_000
# For a page of an export or a refit, on a server that is busy with other things.
_REPLY_S = 300.0
_Rows = list[dict[str, Any]]
# Their shape depends on the policy, so Parquet gets them as JSON.
_AS_TEXT = ("effective_policy", "steps")

log = typer.Typer(no_args_is_help=True, help="The decision log: export it, prune it, count it, replay it.")
app.add_typer(log, name="log")


class Format(StrEnum):
    """The format of an export."""

    JSONL = "jsonl"
    PARQUET = "parquet"


def seconds(span: str) -> float:
    """Parse a span of time such as 30d, 12h or 15m."""
    parsed = re.fullmatch(r"(\d+)([mhd])", span)
    if parsed is None:
        raise typer.BadParameter(f"{span!r} is not a span of time: write 90d, 12h or 30m")
    return int(parsed[1]) * _SECONDS[parsed[2]]


@log.command("export")
def export_log(
    to: Annotated[Path, typer.Option("--out", help="File to write.")],
    since: Annotated[float | None, typer.Option(parser=seconds, help="Only the last 30d, 12h or 15m.")] = None,
    form: Annotated[Format | None, typer.Option("--format", help="By default by the file's suffix, or jsonl.")] = None,
) -> None:
    """Write every decision with its feedback to a file, oldest first; the gateway keeps answering meanwhile."""
    chosen = form or (Format.PARQUET if to.suffix == ".parquet" else Format.JSONL)
    start = 0.0 if since is None else time.time() - since
    with opened_log(read_settings().decision_log_at) as store, progress() as bar:
        task = bar.add_task("exporting", total=count(store.database, start))
        _export(pages(store.database, start), to, chosen, on_rows=lambda rows: bar.advance(task, rows))
        written = int(bar.tasks[0].completed)
    out.print(f"wrote {written} decisions to {to}", highlight=False, soft_wrap=True)


@log.command()
def prune(
    older_than: Annotated[float, typer.Option(parser=seconds, help="Delete decisions older than this: 90d, 12h, 15m.")],
) -> None:
    """Delete old decisions and their feedback, a few at a time; new decisions reuse the space."""
    with opened_log(read_settings().decision_log_at) as store, progress() as bar:
        task = bar.add_task("pruning", total=None)
        while gone := store.prune(older_than, limit=_PRUNED_AT_ONCE):
            bar.advance(task, gone)
        deleted = int(bar.tasks[0].completed)
    out.print(f"deleted {deleted} decisions", highlight=False)


@log.command("stats")
def show_stats(as_json: AsJson = False) -> None:  # noqa: FBT002
    """Count decisions and feedback by action; of a large log the newest."""
    with opened_log(read_settings().decision_log_at) as store:
        found = stats(store.database)
        database = store.database.name
    if as_json:
        typer.echo(orjson.dumps(asdict(found) | {"database": database}))
        return
    newest = f", the newest {NEWEST} by action" if found.decisions > NEWEST else ""
    table = Table("action", "decisions", "with feedback", "right", title=f"{found.decisions} decisions{newest}")
    for one in found.actions:
        right = f"{one.correct} ({one.correct / one.judged:.0%})" if one.judged else "–"
        table.add_row(one.action, str(one.decisions), str(one.judged), right)
    out.print(table)
    out.print(f"{database}, schema version {found.schema_version}", highlight=False, soft_wrap=True)
    if found.first_at is not None and found.last_at is not None:
        out.print(f"from {_when(found.first_at)} to {_when(found.last_at)}; feedback received {found.feedback} times")


@log.command("replay")
def replay_log(
    identifier: Annotated[str | None, typer.Argument(metavar="[ID]", help="One decision, by its receipt's id.")] = None,
    last: Annotated[int, typer.Option(min=1, help="How many of the latest decisions, where no id is given.")] = 1_000,
) -> None:
    """Decide logged questions again with the calibrators they name; exit code 1 where a result differs.

    Needs no text of a question or an answer, so it works with `FETCHWISE_LOG_TEXTS=hash` too.
    """
    settings = read_settings()
    with opened_log(settings.decision_log_at) as store:
        found = logged(store.database, last=last, identifier=identifier)
    if identifier is not None and not found:
        raise UnknownDecision(f"the decision log has no decision {identifier}: check the id; it may have been pruned")
    done = list(replay_logged(found, ArtifactStore(settings.calibration.where).load))
    different = [one for one in done if one.differences]
    missing = [one for one in done if one.problem is not None]
    for one in different:
        typer.echo(printable(f"{one.id} differs: {'; '.join(one.differences)}"))
    for one in missing:
        typer.echo(printable(f"{one.id} cannot be replayed: {one.problem}"))
    same = len(done) - len(different) - len(missing)
    typer.echo(f"{len(done)} decisions: {same} the same, {len(different)} different, {len(missing)} not replayed")
    if different:
        raise typer.Exit(1)


@contextmanager
def opened_log(where: str | None) -> Iterator[SqlDecisionStore]:
    """Open the log at this path or URL; a missing file is not created."""
    if where is None:
        raise ConfigurationError("FETCHWISE_DECISION_LOG is off: no decisions are stored")
    if "://" not in where and not Path(where).is_file():
        raise ConfigurationError(
            f"there is no decision log at {where}: set FETCHWISE_DATA_DIR or FETCHWISE_DECISION_LOG to where the "
            "gateway stores it"
        )
    store = SqlDecisionStore.open(where, reply_s=_REPLY_S)
    try:
        yield store
    finally:
        store.close()


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def _export(pages: Iterable[_Rows], path: Path, form: Format, *, on_rows: Callable[[int], None]) -> None:
    """Write every page to a file that appears only once it is complete; `on_rows` gets the number of rows written."""
    write = _write_parquet if form is Format.PARQUET else _write_jsonl
    unfinished = path.with_name(f".{path.name}.part")
    try:
        write(pages, unfinished, on_rows)
        unfinished.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}): choose another file") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _write_jsonl(pages: Iterable[_Rows], path: Path, on_rows: Callable[[int], None]) -> None:
    with path.open("wb") as file:
        for page in pages:
            file.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in page)
            on_rows(len(page))


def _write_parquet(pages: Iterable[_Rows], path: Path, on_rows: Callable[[int], None]) -> None:
    try:
        # Imported here: an optional package of 50 MB.
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "Parquet needs pyarrow, which is not installed: run pip install 'fetchwise[parquet]', or use --format jsonl"
        ) from error
    schema = _schema(pa)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for page in pages:
            rows = [row | {name: orjson.dumps(row[name]).decode() for name in _AS_TEXT} for row in page]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            on_rows(len(page))


def _schema(pa: Any) -> Any:  # noqa: ANN401 a module that is imported only if it is there
    numbers, labels = pa.map_(pa.string(), pa.float64()), pa.map_(pa.string(), pa.string())
    nested = {
        "evidence": numbers,
        "propensities": numbers,
        "tags": labels,
        "passages": pa.list_(pa.string()),
        **dict.fromkeys(_AS_TEXT, pa.string()),
        "reference_answers": pa.list_(pa.string()),
    }
    plain = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}

    def fields(columns: Iterable[Any], *without: str) -> list[Any]:
        return [
            pa.field(one.name, nested[one.name] if one.name in nested else plain[one.type.python_type])
            for one in columns
            if one.name not in without
        ]

    verdict = pa.struct(fields(feedback.columns, "seq", "decision_id"))
    history = [pa.field("feedback_history", pa.list_(verdict)), pa.field("feedback", verdict)]
    return pa.schema([*fields(decisions.columns, "seq"), *history])
