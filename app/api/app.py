"""Builds the FastAPI application: routes, pages, middleware and errors. The one place that changes how FastAPI works.

This relies on internals, so FastAPI is pinned to a minor version; `tests/unit/api/test_direct.py` checks them.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import APIRouter, FastAPI, Response
from fastapi.routing import iter_route_contexts
from fastapi.telemetry import TelemetryConfig
from starlette.types import ASGIApp

from app.api.answer import router as answer_router
from app.api.feedback import router as feedback_router
from app.api.gateway import Gateway
from app.api.http.errors import OPENAI_PREFIX, install
from app.api.http.middleware import READING, RequestLog, SafeHeaders, SiteCheck, allow_origins
from app.api.http.permits import BodyLimit, Shedding
from app.api.mcp import router as mcp_router
from app.api.openai.embeddings import router as embeddings_router
from app.api.openai.responses import router as responses_router
from app.api.openai.routes import chat_router, models_router
from app.api.operators import FIELDS
from app.api.operators import router as operators_router
from app.api.pages import add_pages
from app.api.status import router as status_router
from app.settings import Settings
from app.telemetry.requests import HttpMetrics

if TYPE_CHECKING:
    from app.telemetry.tracing import Tracing

VERSION = "0.1.0"
Application = FastAPI
OpenGateway = Callable[[], AbstractAsyncContextManager[Gateway]]
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")


def build_app(settings: Settings, open_gateway: OpenGateway, tracing: "Tracing | None") -> Application:
    """The application; its lifespan opens the gateway, which is all that its state holds."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, HttpMetrics]]:
        async with open_gateway() as app.state.gateway:
            counts: HttpMetrics = app.state.gateway.metrics.http
            methods = paths(app)
            counts.start_at_zero(methods, [path for path, known in methods.items() if "POST" in known])
            # For the server, which refuses some requests itself.
            yield {"http_metrics": counts}

    app = FastAPI(
        title="Fetchwise",
        description="An online RAG gateway that knows before it fetches.",
        version=VERSION,
        # Our own page shows it: the built-in pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        # Made once: FastAPI's own route would render it for each request.
        openapi_url=None,
        # They would contain whatever host the request names.
        redirect_slashes=False,
        lifespan=lifespan,
        telemetry=_telemetry(tracing),
    )
    _describe(app)
    _log_requests(app, log_questions=settings.server.log_questions, tracing=tracing)
    install(app)
    app.add_middleware(BodyLimit, max_bytes=settings.limits.max_body_bytes)
    app.add_middleware(Shedding, max_wait_s=settings.limits.queue_wait_s)
    hosts = (settings.server.host, *settings.access.hosts)
    app.add_middleware(SiteCheck, hosts=hosts, origins=settings.access.cors)
    allow_origins(app, settings.access.cors)
    app.add_middleware(SafeHeaders)
    include_direct(app, answer_router, chat_router, feedback_router, responses_router, embeddings_router, mcp_router)
    for router in (status_router, models_router, operators_router):
        app.include_router(router)
    _serve_description(app)
    add_pages(app, collection=settings.vectors.collection, ks=settings.calibration.ks)
    return app


def paths(app: FastAPI) -> dict[str, set[str]]:
    """The path of every route, with its methods."""
    methods: dict[str, set[str]] = {}
    for context in iter_route_contexts(app.routes):
        methods.setdefault(str(context.path), set()).update(context.methods or ())
    return methods


def include_direct(app: FastAPI, *routers: APIRouter) -> None:
    """Add routes directly: FastAPI wraps the routes of an included router and matches them twice per request."""
    for router in routers:
        app.router.routes.extend(router.routes)


def _log_requests(app: FastAPI, *, log_questions: bool, tracing: "Tracing | None") -> None:
    """Put the request log around everything: middleware would not see the response to an unexpected error."""
    stack = app.build_middleware_stack

    def logged() -> ASGIApp:
        return RequestLog(stack(), log_questions=log_questions, on_begin=tracing.began if tracing else None)

    app.build_middleware_stack = logged  # type: ignore[method-assign]


def _describe(app: FastAPI) -> None:
    """Correct the OpenAPI document that FastAPI makes."""
    generate = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _corrected(generate(), FIELDS)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _serve_description(app: FastAPI) -> None:
    @cache
    def described() -> bytes:
        return orjson.dumps(app.openapi())

    async def openapi() -> Response:
        return Response(described(), media_type="application/json")

    app.add_api_route("/openapi.json", openapi, methods=["GET"], include_in_schema=False)


def _corrected(document: dict[str, Any], fields: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The OpenAPI document with all descriptions, without errors that FastAPI adds but never returns."""
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        if path.startswith(OPENAI_PREFIX):
            # There an invalid request is a 400.
            for operation in operations.values():
                operation["responses"].pop("422", None)
    for name in _FASTAPIS_OWN:
        schemas.pop(name, None)
    for name, described in fields.items():
        for field, meaning in described.items():
            schemas[name]["properties"][field]["description"] = meaning
    return document


def _telemetry(tracing: "Tracing | None") -> TelemetryConfig:
    """Let FastAPI report only the span of each question, if tracing is on; the gateway reports the rest itself."""
    telemetry = TelemetryConfig(tracing=False, metrics=False, logs=False, operation_spans=False, auto_configure=False)
    if tracing is not None:
        telemetry |= TelemetryConfig(
            tracing=True, tracer_provider=tracing.provider, exclude=lambda scope: scope.get("method") in READING
        )
    return telemetry
