"""The pages for people: files of the package, under headers that let nothing in from outside."""

import hashlib
import os
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

_STATIC = Path(__file__).with_name("static")
_PAGES = {"/": "ask.html", "/dashboard": "dashboard.html", "/docs": "docs.html"}
# Swagger UI itself comes with this package; its own pages and routes are not used.
_SWAGGER = ("fastapi_offline", "static")
_SERVED = b'data-collection="" data-ks=""'
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Kept, but asked about each time: a new version of the gateway shows at once, an old one costs a 304.
    "cache-control": "no-cache",
}


class Span(IntEnum):
    """How far back the dashboard looks, in seconds; a closed set, so that each is computed once for everyone."""

    FIVE_MINUTES = 300
    QUARTER = 900
    HOUR = 3600


class _Files(StaticFiles):
    """What the pages are made of; the pages themselves have addresses of their own."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return ("", None) if path.endswith(".html") else super().lookup_path(path)

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_HEADERS)
        return response


def add_pages(app: FastAPI, *, collection: str, ks: Iterable[int]) -> None:
    """The page to ask in, the dashboard and its data, the interface's documentation, and what they are made of.

    `collection` is what a question searches that names none: examples are offered for the demo world alone. `ks`
    are the numbers of passages that a question may read.
    """
    served = f'data-collection="{escape(collection)}" data-ks="{",".join(map(str, ks))}"'.encode()
    for path, name in _PAGES.items():
        _serve(app, path, (_STATIC / name).read_bytes().replace(_SERVED, served))
    app.mount("/static", _Files(directory=_STATIC, packages=[_SWAGGER]))

    @app.get("/dashboard/data", dependencies=[OPERATOR_PAGE_DATA], include_in_schema=False)
    async def data(gateway: TheGateway, window: Span = Span.QUARTER) -> Response:
        return Response(orjson.dumps(await _dashboard(gateway, window)), media_type="application/json")


async def _dashboard(gateway: Gateway, seconds: int) -> dict[str, Any]:
    """Everything that the dashboard draws; thresholds are those of a request that names no policy."""
    look, snapshot = await gateway.economics(seconds), gateway.snapshots.latest
    graded = snapshot.policy.thresholds
    return {
        "now": look.now,
        "breakeven": look.break_even,
        **look.figures,
        "in_flight": snapshot.load.in_flight,
        "shed": snapshot.load.shed,
        "upstreams": {name: str(part) for name, part in snapshot.parts.items()},
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
