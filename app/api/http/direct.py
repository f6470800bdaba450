"""Fast routes for busy paths.

A direct route resolves its arguments once, where FastAPI does so for each request. Its endpoint is declared and
documented like any other. It may take the request, dependencies that need only the request, and one JSON body; it
returns a response or a model. Dependencies run first, so the body of a refused request is not read.

This relies on internals, so FastAPI is pinned to a minor version; `tests/unit/api/test_direct.py` checks them.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

_Dependency = Callable[[Request], Awaitable[object]]
_JSON = b"application/json"


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
