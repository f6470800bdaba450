"""`POST /v1/embeddings`: the gateway's own embedder, as its passages are embedded."""

import asyncio
import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from app.api.answer import with_permit
from app.api.gateway import TheGateway
from app.api.http.direct import DirectRoute
from app.api.http.errors import DENIALS, OpenAIErrorOut, documented
from app.api.http.guard import AnswerCaller
from app.api.http.middleware import CLIENT_CLOSED
from app.api.openai.reply import MODEL
from app.correlation import set_question
from app.errors import BadRequest, DeadlinePassed, UnknownModel

_ERRORS = documented(
    *(*DENIALS, 408, 413, 500, 503),
    model=OpenAIErrorOut,
    own={400: "The request is not valid; `param` names the field.", 404: "No such model."},
)
router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=DirectRoute)


def _texts(given: object) -> object:
    """One text or several; never tokens, whose numbers mean something else in every model."""
    given = [given] if isinstance(given, str) else given
    if isinstance(given, list) and any(not isinstance(one, str) for one in given):
        raise ValueError("only text can be embedded: send strings, not tokens")
    return given


class EmbeddingRequest(BaseModel):
    """Texts to embed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": MODEL, "input": "The capital of Jamaica"}]})

    model: str = Field(description=f"`{MODEL}`, or the name of the embedder.")
    input: Annotated[
        list[Annotated[str, Field(min_length=1)]], BeforeValidator(_texts, json_schema_input_type=str | list[str])
    ] = Field(min_length=1, max_length=2048, description="One text, or several.")
    encoding_format: Literal["float", "base64"] | None = Field(
        default=None, description="`base64`: 32-bit numbers, little-endian. Default: `float`."
    )
    dimensions: int | None = Field(default=None, description="Only the length that the embedder has.")


class EmbeddingOut(BaseModel):
    """One vector, of unit length."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class NoUsage(BaseModel):
    """Always 0: embedders do not report tokens."""

    prompt_tokens: Literal[0]
    total_tokens: Literal[0]


class EmbeddingsOut(BaseModel):
    """The vectors, in the order of the texts."""

    object: Literal["list"]
    model: str
    data: list[EmbeddingOut]
    usage: NoUsage


@router.post("/embeddings", response_model=EmbeddingsOut, responses=_ERRORS, summary="Embed texts")
async def embeddings(body: EmbeddingRequest, gateway: TheGateway, caller: AnswerCaller, request: Request) -> Response:
    """Embed texts with the gateway's embedder, without the prefix that it gives to questions."""
    embedder = gateway.upstreams.embedder
    if body.model not in {MODEL, embedder.name}:
        raise UnknownModel(f"there is no model {body.model[:64]!r} to embed with: choose {MODEL!r}")
    if body.dimensions not in {None, embedder.dimension}:
        raise BadRequest(f"dimensions: the embedder's vectors have {embedder.dimension}: remove it")
    set_question(body.input[0], *body.input[1:])
    deadline = gateway.deadline(None)

    async def embed() -> Sequence[Sequence[float]]:
        try:
            async with asyncio.timeout_at(deadline):
                return await embedder.embed_passages(body.input)
        except TimeoutError as error:
            raise DeadlinePassed("embedder", "the embedder did not finish in time: send fewer texts") from error

    vectors = await with_permit(embed, deadline, gateway, caller, request)
    if vectors is None:
        return Response(status_code=CLIENT_CLOSED)
    encode = _base64 if body.encoding_format == "base64" else list
    reply: dict[str, Any] = {
        "object": "list",
        "model": embedder.name,
        "data": [
            {"object": "embedding", "index": index, "embedding": encode(vector)} for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }
    return Response(orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


def _base64(vector: Sequence[float]) -> str:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
