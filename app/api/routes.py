"""The gateway's routes: each parses, calls one thing, and renders."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Depends, Request, Response

from app.answer import Answerer, Question
from app.api.auth import DENIALS, Asker, Caller, MayOperate
from app.api.calibrator_survey import CalibratorsOut
from app.api.limits import Permits
from app.api.readiness import OK, Pings, states
from app.api.schemas import (
    AnswerRequest,
    CalibratorState,
    ErrorOut,
    Health,
    Readiness,
    Receipt,
    receipt,
)
from app.api.streaming import AnswerStream, StreamedAnswer
from app.correlation import asked
from app.decision.audit import Audit
from app.decision.breakeven import BreakEven
from app.decision.policy import Ask, Policy
from app.decision.record import DecisionRecord
from app.errors import BadRequest, UpstreamTimeout
from app.ports import FeedbackDesk, Listener

# Nobody reads it; what other gateways log for a client that closed the connection.
_CLIENT_LEFT = 499
_ERRORS: dict[int | str, dict[str, Any]] = DENIALS | {
    400: {"model": ErrorOut, "description": "The body is not JSON in UTF-8."},
    404: {"model": ErrorOut, "description": "No such collection."},
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
                "schema": {"type": "string"},
                "example": 'event: decision\ndata: {"k":1,"reason":"borderline","p_closed_book":0.54}\n\n'
                'event: passages\ndata: {"passages":[]}\n\nevent: token\ndata: {"text":"Kingston"}\n\n'
                'event: final\ndata: {"id":"..."}\n\n',
            }
        },
    }
}


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the routes need; opened and closed by the application's lifespan."""

    answerer: Answerer
    permits: Permits
    pings: Pings
    calibrator: Callable[[], CalibratorState]
    # Blocks: the newest versions in the folder, at most so many.
    calibrators: Callable[[int], CalibratorsOut]
    # None where no decisions are kept.
    feedback: FeedbackDesk | None
    # Rates by tag from a time on, over at most so many decisions; None where no decisions are kept.
    audit: Callable[[float, int], Awaitable[Audit]] | None
    # Blocks: what gating cost in the last so many seconds, by default as many as the gauges look back.
    break_even: Callable[[int | None], BreakEven]
    default_policy: Policy
    default_collection: str
    default_max_tokens: int
    max_question_chars: int
    request_timeout_s: float


# A coroutine though it waits for nothing: anything else FastAPI calls in a thread, which costs more than all the rest.
async def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


T = TypeVar("T")
TheGateway = Annotated[Gateway, Depends(_gateway)]
router = APIRouter()


@router.post("/answer", response_model=Receipt, responses=_ERRORS | _STREAMED, summary="Answer a question, or abstain")
async def answer(body: AnswerRequest, gateway: TheGateway, caller: Asker, request: Request) -> Response:
    """Probe the model, decide how many passages the question needs, read them, and answer with a receipt."""
    if len(body.question) > gateway.max_question_chars:
        raise BadRequest(f"question: longer than {gateway.max_question_chars} characters: shorten it")
    asked(body.question)
    collection, where = caller.reach(body.collection, body.filter, default=gateway.default_collection)
    question = Question(
        text=body.question,
        collection=collection,
        max_tokens=body.max_tokens or gateway.default_max_tokens,
        ask=Ask(
            policy=body.policy or gateway.default_policy,
            retrieval=body.retrieval,
            abstain=body.abstain,
            filtered=bool(where),
        ),
        where=where,
        tags=body.tags,
        key=caller.id,
    )
    if body.stream:
        return await _streamed(question, gateway, caller, request)
    with caller.under_way(), gateway.permits.one():
        record = await _while_wanted(request, _in_time(gateway, question))
    if record is None:
        return Response(status_code=_CLIENT_LEFT)
    return Response(orjson.dumps(receipt(record)), media_type="application/json")


async def _streamed(question: Question, gateway: Gateway, caller: Caller, request: Request) -> Response:
    """Begin to stream; what fails before the first event is answered like any other failure."""
    with ExitStack() as holding:
        holding.enter_context(caller.under_way())
        holding.enter_context(gateway.permits.one())
        stream = AnswerStream(
            lambda listener: _in_time(gateway, question, listener),
            explain=request.app.state.explain,
            release=holding.pop_all().close,
        )
    try:
        if await _while_wanted(request, _begun(stream)):
            return StreamedAnswer(stream)
    except BaseException:
        await stream.close()
        raise
    await stream.close()
    return Response(status_code=_CLIENT_LEFT)


async def _begun(stream: AnswerStream) -> bool:
    await stream.begun()
    return True


async def _in_time(gateway: Gateway, question: Question, listener: Listener | None = None) -> DecisionRecord:
    try:
        async with asyncio.timeout(gateway.request_timeout_s):
            return await gateway.answerer.answer(question, listener)
    except TimeoutError as error:
        raise UpstreamTimeout(
            "gateway", f"the question took longer than {gateway.request_timeout_s:g} s in all"
        ) from error


async def _while_wanted(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Do the work for as long as the client waits for it; None, and the work is cancelled, once it has left."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    # The body has been read by now, so the next message that matters is the last.
    while (await request.receive())["type"] != "http.disconnect":
        pass


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
    ready = all(state == OK for state in parts.values())
    response.status_code = 200 if ready else 503
    told = Readiness(ready=ready, parts=parts, calibrator=gateway.calibrator())
    return told if may_operate else told.without_details()
