"""Log lines: JSON for machines, text for people, and a writer that never blocks the caller."""

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime

import pytest

from app.correlation import RequestContext, current
from app.telemetry import log_lines
from app.telemetry.log_lines import GatheredLines, JsonLines, TextLines


def a_record(message: str = "hello", *arguments: object, **more: object) -> logging.LogRecord:
    """A record as the logging module makes it."""
    record = logging.LogRecord("app.x", logging.WARNING, __file__, 1, message, arguments, None)
    vars(record).update(more)
    return record


@pytest.fixture
def note() -> Iterator[RequestContext]:
    """The note of a request in progress."""
    one = RequestContext("r1", question="Who am I?")
    token = current.set(one)
    yield one
    current.reset(token)


def test_json_outside_a_request() -> None:
    """Time, level, logger and message; no request id outside a request."""
    line = json.loads(JsonLines(log_questions=False).format(a_record()))
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {"level": "warning", "logger": "app.x", "message": "hello"}


def test_json_inside_a_request(note: RequestContext) -> None:
    """The request's id and trace, and the extra fields of the line."""
    note.trace_id = "t1"
    line = json.loads(JsonLines(log_questions=False).format(a_record(fields=lambda: {"k": 1})))
    assert (line["request_id"], line["trace_id"], line["k"]) == ("r1", "t1", 1)


def test_question_is_removed_from_tracebacks(note: RequestContext) -> None:
    """An exception that quotes the question is logged without it, unless the operator allows it."""
    error = ValueError("cannot parse 'Who am I?'")
    record = a_record("Who am I? failed", exc_info=(type(error), error, None))
    withheld = JsonLines(log_questions=False).format(record)
    assert "Who am I?" not in withheld
    assert "cannot parse '[question]'" in json.loads(withheld)["exception"]
    assert "Who am I?" not in TextLines(log_questions=False).format(record)
    for shown in (JsonLines(log_questions=True), TextLines(log_questions=True)):
        assert shown.format(record).count("Who am I?") >= 2


def test_earlier_turns_are_removed_too(note: RequestContext) -> None:
    """Even if they contain the question."""
    note.earlier = ("I ask myself: Who am I? Nobody knows.",)
    record = a_record("cannot parse 'I ask myself: Who am I? Nobody knows.', 'Who am I?'")
    assert json.loads(JsonLines(log_questions=False).format(record))["message"] == (
        "cannot parse '[question]', '[question]'"
    )


def test_text_shows_the_request_id_on_the_first_line(note: RequestContext) -> None:
    """The id follows the message, before the traceback."""
    assert TextLines(log_questions=False).format(a_record("one")) == "one [r1]"
    error = ValueError("two")
    with_traceback = a_record("one", exc_info=(type(error), error, None))
    assert TextLines(log_questions=False).format(with_traceback) == "one [r1]\n  ValueError: two"
    note_less = current.set(None)
    assert TextLines(log_questions=False).format(a_record("one")) == "one"
    current.reset(note_less)


def test_lines_are_written_without_a_flush() -> None:
    """A line is written soon after it is logged."""
    written = threading.Event()

    class Stream(io.BytesIO):
        def flush(self) -> None:
            written.set()

    stream = Stream()
    handler = GatheredLines(stream)
    handler.handle(a_record())
    assert written.wait(30)
    assert stream.getvalue() == b"hello\n"
    handler.close()


def test_stalled_log_reader_blocks_no_caller_and_dropped_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the log is not read, logging continues; lines beyond the longest queue are dropped, and a line says so."""
    monkeypatch.setattr(log_lines, "_MAX_QUEUE", 5)
    taken, stalled = threading.Event(), threading.Event()

    class Stream(io.BytesIO):
        def write(self, data: object) -> int:
            stalled.set()
            taken.wait(30)
            return super().write(data)  # type: ignore[arg-type]

    stream = Stream()
    handler = GatheredLines(stream)
    handler.handle(a_record("first %s", 1))
    assert stalled.wait(30)
    for number in range(8):
        handler.handle(a_record("line %s", number))
    taken.set()
    handler.close()
    assert stream.getvalue().decode().splitlines() == [
        "first 1",
        *(f"line {number}" for number in range(5)),
        "3 log lines were dropped: the log was not read fast enough",
    ]


def test_closed_stream_raises_nothing() -> None:
    """When the log can no longer be written, logging and closing still raise nothing."""
    stream = io.BytesIO()
    handler = GatheredLines(stream)
    stream.close()
    handler.handle(a_record())
    handler.close()
    handler.close()


def test_forked_process_writes_its_own_lines() -> None:
    """Threads are not inherited: the child starts its own writer, and does not repeat the parent's lines."""
    program = """
import logging, os, sys
from app.telemetry.log_lines import GatheredLines
logging.basicConfig(level="INFO", format="%(message)s", handlers=[GatheredLines(sys.stderr.buffer)])
logging.info("parent")
if os.fork() == 0:
    logging.info("child")
    logging.shutdown()
    os._exit(0)
os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert sorted(done.stderr.split()) == ["child", "parent"]


FORGED = "upstream said:\n12:00:00 INFO all is well\r\x1b[2J\x9b2J\u2028\u202e\x00 é"


@pytest.mark.parametrize("formatter", [TextLines(log_questions=False), JsonLines(log_questions=False)])
@pytest.mark.parametrize("inside", [True, False])
def test_no_text_can_forge_a_line(formatter: logging.Formatter, inside: bool) -> None:
    """Control characters of messages and exceptions are escaped; only a traceback has lines, and they are indented."""
    error = ValueError(FORGED)
    token = current.set(RequestContext("r1") if inside else None)
    line = formatter.format(a_record("%s", FORGED))
    traceback = formatter.format(a_record("%s", FORGED, exc_info=(type(error), error, None)))
    current.reset(token)
    assert line.isprintable()
    assert "all is well" in line
    assert "é" in line
    for number, one in enumerate(traceback.split("\n")):
        assert one.isprintable()
        assert number == 0 or one.startswith("  ")
    if isinstance(formatter, JsonLines):
        assert json.loads(line)["message"] == FORGED
        assert "\n" not in traceback
