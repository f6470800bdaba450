"""The gateway's routes: each parses, calls one thing, and renders."""

import os
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from app.api.asking import question_of, streamed, whole
from app.api.auth import DENIALS, Asker, MayOperate
from app.api.direct import DirectRoute
from app.api.gateway import TheGateway
from app.api.middleware import CLIENT_LEFT
from app.api.readiness import states, up
from app.api.schemas import (
    AnswerRequest,
    ErrorOut,
    Health,
    Readiness,
    Receipt,
    receipt,
)
from app.api.streaming import ReceiptEvents
from app.correlation import asked
from app.errors import BadRequest

_ERRORS: dict[int | str, dict[str, Any]] = DENIALS | {
    400: {"model": ErrorOut, "description": "The body is not JSON in UTF-8."},
    404: {"model": ErrorOut, "description": "No such collection, or no passage where one was insisted on."},
    408: {"model": ErrorOut, "description": "The request took too long to come in."},
    413: {"model": ErrorOut, "description": "The body is too large."},
    422: {"model": ErrorOut, "description": "The request is not valid; `fields` says where."},
    500: {"model": ErrorOut, "description": "An unforeseen error."},
    503: {"model": ErrorOut, "description": "A part behind the gateway failed, and no honest answer was left."},
}

_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The receipt; with `stream`, as the last of the events.",
        "content": {
            "text/event-stream": {
                "itemSchema": {
                    "type": "object",
                    "properties": {
                        "event": {"enum": ["decision", "passages", "token", "final", "error"]},
                        "data": {"type": "string", "contentMediaType": "application/json"},
                    },
                    "required": ["event", "data"],
                },
                "example": 'event: decision\ndata: {"k":1,"reason":"borderline","p_closed_book":0.54}\n\n'
                'event: passages\ndata: {"passages":[]}\n\nevent: token\ndata: {"text":"Kingston"}\n\n'
                'event: final\ndata: {"id":"..."}\n\n',
            }
        },
    }
}


router = APIRouter()
busy = APIRouter(route_class=DirectRoute)


@busy.post("/answer", response_model=Receipt, responses=_ERRORS | _STREAMED, summary="Answer a question, or abstain")
async def answer(body: AnswerRequest, gateway: TheGateway, caller: Asker, request: Request) -> Response:
    """Probe the model, decide how many passages the question needs, read them, and answer with a receipt."""
    if len(body.question) > gateway.max_question_chars:
        raise BadRequest(f"question: longer than {gateway.max_question_chars} characters: shorten it")
    asked(body.question)
    question = question_of(body.question, body, gateway, caller, max_tokens=body.max_tokens)
    if body.stream:
        return await streamed(question, gateway, caller, request, ReceiptEvents())
    record = await whole(question, gateway, caller, request)
    if record is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(orjson.dumps(receipt(record)), media_type="application/json")


@router.get("/healthz", summary="Is the process up?")
async def healthz() -> Health:
    """Answer while the event loop turns; says nothing about the parts behind."""
    return Health(worker=os.getpid())


@router.get(
    "/readyz",
    summary="Can questions be answered?",
    responses={503: {"model": Readiness, "description": "A part is not ready; `parts` names it."}},
)
async def readyz(gateway: TheGateway, may_operate: MayOperate, response: Response) -> Readiness:
    """Ping every part and name those that fail; says too which calibrator decides, or why none does.

    With keys, why something fails is told to those that may operate.
    """
    parts = await states(gateway.pings)
    ready = all(up(state) for state in parts.values())
    response.status_code = 200 if ready else 503
    told = Readiness(ready=ready, parts=parts, calibrator=gateway.calibrator())
    return told if may_operate else told.without_details()
