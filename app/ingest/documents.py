"""Reads documents from files of many kinds, one at a time, and says why it left out what it could not read."""

import gzip
import importlib
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import orjson

from app.decision.passage import Scalar
from app.errors import DataError
from app.ingest.chunks import markdown_sections

_INT64 = range(-(2**63), 2**63)
_INSTALL = "pip install 'fetchwise[ingest]'"


@dataclass(frozen=True, slots=True)
class Document:
    """Something to be found: a row of a JSONL file, a section of Markdown, or a whole file.

    `position` is how many bytes of its file had been read when it was complete.
    """

    title: str
    text: str
    payload: Mapping[str, Scalar] = field(default_factory=dict)
    # A row was cut to size by whoever wrote it.
    is_row: bool = False
    position: int = 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was left out, and why; `line` counts from one, and is none where the whole file was left out."""

    path: Path
    line: int | None
    reason: str
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """Say it in one line, as a compiler would."""
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{place}: {self.reason}"


def find(paths: Sequence[Path]) -> Iterator[Path]:
    """Each named file, and every file below each named directory in a fixed order; hidden ones are passed over."""
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
    """Read one file lazily; never raises for what is in it."""
    reader = _READERS.get(_kind(path))
    if reader is None:
        known = ", ".join(sorted(_READERS))
        yield Skipped(path, None, f"unknown type {path.suffix or 'without a suffix'}: known are {known}")
        return
    try:
        yield from reader(path)
    except OSError as error:
        yield Skipped(path, None, f"cannot be read: {error.strerror or error}")


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return "".join(suffixes) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def _read_jsonl(path: Path) -> Iterator[Document | Skipped]:
    with path.open("rb") as file:
        yield from _rows(path, file, file)


def _read_jsonl_gz(path: Path) -> Iterator[Document | Skipped]:
    with path.open("rb") as file, gzip.GzipFile(fileobj=file) as unpacked:
        yield from _rows(path, unpacked, file)


def _rows(path: Path, lines: Iterable[bytes], file: IO[bytes]) -> Iterator[Document | Skipped]:
    number = position = 0
    empty = True
    try:
        for number, line in enumerate(lines, 1):
            # Of an unpacked line only the packed bytes count, as in the file's size; else counted by hand, because
            # a file whose lines are iterated has read ahead.
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
        yield Skipped(path, number + 1, f"damaged gzip, nothing is read from here on: {error}", file.tell())
        return
    if empty:
        yield Skipped(path, None, "empty", position)


def _row(line: bytes, position: int) -> Document:
    """One line of JSONL; DataError says what is wrong with it."""
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
    """What a filter can compare, none for lists and objects; numbers that it cannot hold exactly become text."""
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


def _read_text(path: Path) -> Iterator[Document | Skipped]:
    raw = path.read_bytes()
    text = _decoded(path, raw)
    if isinstance(text, Skipped):
        yield text
    else:
        yield Document(path.stem, text, {"source": path.name}, position=len(raw))


def _read_markdown(path: Path) -> Iterator[Document | Skipped]:
    raw = path.read_bytes()
    text = _decoded(path, raw)
    if isinstance(text, Skipped):
        yield text
        return
    sections = list(markdown_sections(text))
    if not sections:
        yield Skipped(path, None, "empty: headings without text", len(raw))
    for section in sections:
        title = " > ".join(section.headings) or path.stem
        yield Document(title, section.text, {"source": path.name}, position=len(raw))


def _decoded(path: Path, raw: bytes) -> str | Skipped:
    if not raw.strip():
        return Skipped(path, None, "empty", len(raw))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Skipped(path, None, f"not UTF-8: byte {error.start}", len(raw))


# What a browser puts on lines of its own.
_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|br|caption|d[dlt]|details|div|fieldset|figcaption|figure|footer|form|h[1-6r]|"
    "header|li|main|ol|p|pre|section|summary|table|tbody|td|tfoot|th|thead|tr|ul"
)
# Not the head: its end is optional in HTML, and without it the parser takes the body for a part of it.
_UNREAD = ("noscript", "script", "style", "svg", "template", "title")


def _is_block(tag: Any) -> bool:  # noqa: ANN401 - a bs4.Tag; the package is optional
    return _BLOCKS.fullmatch(tag.name) is not None


def _read_html(path: Path) -> Iterator[Document | Skipped]:
    try:
        bs4 = importlib.import_module("bs4")
    except ImportError:
        yield Skipped(path, None, f"HTML needs another package: {_INSTALL}")
        return
    raw = path.read_bytes()
    with warnings.catch_warnings():
        # It warns of XHTML, and of text that looks like a file name: both are read well enough.
        warnings.simplefilter("ignore")
        soup = bs4.BeautifulSoup(raw, "html.parser")
    if soup.contains_replacement_characters:
        yield Skipped(path, None, "its characters cannot be decoded", len(raw))
        return
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    for tag in soup.find_all(_UNREAD):
        tag.decompose()
    for tag in soup.find_all(_is_block):
        tag.insert_before("\n\n")
        tag.insert_after("\n\n")
    text = soup.get_text()
    if not text.strip():
        yield Skipped(path, None, "empty: no text in it", len(raw))
        return
    yield Document(title or path.stem, text, {"source": path.name}, position=len(raw))


def _read_pdf(path: Path) -> Iterator[Document | Skipped]:
    try:
        pypdf = importlib.import_module("pypdf")
    except ImportError:
        yield Skipped(path, None, f"PDF needs another package: {_INSTALL}")
        return
    raw = path.read_bytes()
    try:
        reader = pypdf.PdfReader(BytesIO(raw))
        # Many are encrypted with an empty password, only to forbid printing.
        if reader.is_encrypted and not reader.decrypt(""):
            yield Skipped(path, None, "encrypted: remove its password first", len(raw))
            return
        title = str((reader.metadata and reader.metadata.title) or "").strip()
        text = "\n".join(page.extract_text() for page in reader.pages)
    except Exception as error:  # noqa: BLE001 - a broken PDF makes the parser raise nearly anything
        reason = "encrypted: remove its password first" if _is_encrypted(raw) else f"not a readable PDF: {error}"
        yield Skipped(path, None, reason, len(raw))
        return
    if not text.strip():
        yield Skipped(path, None, "empty: no text in it, perhaps a scan", len(raw))
        return
    yield Document(_unicode(title) or path.stem, _unicode(text), {"source": path.name}, position=len(raw))


def _is_encrypted(raw: bytes) -> bool:
    """Whether the trailer names an encryption: where the parser lacks the cipher it cannot say so itself."""
    return re.search(rb"/Encrypt\s+\d+\s+\d+\s+R", raw) is not None


def _unicode(text: str) -> str:
    """Without half characters, which a PDF's own encoding can produce and no store accepts."""
    return text.encode("utf-8", "replace").decode()


_READERS = {
    ".jsonl": _read_jsonl,
    ".jsonl.gz": _read_jsonl_gz,
    ".txt": _read_text,
    ".md": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
}
