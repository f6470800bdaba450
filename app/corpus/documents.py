"""Reads documents from files of many formats, one at a time, and reports what it skipped and why."""

import gzip
import importlib
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import orjson

from app.core.question import Scalar
from app.corpus.chunks import markdown_sections
from app.errors import DataError

_INT64 = range(-(2**63), 2**63)


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


def find(paths: Sequence[Path]) -> Iterator[Path]:
    """Each named file, and every file below each named directory, sorted; hidden files are skipped."""
    for path in paths:
        if path.is_dir():
            for directory, below, files in os.walk(path):
                below[:] = sorted(name for name in below if not name.startswith("."))
                yield from (Path(directory, name) for name in sorted(files) if not name.startswith("."))
        elif path.exists():
            yield path
        else:
            raise DataError(f"{path} does not exist: name files or directories to ingest")


def read(path: Path) -> Iterator[Document | Skipped]:
    """Read one file lazily; never raises because of its content."""
    kind = _kind(path)
    try:
        if kind in _ROWS:
            with path.open("rb") as file:
                yield from _rows(path, gzip.GzipFile(fileobj=file) if kind.endswith(".gz") else file, file)
        elif kind in _WHOLE:
            yield from _whole(path, _WHOLE[kind])
        else:
            known = ", ".join(sorted([*_ROWS, *_WHOLE]))
            yield Skipped(path, None, f"unknown type {path.suffix or 'without a suffix'}: known are {known}")
    except OSError as error:
        yield Skipped(path, None, f"cannot be read: {error.strerror or error}")


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return "".join(suffixes) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def _rows(path: Path, lines: Iterable[bytes], file: IO[bytes]) -> Iterator[Document | Skipped]:
    number = position = 0
    empty = True
    try:
        for number, line in enumerate(lines, 1):
            # For gzip count compressed bytes, to match the file size. Otherwise add up the lines, because iterating
            # a file reads ahead.
            position = position + len(line) if lines is file else file.tell()
            stripped = line.removeprefix(b"\xef\xbb\xbf").strip()
            if not stripped:
                continue
            empty = False
            try:
                yield _row(stripped, position)
            except DataError as error:
                yield Skipped(path, number, str(error), position)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        yield Skipped(path, number + 1, f"damaged gzip, the rest of the file is skipped: {error}", file.tell())
        return
    if empty:
        yield Skipped(path, None, "empty", position)


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


# Titles and texts; a title may be empty. DataError if there is no text.
_Parse = Callable[[bytes], list[tuple[str, str]]]


def _whole(path: Path, parse: _Parse) -> Iterator[Document | Skipped]:
    raw = path.read_bytes()
    try:
        found = parse(raw)
    except DataError as error:
        yield Skipped(path, None, str(error), len(raw))
        return
    for title, text in found:
        yield Document(title or path.stem, text, {"source": path.name}, position=len(raw))


def _text(raw: bytes) -> list[tuple[str, str]]:
    if not raw.strip():
        raise DataError("empty")
    try:
        return [("", raw.decode("utf-8-sig"))]
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8: byte {error.start}") from error


def _markdown(raw: bytes) -> list[tuple[str, str]]:
    [(_, text)] = _text(raw)
    sections = [(" > ".join(section.headings), section.text) for section in markdown_sections(text)]
    if not sections:
        raise DataError("empty: headings without text")
    return sections


# Block elements: a browser starts a new line for them.
_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|br|caption|d[dlt]|details|div|fieldset|figcaption|figure|footer|form|h[1-6r]|"
    "header|li|main|ol|p|pre|section|summary|table|tbody|td|tfoot|th|thead|tr|ul"
)
# Not the head: its end tag is optional, and without it the parser takes the body as part of the head.
_UNREAD = ("noscript", "script", "style", "svg", "template", "title")


def _is_block(tag: Any) -> bool:  # noqa: ANN401 - a bs4.Tag; the package is optional
    return _BLOCKS.fullmatch(tag.name) is not None


def _html(raw: bytes) -> list[tuple[str, str]]:
    bs4 = _optional("bs4", "HTML")
    with warnings.catch_warnings():
        # It warns about XHTML and about text that looks like a file name; both parse well.
        warnings.simplefilter("ignore")
        soup = bs4.BeautifulSoup(raw, "html.parser")
    if soup.contains_replacement_characters:
        raise DataError("its characters cannot be decoded")
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    for tag in soup.find_all(_UNREAD):
        tag.decompose()
    for tag in soup.find_all(_is_block):
        tag.insert_before("\n\n")
        tag.insert_after("\n\n")
    text = soup.get_text()
    if not text.strip():
        raise DataError("empty: no text in it")
    return [(title, text)]


def _pdf(raw: bytes) -> list[tuple[str, str]]:
    pypdf = _optional("pypdf", "PDF")
    try:
        reader = pypdf.PdfReader(BytesIO(raw))
        # Many are encrypted with an empty password, to forbid printing.
        readable = not reader.is_encrypted or reader.decrypt("")
        title = str((readable and reader.metadata and reader.metadata.title) or "").strip()
        text = "\n".join(page.extract_text() for page in reader.pages) if readable else ""
    except Exception as error:
        # A broken PDF can make the parser raise anything; the trailer shows whether it is an unsupported cipher.
        readable = not re.search(rb"/Encrypt\s+\d+\s+\d+\s+R", raw)
        if readable:
            raise DataError(f"not a readable PDF: {error}") from error
    if not readable:
        raise DataError("encrypted: remove its password first")
    if not text.strip():
        raise DataError("empty: no text in it, perhaps a scan")
    return [(_unicode(title), _unicode(text))]


def _optional(package: str, kind: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise DataError(f"{kind} needs another package: pip install 'fetchwise[ingest]'") from error


def _unicode(text: str) -> str:
    """Remove lone surrogates, which PDFs can contain and no store accepts."""
    return text.encode("utf-8", "replace").decode()


_ROWS = (".jsonl", ".jsonl.gz")
_WHOLE: dict[str, _Parse] = {
    ".txt": _text,
    ".md": _markdown,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
}
