"""The gateway's routes: each parses, calls one thing, and renders."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from app.answer import Answerer, Question
from app.api.limits import Permits
from app.api.schemas import (
    AnswerRequest,
    CalibratorState,
    ErrorOut,
    Health,
    Readiness,
    Receipt,
    receipt,
)
from app.decision.policy import Ask, Policy
from app.decision.record import DecisionRecord
from app.errors import BadRequest, FetchwiseError, UpstreamTimeout

PING_TIMEOUT_S = 2.0
# Nobody reads it; what other gateways log for a client that closed the connection.
_CLIENT_LEFT = 499
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorOut, "description": "The body is not JSON in UTF-8."},
    404: {"model": ErrorOut, "description": "No such collection."},
    413: {"model": ErrorOut, "description": "The body is too large."},
    422: {"model": ErrorOut, "description": "The request is not valid; `fields` says where."},
    429: {"model": ErrorOut, "description": "Too much at once; `Retry-After` says when to try again."},
    500: {"model": ErrorOut, "description": "An unforeseen error."},
    503: {"model": ErrorOut, "description": "A part behind the gateway failed, and no honest answer was left."},
}


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the routes need; opened and closed by the application's lifespan."""

    answerer: Answerer
    permits: Permits
    pings: Mapping[str, Callable[[], Awaitable[object]]]
    calibrator: Callable[[], CalibratorState]
    default_policy: Policy
    default_collection: str
    default_max_tokens: int
    max_question_chars: int
    request_timeout_s: float


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


TheGateway = Annotated[Gateway, Depends(_gateway)]
router = APIRouter()


@router.post("/answer", response_model=Receipt, responses=_ERRORS, summary="Answer a question, or abstain")
async def answer(body: AnswerRequest, gateway: TheGateway, request: Request) -> Response:
    """Probe the model, decide how many passages the question needs, read them, and answer with a receipt."""
    if len(body.question) > gateway.max_question_chars:
        raise BadRequest(f"question: longer than {gateway.max_question_chars} characters: shorten it")
    question = Question(
        text=body.question,
        collection=body.collection or gateway.default_collection,
        max_tokens=body.max_tokens or gateway.default_max_tokens,
        ask=Ask(
            policy=body.policy or gateway.default_policy,
            retrieval=body.retrieval,
            abstain=body.abstain,
            filtered=bool(body.filter),
        ),
        where=body.filter,
        tags=body.tags,
    )
    with gateway.permits.one():
        try:
            async with asyncio.timeout(gateway.request_timeout_s):
                record = await _while_wanted(request, gateway.answerer.answer(question))
        except TimeoutError as error:
            raise UpstreamTimeout(
                "gateway", f"the question took longer than {gateway.request_timeout_s:g} s in all"
            ) from error
    if record is None:
        return Response(status_code=_CLIENT_LEFT)
    return Response(orjson.dumps(receipt(record)), media_type="application/json")


async def _while_wanted(request: Request, work: Coroutine[Any, Any, DecisionRecord]) -> DecisionRecord | None:
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
    return Health()


@router.get(
    "/readyz",
    summary="Can questions be answered?",
    responses={503: {"model": Readiness, "description": "A part is not ready; `parts` names it."}},
)
async def readyz(gateway: TheGateway, response: Response) -> Readiness:
    """Ping every part and name those that fail; says too which calibrator decides, or why none does."""
    states = dict(
        zip(gateway.pings, await asyncio.gather(*(_state(ping) for ping in gateway.pings.values())), strict=True)
    )
    ready = all(state == "ok" for state in states.values())
    response.status_code = 200 if ready else 503
    return Readiness(ready=ready, parts=states, calibrator=gateway.calibrator())


async def _state(ping: Callable[[], Awaitable[object]]) -> str:
    try:
        async with asyncio.timeout(PING_TIMEOUT_S):
            await ping()
    except TimeoutError:
        return f"no reply within {PING_TIMEOUT_S:g} s"
    except FetchwiseError as error:
        return str(error)
    return "ok"


@router.get("/", include_in_schema=False)
async def root() -> RedirectResponse:
    """Lead a person who opens the address in a browser to the documentation."""
    return RedirectResponse("/docs")
