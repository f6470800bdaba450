"""The only place that changes how FastAPI works: fast routes, the request log, and the OpenAPI document.

A direct route resolves its arguments once, where FastAPI does so for each request. Its endpoint is declared and
documented like any other. It may take the request, dependencies that need only the request, and one JSON body; it
returns a response or a model. Dependencies run first, so the body of a refused request is not read.

This relies on internals, so FastAPI is pinned to a minor version; `tests/unit/api/test_direct.py` checks them.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends
from fastapi.routing import APIRoute
from fastapi.telemetry import TelemetryConfig
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from app.api.http.errors import OPENAI_PREFIX
from app.api.http.middleware import READING, RequestLog

if TYPE_CHECKING:
    from app.telemetry.tracing import Tracing

_Dependency = Callable[[Request], Awaitable[object]]
_JSON = b"application/json"
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")


class DirectRoute(APIRoute):
    """A route whose arguments are resolved when it is declared."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Awaitable[Response | BaseModel]],
        **options: Any,  # noqa: ANN401 - FastAPI's own
    ) -> None:
        super().__init__(path, endpoint, **options)
        self.app = _direct(endpoint)


def _direct(endpoint: Callable[..., Awaitable[Response | BaseModel]]) -> ASGIApp:
    requests, dependencies, bodies = _plan(endpoint)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        given: dict[str, object] = dict.fromkeys(requests, request)
        for name, dependency in dependencies:
            given[name] = await dependency(request)
        try:
            for name, model in bodies:
                given[name] = await _body(request, model)
        except ClientDisconnect:
            return  # the client has left
        answer = await endpoint(**given)
        response = answer if isinstance(answer, Response) else _rendered(answer)
        await response(scope, receive, send)

    return app


def _plan(
    endpoint: Callable[..., object],
) -> tuple[list[str], list[tuple[str, _Dependency]], list[tuple[str, type[BaseModel]]]]:
    """How to get each argument, by its annotation."""
    requests: list[str] = []
    dependencies: list[tuple[str, _Dependency]] = []
    bodies: list[tuple[str, type[BaseModel]]] = []
    hints = get_type_hints(endpoint, include_extras=True)
    for name in inspect.signature(endpoint).parameters:
        hint = hints[name]
        if hint is Request:
            requests.append(name)
        elif get_origin(hint) is Annotated and isinstance(depends := get_args(hint)[1], Depends):
            assert depends.dependency is not None
            dependencies.append((name, depends.dependency))
        elif inspect.isclass(hint) and issubclass(hint, BaseModel):
            bodies.append((name, hint))
        else:
            raise TypeError(f"a direct route cannot give its endpoint the argument {name!r}: {hint}")
    return requests, dependencies, bodies


def _rendered(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


async def _body(request: Request, model: type[BaseModel]) -> BaseModel:
    if not _is_json(request.scope["headers"]):
        # This also refuses requests that a browser sends for any origin without a preflight.
        problem = "the body must be JSON, with the header `content-type: application/json`"
        raise RequestValidationError([{"type": "content_type", "loc": ("body",), "msg": problem}])
    raw = await _whole_body(request)
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        if found[0]["type"] == "json_invalid":
            raise HTTPException(400, f"the body is not JSON in UTF-8: {found[0]['ctx']['error']}") from error
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found]) from error


async def _whole_body(request: Request) -> bytes:
    """The body; it almost always arrives in one message."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        body += b"".join([piece async for piece in request.stream()])
    return body


def _is_json(headers: list[tuple[bytes, bytes]]) -> bool:
    for name, value in headers:
        if name == b"content-type":
            if value == _JSON:
                return True
            kind = value.partition(b";")[0].strip().lower()
            return kind == _JSON or (kind.startswith(b"application/") and kind.endswith(b"+json"))
    return False


def build_app(
    *,
    version: str,
    lifespan: Lifespan[FastAPI],
    log_questions: bool,
    tracing: "Tracing | None",
    fields: Mapping[str, Mapping[str, str]],
) -> FastAPI:
    """An application without routes, with the request log and a correct OpenAPI document.

    `fields` describes the fields of dataclasses, by the name of their schema.
    """
    app = FastAPI(
        title="Fetchwise",
        description="An online RAG gateway that knows before it fetches.",
        version=version,
        # Our own page shows it: the built-in pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        telemetry=_telemetry(tracing),
    )
    generate, stack = app.openapi, app.build_middleware_stack

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _true(generate(), fields)
        return app.openapi_schema

    def logged() -> ASGIApp:
        # Middleware would not see the response to an unexpected error.
        return RequestLog(stack(), log_questions=log_questions, on_begin=tracing.began if tracing else None)

    app.openapi = described  # type: ignore[method-assign]
    app.build_middleware_stack = logged  # type: ignore[method-assign]
    return app


def include_direct(app: FastAPI, *routers: APIRouter) -> None:
    """Add routes directly: FastAPI wraps the routes of an included router and matches them twice per request."""
    for router in routers:
        app.router.routes.extend(router.routes)


def _true(document: dict[str, Any], fields: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
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
