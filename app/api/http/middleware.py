"""Middleware for every request: an id, a log line, security headers, and which sites may call."""

import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.http.errors import explain
from app.core.record import DecisionRecord
from app.correlation import RequestContext, current
from app.errors import Denial, Denied

logger = logging.getLogger(__name__)

HEADER = b"x-request-id"
# Ids that a proxy or a client may choose: short, and without characters that could forge a log line.
_VALID_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
# Scrapes, probes and pages that refresh themselves: a line for each would hide the others.
READING = frozenset({"GET", "HEAD"})
_CHANGING_NOTHING = READING | {"OPTIONS"}
_MAX_PATH_CHARS = 200
_STAGES = ("probe", "embed", "search", "read", "total")
# Never sent; nginx logs the same status for a client that closed the connection.
CLIENT_CLOSED = 499
_DEFECT = 500
_REFUSED = 429
_NO_STORE = (b"cache-control", b"no-store")
_NO_SNIFF = (b"x-content-type-options", b"nosniff")
_CLOSE = (b"connection", b"close")
# Headers about the decision in replies of the OpenAI API.
_DECISION = tuple(f"x-fetchwise-{what}" for what in ("id", "action", "k", "reason", "confidence"))
# Headers that OpenAI's JavaScript client adds to every request; a browser must be allowed to send them.
_OF_OPENAI_CLIENTS = tuple(
    f"x-stainless-{what}"
    for what in (
        *("lang", "package-version", "os", "arch", "runtime", "runtime-version"),
        *("retry-count", "timeout", "helper-method", "poll-helper", "custom-poll-interval"),
    )
)
# Request ids are not secret, and random bytes from the system are slow.
_rng = random.Random()  # noqa: S311


class RequestLog:
    """The outermost layer: every log line and every reply of a request carries its id."""

    def __init__(
        self, app: ASGIApp, *, log_questions: bool, on_begin: Callable[[RequestContext], None] | None = None
    ) -> None:
        self._app = app
        self._log_questions = log_questions
        self._on_begin = on_begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request and log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        note = RequestContext(_request_id(scope))
        # Never reset: each request has its own context, and the server may log a crash after this returns.
        current.set(note)
        if self._on_begin is not None:
            self._on_begin(note)
        # Until a response starts: without one, the client left or there is a bug.
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
            # Refusals are counted in a metric, and there can be very many.
            quiet = scope["method"] in READING or status == _REFUSED
            level = logging.DEBUG if quiet else logging.INFO
            if logger.isEnabledFor(level):
                self._log(level, scope, note, status, (time.perf_counter() - began) * 1000)

    def _log(self, level: int, scope: Scope, note: RequestContext, status: int, ms: float) -> None:
        # Percent-encoded: decoded, it could contain line breaks.
        path = scope.get("raw_path", b"").decode("latin-1").partition("?")[0][:_MAX_PATH_CHARS]
        done = f"{note.record.action} {note.record.reply.reason.value} " if note.record else ""
        message = f"{scope['method']} {path} {status} {done}{ms:.1f} ms"

        def fields() -> dict[str, Any]:
            # Only for JSON lines.
            said: dict[str, Any] = {"method": scope["method"], "path": path, "status": status, "ms": round(ms, 3)}
            if note.record is not None:
                said |= _decided(note.record)
            if self._log_questions and note.question:
                said["question"] = note.question
            return said

        # logger.info would inspect the stack for the name of this file.
        logger.handle(logger.makeRecord(logger.name, level, __file__, 0, message, (), None, extra={"fields": fields}))


def _request_id(scope: Scope) -> str:
    given: bytes = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return given.decode() if given and _VALID_ID.fullmatch(given) else f"{_rng.getrandbits(96):024x}"


def _decided(record: DecisionRecord) -> dict[str, Any]:
    """The fields of a log line about a decision."""
    timings = record.timings
    spent = (timings.probe, timings.embed, timings.search, timings.read, timings.total)
    return record.outline() | {
        "key": record.question.key,
        "timings_ms": {stage: round(ms, 3) for stage, ms in zip(_STAGES, spent, strict=True) if ms is not None},
        "failure": " ".join(record.failure) if record.failure else None,
    }


class SafeHeaders:
    """Adds security headers to replies that do not set their own, as pages and their files do.

    While the gateway drains, each reply also ends its connection, so that callers open the next one elsewhere.
    """

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
                if scope["app"].state.gateway.snapshots.draining:
                    added.append(_CLOSE)
                message["headers"] = [*headers, *added]
            await send(message)

        await self._app(scope, receive, safe)


class SiteCheck:
    """Without keys, refuses what the page of another site can make a browser send.

    DNS can point any name to any address, so a page could read everything here under its own name. An IP address is not
    looked up, so it is allowed, as is a request without a host: every browser sends one.
    """

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], origins: Sequence[str]) -> None:
        self._app = app
        self._names = frozenset({"localhost", *map(str.lower, hosts)})
        self._origins = frozenset(origin.lower().encode() for origin in origins)
        # Clients send the same few values again and again.
        self._knows = lru_cache(maxsize=256)(self._is_known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or handle it."""
        if scope["type"] == "http" and not scope["app"].state.gateway.guard.keys.on:
            error = self._problem(scope)
            if error is not None:
                await explain(error, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> Denied | None:
        host, origin = b"", None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
                if not self._knows(host):
                    return Denied(
                        f"the gateway does not know the host {host[:100].decode('latin-1')!r}: add its name to "
                        "FETCHWISE_ALLOWED_HOSTS, or use keys",
                        why=Denial.HOST,
                    )
            elif name == b"origin":
                origin = value.lower()
        if origin is None or scope["method"] in _CHANGING_NOTHING or self._is_own(origin, host):
            return None
        return Denied(
            f"pages of {origin[:100].decode('latin-1')!r} may not call the gateway: add it to FETCHWISE_CORS_ORIGINS",
            why=Denial.ORIGIN,
        )

    def _is_known(self, host: bytes) -> bool:
        text = host.decode("latin-1").lower()
        name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
        if "*" in self._names or name.rstrip(".") in self._names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True

    def _is_own(self, origin: bytes, host: bytes) -> bool:
        # Without the scheme: behind a proxy that adds TLS, pages have another one.
        same = origin.partition(b"://")[2] == host.lower()
        return same or origin in self._origins or b"*" in self._origins


def allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Let pages of these origins call the gateway; browsers block all others."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key", "x-request-id", *_OF_OPENAI_CLIENTS],
            expose_headers=["retry-after", "x-request-id", *_DECISION],
        )
