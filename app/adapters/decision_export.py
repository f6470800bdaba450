"""Writes the decision log to a file for analysis: JSON lines, or Parquet where pyarrow is installed."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Boolean, Column, Double, Integer, Table, Text

from app.adapters.decision_tables import decisions, feedback
from app.errors import ConfigurationError, DataError

Rows = list[dict[str, Any]]


class Format(StrEnum):
    """What to write."""

    JSONL = "jsonl"
    PARQUET = "parquet"


def export(pages: Iterable[Rows], path: Path, form: Format, *, on_rows: Callable[[int], None]) -> None:
    """Write every page to a file that is there only once it is whole; `on_rows` hears how many were written."""
    write = _write_parquet if form is Format.PARQUET else _write_jsonl
    unfinished = path.with_name(f".{path.name}.part")
    try:
        write(pages, unfinished, on_rows)
        unfinished.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}): choose another place") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _write_jsonl(pages: Iterable[Rows], path: Path, on_rows: Callable[[int], None]) -> None:
    with path.open("wb") as file:
        for page in pages:
            file.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in page)
            on_rows(len(page))


def _write_parquet(pages: Iterable[Rows], path: Path, on_rows: Callable[[int], None]) -> None:
    try:
        # Imported here: it is an extra of 50 MB that only this needs.
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "Parquet needs pyarrow, which is not installed: pip install 'fetchwise[parquet]', or --format jsonl"
        ) from error
    schema = _schema(pa)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for page in pages:
            writer.write_table(pa.Table.from_pylist(page, schema=schema))
            on_rows(len(page))


def _schema(pa: Any) -> Any:  # noqa: ANN401 a module that is imported only if it is there
    numbers, labels = pa.map_(pa.string(), pa.float64()), pa.map_(pa.string(), pa.string())
    nested = {
        "signals": numbers,
        "read_signals": numbers,
        "propensities": numbers,
        "tags": labels,
        "passages": pa.list_(pa.string()),
        "reference_answers": pa.list_(pa.string()),
    }
    plain = {Text: pa.string(), Boolean: pa.bool_(), Integer: pa.int64(), Double: pa.float64()}

    def type_of(column: Column[Any]) -> Any:  # noqa: ANN401 the same
        kind = next((arrow for sql, arrow in plain.items() if isinstance(column.type, sql)), None)
        return nested[column.name] if kind is None else kind

    def fields(table: Table, *without: str) -> list[Any]:
        return [pa.field(column.name, type_of(column)) for column in table.columns if column.name not in without]

    verdict = pa.struct(fields(feedback, "seq", "decision_id"))
    history = [pa.field("feedback_history", pa.list_(verdict)), pa.field("feedback", verdict)]
    return pa.schema([*fields(decisions, "seq"), *history])
