"""Direct routes: arguments are resolved once, dependencies run before the body is read, and they are documented."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import fastapi
import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from app.api.app import include_direct
from app.api.http.direct import DirectRoute


class Asked(BaseModel):
    """A request body."""

    text: str


class Recorded(BaseModel):
    """A reply."""

    heard: str


async def doorkeeper(request: Request) -> str:
    """Require a name in the headers."""
    if "x-name" not in request.headers:
        raise HTTPException(401, "who are you?")
    return str(request.headers["x-name"])


async def response(request: Request, body: Asked) -> Response:
    """Return the path."""
    return Response(f"{request.url.path} {body.text}")


def an_app() -> FastAPI:
    router = APIRouter(route_class=DirectRoute)

    @router.post("/model")
    async def model(body: Asked, name: Annotated[str, Depends(doorkeeper)]) -> Recorded:
        return Recorded(heard=f"{name}: {body.text}")

    router.post("/response", response_model=Recorded)(response)
    app = FastAPI()
    include_direct(app, router)
    return app


async def post(
    path: str, content: bytes, kind: str = "application/json", *, app: FastAPI | None = None, **headers: str
) -> httpx.Response:
    transport = httpx.ASGITransport(app=app or an_app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        return await client.post(path, content=content, headers={"content-type": kind} | headers)


async def test_what_an_endpoint_asks_for_is_given() -> None:
    """Arguments have any names; a model is rendered, a response is sent unchanged."""
    told = await post("/model", b'{"text": "hello"}', **{"x-name": "Ada"})
    assert (told.status_code, told.json()) == (200, {"heard": "Ada: hello"})
    assert (await post("/response", b'{"text": "hello"}')).text == "/response hello"


@pytest.mark.parametrize("body", [b"", b"{", b'{"text": 1}', b"\xff"])
async def test_who_may_not_ask_is_not_read(body: bytes) -> None:
    """A failing dependency is reported whatever the body is."""
    assert (await post("/model", body)).status_code == 401


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 400), (b"{", 400), (b"\xff", 400), (b"[" * 5000, 400), (b'{"text": 1}', 422)]
)
async def test_a_wrong_body(body: bytes, status: int) -> None:
    """Invalid JSON and JSON of the wrong shape get different errors."""
    assert (await post("/response", body)).status_code == status


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("application/vnd.api+json", 200),
        ("text/plain", 422),
        ("text/json", 422),
        ("application/jsonlines", 422),
    ],
)
async def test_only_json_is_read(kind: str, status: int) -> None:
    """Other content types are refused: a page of any origin can send plain text without a preflight."""
    assert (await post("/response", b'{"text": "hello"}', kind)).status_code == status


def test_the_documentation_is_the_usual_one() -> None:
    """The body and the response are documented from the signature."""
    described = an_app().openapi()["paths"]["/model"]["post"]
    assert described["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Asked"}
    assert described["responses"]["200"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Recorded"
    }


def test_an_argument_that_cannot_be_given_is_refused_at_once() -> None:
    """An unsupported argument is an error at declaration, not at the first request."""
    router = APIRouter(route_class=DirectRoute)

    async def endpoint(number: int) -> Recorded:
        return Recorded(heard=str(number))

    with pytest.raises(TypeError, match="number"):
        router.post("/number")(endpoint)


class TestWhatMayGo:
    """Each test fails when FastAPI no longer needs one of the changes in `app.api.http.direct`."""

    def test_it_is_the_version_that_was_adapted(self) -> None:
        """For another minor version: run these tests and `make bench-gateway`, then change pyproject.toml."""
        assert fastapi.__version__.startswith("0.162.")

    async def test_a_plain_route_reads_the_body_first(self) -> None:
        """If this fails and `make bench-gateway` shows that plain routes are as fast, remove DirectRoute."""
        app = FastAPI()

        @app.post("/model")
        async def model(body: Asked, name: Annotated[str, Depends(doorkeeper)]) -> Recorded:
            return Recorded(heard=f"{name}: {body.text}")

        assert (await post("/model", b"{", app=app)).status_code != 401

    def test_an_included_route_is_wrapped(self) -> None:
        """If this fails, remove include_direct."""
        router = APIRouter(route_class=DirectRoute)
        router.post("/response", response_model=Recorded)(response)
        app = FastAPI()
        app.include_router(router)
        assert router.routes[0] not in app.routes

    async def test_middleware_does_not_see_the_reply_to_an_unexpected_error(self) -> None:
        """If this fails, make the request log a normal middleware."""
        app, seen = FastAPI(), []

        @app.middleware("http")
        async def watch(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
            answered = await call_next(request)
            seen.append(answered.status_code)
            return answered

        @app.post("/response")
        async def fail() -> Recorded:
            raise ArithmeticError

        assert (await post("/response", b"{}", app=app)).status_code == 500
        assert seen == []

    def test_fastapi_documents_errors_of_its_own(self) -> None:
        """If this fails, FastAPI's OpenAPI document can be used: no route below `/v1/` returns a 422."""
        app = FastAPI()

        @app.get("/{number}")
        async def numbered(number: int) -> Recorded:
            return Recorded(heard=str(number))

        assert "422" in app.openapi()["paths"]["/{number}"]["get"]["responses"]
