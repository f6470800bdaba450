"""Log lines as text or JSON, with the request's id, written by a separate thread."""

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

import orjson

from app.correlation import RequestContext, current

_WITHHELD = "[question]"
# Control characters, line separators, and characters that reverse the direction of text; escaped as in JSON.
_ESCAPED = {
    code: f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
# Lines are collected for this long, so that a busy gateway rarely wakes the writing thread.
_GATHER_S = 0.05
_MAX_QUEUE = 10_000
# The reader of the log is gone, or the stream is closed; there is nowhere left to report it.
_GONE = (OSError, ValueError)


class _Clock:
    """Formats the time once per second, because a busy gateway writes thousands of lines per second."""

    def __init__(self, pattern: str, zone: Callable[[float], time.struct_time]) -> None:
        self._pattern = pattern
        self._zone = zone
        self._second, self._written = -1, ""

    def at(self, moment: float) -> str:
        """The time, without its fraction."""
        second = int(moment)
        if second != self._second:
            self._second, self._written = second, time.strftime(self._pattern, self._zone(second))
        return self._written


class TextLines(logging.Formatter):
    """Lines for people: the message, then the id of the request."""

    def __init__(self, pattern: str = "%(message)s", *, log_questions: bool) -> None:
        super().__init__(pattern)
        self._log_questions = log_questions
        self._clock = _Clock("%H:%M:%S", time.localtime)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 logging's own
        """The time, to the second."""
        return self._clock.at(record.created)

    def format(self, record: logging.LogRecord) -> str:
        """The line, with a traceback below it if there is one; its lines are indented, so that none can be forged."""
        note = current.get()
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record)
        first = printable(_fit(self.formatMessage(record), note, record, log_questions=self._log_questions))
        if note is not None:
            first += f" [{note.request_id}]"
        if not record.exc_info:
            return first
        below = _fit(self.formatException(record.exc_info), note, record, log_questions=self._log_questions)
        return "\n  ".join((first, *map(printable, below.split("\n"))))


class JsonLines(logging.Formatter):
    """One JSON object per line; the values of a record's `fields` are added to it."""

    def __init__(self, *, log_questions: bool) -> None:
        super().__init__()
        self._log_questions = log_questions
        self._clock = _Clock("%Y-%m-%dT%H:%M:%S", time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """The object as text."""
        note = current.get()
        line: dict[str, Any] = {
            "time": f"{self._clock.at(record.created)}.{int(record.msecs):03d}+00:00",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _fit(record.getMessage(), note, record, log_questions=self._log_questions),
        }
        if note is not None:
            line["request_id"] = note.request_id
            if note.trace_id:
                line["trace_id"] = note.trace_id
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line["exception"] = _fit(trace, note, record, log_questions=self._log_questions)
        if (fields := getattr(record, "fields", None)) is not None:
            line |= fields()
        return printable(orjson.dumps(line).decode())


def printable(text: str) -> str:
    """The text with control characters escaped: they could forge lines, or change what a terminal shows."""
    return text if text.isprintable() else text.translate(_ESCAPED)


def _fit(text: str, note: RequestContext | None, record: logging.LogRecord, *, log_questions: bool) -> str:
    """Remove the question from the text, plain or quoted as in JSON or Python."""
    # Lines with fields are our own, and contain the question only if that is allowed.
    if log_questions or note is None or not note.question or hasattr(record, "fields"):
        return text
    # The longest first: it may contain a shorter one.
    for said in sorted((note.question, *note.earlier), key=len, reverse=True):
        quotes = (json.dumps(said), json.dumps(said, ensure_ascii=False), repr(said))
        for shown in (said, *(quoted[1:-1] for quoted in quotes)):
            text = text.replace(shown, _WITHHELD)
    return text


class GatheredLines(logging.Handler):
    """Formats lines immediately and writes them in a thread, so that a slow reader of the log delays no question.

    If the queue is full, lines are dropped, and the next line that can be written says how many.
    """

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._begin()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one line."""
        if os.getpid() != self._process:
            self._begin()
        if len(self._lines) >= _MAX_QUEUE:
            self._dropped += 1
            return
        try:
            self._lines.append(self.format(record))
        except Exception:  # noqa: BLE001 - logging's own way: a line that cannot be made must not fail its request
            self.handleError(record)
        if not self._wanted.is_set():
            self._wanted.set()

    def flush(self) -> None:
        """Write everything that is queued before returning."""
        with self._writing:
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if self._dropped:
                lines.append(f"{self._dropped} log lines were dropped: the log was not read fast enough")
                self._dropped = 0
            if lines:
                self._stream.write(("\n".join(lines) + "\n").encode(errors="backslashreplace"))
                self._stream.flush()

    def close(self) -> None:
        """Write the rest and stop; idempotent."""
        self._closing.set()
        self._wanted.set()
        with suppress(*_GONE):
            self.flush()
        super().close()

    def _begin(self) -> None:
        # Also after a fork: the child has no threads, copies of locks in any state, and lines of its parent.
        self._process = os.getpid()
        self._lines.clear()
        self._writing = threading.Lock()
        self._wanted, self._closing = threading.Event(), threading.Event()
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def _write(self) -> None:
        wanted, closing = self._wanted, self._closing
        while not closing.is_set():
            wanted.wait()
            closing.wait(_GATHER_S)
            wanted.clear()
            try:
                self.flush()
            except _GONE:
                return
