"""The web pages: files of this package, with headers that forbid content from other hosts."""

import hashlib
import os
import time
from collections.abc import Iterable
from enum import IntEnum
from html import escape
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from starlette.staticfiles import PathLike, StaticFiles
from starlette.types import Scope

from app.api.gateway import Gateway, TheGateway
from app.api.http.guard import OPERATOR_PAGE, OPERATOR_PAGE_DATA
from app.api.reference import against_reference
from app.api.status import Readiness

_STATIC = Path(__file__).with_name("static")
_PAGES = {"/": "ask.html", "/dashboard": "dashboard.html", "/docs": "docs.html"}
# This package contains the files of Swagger UI; its pages and routes are not used.
_SWAGGER = ("fastapi_offline", "static")
_SERVED = b'data-collection="" data-ks=""'
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Browsers keep files but revalidate them: a new version shows at once, an unchanged file costs a 304.
    "cache-control": "no-cache",
}


class Span(IntEnum):
    """Windows of the dashboard, in seconds; a closed set, so that each is computed once for all viewers."""

    FIVE_MINUTES = 300
    QUARTER = 900
    HOUR = 3600


class _Files(StaticFiles):
    """Scripts and styles. HTML pages have their own paths."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return ("", None) if path.endswith(".html") else super().lookup_path(path)

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_HEADERS)
        return response


def add_pages(app: FastAPI, *, collection: str, ks: Iterable[int]) -> None:
    """Add the question page, the dashboard and its data, the API documentation, and their files.

    `collection` is the default collection: the page offers examples only for the demo. `ks` are the numbers of passages
    that a question may read.
    """
    served = f'data-collection="{escape(collection)}" data-ks="{",".join(map(str, ks))}"'.encode()
    for path, name in _PAGES.items():
        _serve(app, path, (_STATIC / name).read_bytes().replace(_SERVED, served))
    app.mount("/static", _Files(directory=_STATIC, packages=[_SWAGGER]))

    @app.get("/dashboard/data", dependencies=[OPERATOR_PAGE_DATA], include_in_schema=False)
    async def data(gateway: TheGateway, window: Span = Span.QUARTER) -> Response:
        return Response(orjson.dumps(await _dashboard(gateway, window, app.version)), media_type="application/json")


async def _dashboard(gateway: Gateway, seconds: int, version: str) -> dict[str, Any]:
    """Everything that the dashboard draws. The thresholds are those of a request without options."""
    look, snapshot = await gateway.economics(seconds), gateway.snapshots.latest
    graded = snapshot.policy.thresholds
    ready = Readiness.of(snapshot, now=time.monotonic(), details=True, draining=gateway.snapshots.draining)
    return {
        "now": look.now,
        "state": ready.state,
        "failed": snapshot.failed,
        "started": gateway.snapshots.started,
        "version": version,
        "reference": against_reference(gateway.live_calibrator.serving),
        "breakeven": look.break_even,
        **look.figures,
        "in_flight": snapshot.load.in_flight,
        "shed": snapshot.load.shed,
        "upstreams": ready.upstreams,
        "calibrator": snapshot.calibrator,
        "bypass": snapshot.bypass,
        "thresholds": graded and {"tau0": graded.tau0, "tau1": graded.tau1, "tau_abstain": snapshot.policy.tau},
    }


def _serve(app: FastAPI, path: str, content: bytes) -> None:
    headers = _HEADERS | {"etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}

    async def page(request: Request) -> Response:
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="text/html", headers=headers)

    needed = [OPERATOR_PAGE] if path == "/dashboard" else []
    app.add_api_route(path, page, methods=["GET", "HEAD"], dependencies=needed, include_in_schema=False)
