"""The pages for people: files of the package, read once, under headers that let nothing in from outside."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from html import escape
from importlib.resources import files
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response
from starlette.exceptions import HTTPException

from app.api.auth import OPERATOR_PAGE, OPERATOR_PAGE_DATA

_PAGES = {"/": "ask.html", "/dashboard": "dashboard.html", "/docs": "docs.html"}
_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# Swagger UI itself comes with this package; its own pages and routes are not used.
_SWAGGER_PACKAGE, _SWAGGER_FILES = "fastapi_offline", ("swagger-ui-bundle.js", "swagger-ui.css")
_COLLECTION = b'data-collection=""'
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


DashboardData = Callable[[int], Awaitable[dict[str, Any]]]


async def _data(request: Request) -> DashboardData:
    data: DashboardData = request.app.state.dashboard
    return data


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    headers: dict[str, str]

    def reply(self, request: Request) -> Response:
        """The file, or that the browser's copy is still good."""
        if self.headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=self.headers)
        return Response(self.content, headers=self.headers)


def pages(*, collection: str) -> APIRouter:
    """The page to ask in, the dashboard and its data, the interface's documentation, and what they are made of.

    `collection` is what a question searches that names none: examples are offered for the demo world alone.
    """
    router = APIRouter(include_in_schema=False)
    held = _files(collection)

    def serve(path: str, file: _File) -> None:
        async def page(request: Request) -> Response:
            return file.reply(request)

        needed = [OPERATOR_PAGE] if path == "/dashboard" else []
        router.add_api_route(path, page, methods=["GET", "HEAD"], dependencies=needed)

    for path, name in _PAGES.items():
        serve(path, held[name])

    @router.api_route("/static/{name}", methods=["GET", "HEAD"])
    async def static(name: str, request: Request) -> Response:
        if name not in held or name in _PAGES.values():
            raise HTTPException(404)
        return held[name].reply(request)

    @router.get("/dashboard/data", dependencies=[OPERATOR_PAGE_DATA])
    async def data(read: Annotated[DashboardData, Depends(_data)], window: Span = Span.QUARTER) -> Response:
        body = orjson.dumps(await read(window.value))
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        return Response(body, media_type="application/json", headers=headers)

    return router


def _files(collection: str) -> dict[str, _File]:
    own = {entry.name: entry.read_bytes() for entry in (files("app.api") / "static").iterdir() if entry.is_file()}
    own["ask.html"] = own["ask.html"].replace(_COLLECTION, f'data-collection="{escape(collection)}"'.encode())
    swagger = files(_SWAGGER_PACKAGE) / "static"
    held = own | {name: (swagger / name).read_bytes() for name in _SWAGGER_FILES}
    return {name: _file(name, content) for name, content in held.items()}


def _file(name: str, content: bytes) -> _File:
    kind = _TYPES[name.rpartition(".")[2]]
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return _File(content, _HEADERS | {"content-type": kind, "etag": etag})
