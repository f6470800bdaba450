"""Routes whose arguments are worked out once: dependencies before the body, and the same documentation."""

from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from app.api.direct import DirectRoute


class Asked(BaseModel):
    """What is asked."""

    text: str


class Told(BaseModel):
    """What is told."""

    heard: str


async def doorkeeper(request: Request) -> str:
    """Let in who says who they are."""
    if "x-name" not in request.headers:
        raise HTTPException(401, "who are you?")
    return str(request.headers["x-name"])


def an_app() -> FastAPI:
    router = APIRouter(route_class=DirectRoute)

    @router.post("/model")
    async def model(body: Asked, name: Annotated[str, Depends(doorkeeper)]) -> Told:
        return Told(heard=f"{name}: {body.text}")

    @router.post("/response", response_model=Told)
    async def response(request: Request, body: Asked) -> Response:
        return Response(f"{request.url.path} {body.text}")

    app = FastAPI()
    app.router.routes.extend(router.routes)
    return app


async def post(path: str, content: bytes, kind: str = "application/json", **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=an_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        return await client.post(path, content=content, headers={"content-type": kind} | headers)


async def test_what_an_endpoint_asks_for_is_given() -> None:
    """Dependencies, the body and the request, under their own names; a model is rendered, a response sent as it is."""
    told = await post("/model", b'{"text": "hello"}', **{"x-name": "Ada"})
    assert (told.status_code, told.json()) == (200, {"heard": "Ada: hello"})
    assert (await post("/response", b'{"text": "hello"}')).text == "/response hello"


@pytest.mark.parametrize("body", [b"", b"{", b'{"text": 1}', b"\xff"])
async def test_who_may_not_ask_is_not_read(body: bytes) -> None:
    """Whatever the body is, the missing name is what is wrong."""
    assert (await post("/model", body)).status_code == 401


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 400), (b"{", 400), (b"\xff", 400), (b"[" * 5000, 400), (b'{"text": 1}', 422)]
)
async def test_a_wrong_body(body: bytes, status: int) -> None:
    """What is no JSON is told apart from JSON that is not what was asked for."""
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
    """A page of any origin may send plain text without asking first, so that must not be taken for JSON."""
    assert (await post("/response", b'{"text": "hello"}', kind)).status_code == status


def test_the_documentation_is_the_usual_one() -> None:
    """The body and the reply are described from the signature."""
    described = an_app().openapi()["paths"]["/model"]["post"]
    assert described["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Asked"}
    assert described["responses"]["200"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Told"
    }


def test_an_argument_that_cannot_be_given_is_refused_at_once() -> None:
    """Not when the first request comes."""
    router = APIRouter(route_class=DirectRoute)

    async def endpoint(number: int) -> Told:
        return Told(heard=str(number))

    with pytest.raises(TypeError, match="number"):
        router.post("/number")(endpoint)
