"""Turns the bytes of a file into titles and texts. The bytes may be anything: size and time are bounded."""

import importlib
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from types import FrameType
from typing import Any, Never

from app.corpus.chunks import markdown_sections
from app.errors import DataError

# A book has one megabyte of text, and a PDF of a thousand pages takes a minute.
_MAX_MB = 100
MAX_BYTES = _MAX_MB * 1_000_000
MAX_SECONDS = 120

# Titles and texts; a title may be empty. DataError if there is no text.
_Parse = Callable[[bytes], list[tuple[str, str]]]


def parse(kind: str, raw: bytes, *, seconds: float = MAX_SECONDS) -> list[tuple[str, str]]:
    """The titles and texts of a file of this kind; DataError if there are none, or if it is too large or too slow."""
    if len(raw) > MAX_BYTES:
        raise DataError(f"larger than {_MAX_MB} MB, the limit for one file: split it")
    try:
        with _within(seconds):
            return KINDS[kind](raw)
    except _TooSlow:
        raise DataError(f"reading it took longer than {seconds:g} s, the limit for one file: split it") from None


class _TooSlow(BaseException):
    """Not an Exception: parsers catch those."""


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise _TooSlow after this time. Only the main thread can be interrupted; others rely on the limit of the size."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> Never:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
_UNREAD = {"noscript", "script", "style", "svg", "template", "title"}


def _html(raw: bytes) -> list[tuple[str, str]]:
    bs4 = _optional("bs4", "HTML")
    with warnings.catch_warnings():
        # It warns about XHTML and about text that looks like a file name; both parse well.
        warnings.simplefilter("ignore")
        try:
            soup = bs4.BeautifulSoup(raw, "html.parser")
        except Exception as error:
            # It rejects some broken declarations.
            raise DataError(f"not readable HTML: {error}") from error
    if soup.contains_replacement_characters:
        raise DataError("its characters cannot be decoded")
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    text = "".join(_pieces(soup, bs4))
    if not text.strip():
        raise DataError("empty: no text in it")
    return [(title, text)]


def _pieces(soup: Any, bs4: Any) -> Iterator[str]:  # noqa: ANN401 - of a package that is optional
    """The text in the order of the page, with an empty line around each block; looks at each element once."""
    # What is still to come, last first. A plain string ends a block.
    waiting = [soup]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, bs4.Tag):
            # Comments and the like are of other types.
            if type(one) in {str, bs4.NavigableString, bs4.CData}:
                yield str(one)
        elif one.name not in _UNREAD:
            if _BLOCKS.fullmatch(one.name):
                yield "\n\n"
                waiting.append("\n\n")
            waiting.extend(reversed(one.contents))


def _pdf(raw: bytes) -> list[tuple[str, str]]:
    pypdf = _optional("pypdf", "PDF")
    try:
        reader = pypdf.PdfReader(BytesIO(raw))
        # Many are encrypted with an empty password, to forbid printing.
        readable = not reader.is_encrypted or reader.decrypt("")
        title = str((readable and reader.metadata and reader.metadata.title) or "").strip()
        text = "\n".join(_pages(reader)) if readable else ""
    except DataError:
        raise
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


def _pages(reader: Any) -> Iterator[str]:  # noqa: ANN401 - of a package that is optional
    """The text of each page. pypdf bounds what it unpacks of one stream, but pages may share a stream."""
    chars = 0
    for page in reader.pages:
        text = page.extract_text()
        chars += len(text)
        if chars > MAX_BYTES:
            raise DataError(f"it has more than {_MAX_MB} MB of text, the limit for one file: split it")
        yield text


def _optional(package: str, kind: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise DataError(f"{kind} needs another package: pip install 'fetchwise[ingest]'") from error


def _unicode(text: str) -> str:
    """Remove lone surrogates, which PDFs can contain and no store accepts."""
    return text.encode("utf-8", "replace").decode()


# By the suffix of the file's name.
KINDS: dict[str, _Parse] = {
    ".txt": _text,
    ".md": _markdown,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
}
