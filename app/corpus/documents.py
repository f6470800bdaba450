"""Reads documents from files of many formats, one at a time, and reports what it skipped and why.

The files may come from others: only regular files are read, no link leads out of a folder, and memory is bounded.
"""

import gzip
import os
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson

from app.core.available import Scalar
from app.corpus.formats import KINDS, MAX_BYTES, parse
from app.errors import DataError

_INT64 = range(-(2**63), 2**63)
_MB = 1_000_000
_ROWS = (".jsonl", ".jsonl.gz")
_MAX_ROW_MB = 10
# Each passage of a row carries the row's other fields.
_MAX_PAYLOAD_CHARS = 10_000
# Text is packed to a tenth of its size or so, a bomb to a thousandth. A small file may be an exception.
_MAX_UNPACKED = 200
_ALWAYS_UNPACKED_MB = 10


@dataclass(frozen=True, slots=True)
class Document:
    """A row of a JSONL file, a section of Markdown, or a whole file.

    `position` is the number of bytes of the file read so far.
    """

    title: str
    text: str
    payload: Mapping[str, Scalar] = field(default_factory=dict)
    # Rows of JSONL are passages already.
    is_row: bool = False
    position: int = 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was skipped, and why; `line` counts from one, None if the whole file was skipped."""

    path: Path
    line: int | None
    reason: str
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """Format as one line, like a compiler message."""
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{place}: {self.reason}"


def find(paths: Sequence[Path]) -> Iterator[Path | Skipped]:
    """Each named file, and every file below each named directory, sorted; without hidden files and links to outside."""
    for path in paths:
        if path.is_dir():
            for directory, below, files in os.walk(path):
                below[:] = sorted(name for name in below if not name.startswith("."))
                for name in sorted(files):
                    if not name.startswith("."):
                        yield _inside(Path(directory, name), path)
        elif path.exists():
            yield path
        else:
            raise DataError(f"{path} does not exist: name files or directories to ingest")


def _inside(path: Path, folder: Path) -> Path | Skipped:
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        return Skipped(path, None, f"a link to a file outside of {folder}: name that file if you want it")
    return path


def read(path: Path) -> Iterator[Document | Skipped]:
    """Read one file lazily; never raises because of its content."""
    kind = _kind(path)
    try:
        if kind in _ROWS:
            with _opened(path) as file:
                yield from _rows(path, file, packed=kind.endswith(".gz"))
        elif kind in KINDS:
            with _opened(path) as file:
                yield from _whole(path, kind, file.read(MAX_BYTES + 1))
        else:
            known = ", ".join(sorted([*_ROWS, *KINDS]))
            yield Skipped(path, None, f"unknown type {path.suffix or 'without a suffix'}: known are {known}")
    except OSError as error:
        yield Skipped(path, None, f"cannot be read: {error.strerror or error}")


def _opened(path: Path) -> IO[bytes]:
    """Open a regular file. A pipe would block for ever, and a device has no end."""
    # NONBLOCK: opening a pipe does not wait for a writer.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("not a regular file")
    return file


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return "".join(suffixes) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def _rows(path: Path, file: IO[bytes], *, packed: bool) -> Iterator[Document | Skipped]:
    number = position = 0
    empty = True
    try:
        for number, line in enumerate(_lines(file, packed=packed), 1):
            # For gzip this counts compressed bytes, to match the file size.
            position = file.tell()
            stripped = line.removeprefix(b"\xef\xbb\xbf").strip()
            if not stripped:
                continue
            empty = False
            try:
                yield _row(stripped, position)
            except DataError as error:
                yield Skipped(path, number, str(error), position)
    except DataError as error:
        yield Skipped(path, number + 1, f"{error}; the rest of the file is skipped", file.tell())
        return
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        yield Skipped(path, number + 1, f"damaged gzip, the rest of the file is skipped: {error}", file.tell())
        return
    if empty:
        yield Skipped(path, None, "empty", position)


def _lines(file: IO[bytes], *, packed: bool) -> Iterator[bytes]:
    """The lines, unpacked; DataError where one is too long, or where a small archive contains too much."""
    source: IO[bytes] = gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[assignment]
    unpacked = 0
    while line := source.readline(_MAX_ROW_MB * _MB + 1):
        if len(line) > _MAX_ROW_MB * _MB:
            raise DataError(f"longer than {_MAX_ROW_MB} MB, the limit for one row")
        unpacked += len(line)
        if packed and unpacked > _ALWAYS_UNPACKED_MB * _MB + _MAX_UNPACKED * file.tell():
            raise DataError(f"the archive unpacks to more than {_MAX_UNPACKED} times its size, the limit")
        yield line


def _row(line: bytes, position: int) -> Document:
    """Parse one line of JSONL; DataError if it is invalid."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if not _decodes(line):
            raise DataError("not UTF-8") from error
        raise DataError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError("not a JSON object")
    text = row.pop("text", None)
    if not isinstance(text, str) or not text.strip():
        raise DataError("no text: every row needs a field `text` that is not empty")
    title = row.pop("title", None) or ""
    if not isinstance(title, str):
        raise DataError("its title is not text")
    row_id = row.pop("id", None)
    if row_id is not None:
        row["source_id"] = str(row_id)
    payload = {name: scalar for name, value in row.items() if (scalar := _scalar(value)) is not None}
    if sum(len(name) + len(str(value)) for name, value in payload.items()) > _MAX_PAYLOAD_CHARS:
        raise DataError(f"its other fields are longer than {_MAX_PAYLOAD_CHARS:,} characters, the limit")
    return Document(title=title, text=text, payload=payload, is_row=True, position=position)


def _scalar(value: Any) -> Scalar | None:  # noqa: ANN401 - any JSON value
    """A value that filters can compare; None for lists and objects, text for numbers that do not fit exactly."""
    match value:
        case bool() | str():
            return value
        case int():
            return value if value in _INT64 else str(value)
        case float():
            return repr(value)
        case _:
            return None


def _decodes(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _whole(path: Path, kind: str, raw: bytes) -> Iterator[Document | Skipped]:
    try:
        found = parse(kind, raw)
    except DataError as error:
        yield Skipped(path, None, str(error), len(raw))
        return
    for title, text in found:
        yield Document(title or path.stem, text, {"source": path.name}, position=len(raw))
