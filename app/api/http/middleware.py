"""Around every request: an id, a line in the log, safe headers, and who may call from a browser."""

import logging
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.core.record import DecisionRecord
from app.correlation import RequestContext, current

logger = logging.getLogger(__name__)

HEADER = b"x-request-id"
# What a proxy or a client may choose: nothing that could forge a line, and no novel.
_VALID_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
# Scrapers, probes and pages that refresh themselves: a line each would bury the rest.
READING = frozenset({"GET", "HEAD"})
_MAX_PATH_CHARS = 200
_STAGES = ("probe", "embed", "search", "read", "total")
# Nobody reads it; what other gateways log for a client that closed the connection.
CLIENT_CLOSED = 499
_DEFECT = 500
_REFUSED = 429
_NO_STORE = (b"cache-control", b"no-store")
_NO_SNIFF = (b"x-content-type-options", b"nosniff")
# What replies of the OpenAI API tell about a decision.
_DECISION = tuple(f"x-fetchwise-{what}" for what in ("id", "action", "k", "reason", "confidence"))
# What OpenAI's client for JavaScript says about itself with every request: without leave, a browser sends none.
_OF_OPENAI_CLIENTS = tuple(
    f"x-stainless-{what}"
    for what in (
        *("lang", "package-version", "os", "arch", "runtime", "runtime-version"),
        *("retry-count", "timeout", "helper-method", "poll-helper", "custom-poll-interval"),
    )
)
# Request ids only tell requests apart: no secret hangs on them, and the system's randomness is slow to ask for.
_rng = random.Random()  # noqa: S311


class RequestLog:
    """The outermost layer: whatever is logged or answered further in carries the request's id."""

    def __init__(
        self, app: ASGIApp, *, log_questions: bool, on_begin: Callable[[RequestContext], None] | None = None
    ) -> None:
        self._app = app
        self._log_questions = log_questions
        self._on_begin = on_begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its note."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        note = RequestContext(_request_id(scope))
        # Never reset: the server gives each request a context of its own, and may log a crash after we have returned.
        current.set(note)
        if self._on_begin is not None:
            self._on_begin(note)
        # Until there is another: who is not answered has left, or met a defect.
        status = CLIENT_CLOSED

        async def echoing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (HEADER, note.request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, echoing)
        except BaseException:
            status = _DEFECT if status == CLIENT_CLOSED else status
            raise
        finally:
            # Refusals are counted, and come in floods.
            quiet = scope["method"] in READING or status == _REFUSED
            level = logging.DEBUG if quiet else logging.INFO
            if logger.isEnabledFor(level):
                self._log(level, scope, note, status, (time.perf_counter() - began) * 1000)

    def _log(self, level: int, scope: Scope, note: RequestContext, status: int, ms: float) -> None:
        # As it came, percent signs and all: decoded, it could hold line breaks.
        path = scope.get("raw_path", b"").decode("latin-1").partition("?")[0][:_MAX_PATH_CHARS]
        done = f"{note.record.action} {note.record.reply.reason.value} " if note.record else ""
        message = f"{scope['method']} {path} {status} {done}{ms:.1f} ms"

        def fields() -> dict[str, Any]:
            # Only when asked for: lines for people do without.
            said: dict[str, Any] = {"method": scope["method"], "path": path, "status": status, "ms": round(ms, 3)}
            if note.record is not None:
                said |= _decided(note.record)
            if self._log_questions and note.question:
                said["question"] = note.question
            return said

        # Not by logger.info, which would search the stack for our own name.
        logger.handle(logger.makeRecord(logger.name, level, __file__, 0, message, (), None, extra={"fields": fields}))


def _request_id(scope: Scope) -> str:
    given: bytes = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return given.decode() if given and _VALID_ID.fullmatch(given) else f"{_rng.getrandbits(96):024x}"


def _decided(record: DecisionRecord) -> dict[str, Any]:
    """What a line says about a decision."""
    timings = record.timings
    spent = (timings.probe, timings.embed, timings.search, timings.read, timings.total)
    return record.outline() | {
        "key": record.question.key,
        "timings_ms": {stage: round(ms, 3) for stage, ms in zip(_STAGES, spent, strict=True) if ms is not None},
        "failure": " ".join(record.failure) if record.failure else None,
    }


class SafeHeaders:
    """Adds what a reply does not say itself: pages and their files have headers of their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                said = {name.lower() for name, _ in headers}
                added = [one for one in (_NO_STORE, _NO_SNIFF) if one[0] not in said]
                message["headers"] = [*headers, *added]
            await send(message)

        await self._app(scope, receive, safe)


def allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Let pages of these origins call the gateway; without any, browsers keep all others out."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key", "x-request-id", *_OF_OPENAI_CLIENTS],
            expose_headers=["retry-after", "x-request-id", *_DECISION],
        )
