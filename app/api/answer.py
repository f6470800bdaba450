"""`POST /answer`, and how every route runs a question: with a permit, a deadline, and only while the client waits."""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, Request, Response

from app.answer.standalone import standalone
from app.api.gateway import Gateway, TheGateway
from app.api.http.direct import DirectRoute
from app.api.http.errors import DENIALS, documented, explain
from app.api.http.guard import AnswerCaller, Caller
from app.api.http.middleware import CLIENT_CLOSED
from app.api.http.streaming import AnswerStream, ReceiptEvents, Rendering, StreamedAnswer
from app.api.receipt import Receipt, receipt
from app.api.request import FULL_TOKENS, SHORT_TOKENS, AnswerOptions, AnswerRequest, cleaned
from app.core.policy import AskOptions, Policy, Retrieval
from app.core.question import UNSEARCHED, Question, Writing
from app.core.record import DecisionRecord
from app.correlation import set_question
from app.errors import BadRequest
from app.ports import SILENT, Listener

T = TypeVar("T")
# Whether the client has left is first checked after this time.
_WATCH_AFTER_S = 0.02

_ERRORS = documented(
    *(*DENIALS, 400, 408, 413, 422, 500, 503),
    own={404: "No such collection, or no passage was found and `retrieval` is `required`."},
)
_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The receipt; with `stream`, it is the last event.",
        "content": {
            "text/event-stream": {
                "itemSchema": {
                    "type": "object",
                    "properties": {
                        "event": {"enum": ["step", "passages", "token", "final", "error"]},
                        "data": {"type": "string", "contentMediaType": "application/json"},
                    },
                    "required": ["event", "data"],
                },
                "example": 'event: step\ndata: {"state":"","options":[],"action":"search","why":"retrieval_required",'
                '"sentence":"Search for passages: passages are required."}\n\n'
                'event: passages\ndata: {"passages":[]}\n\nevent: token\ndata: {"text":"Kingston"}\n\n'
                'event: final\ndata: {"id":"..."}\n\n',
            }
        },
    }
}

router = APIRouter(tags=["Questions"], route_class=DirectRoute)


@router.post("/answer", response_model=Receipt, responses=_ERRORS | _STREAMED, summary="Answer a question, or abstain")
async def answer(body: AnswerRequest, gateway: TheGateway, caller: AnswerCaller, request: Request) -> Response:
    """Search, ask the model and read passages as far as it is worth its price, and answer with a receipt."""
    question = asked(body, gateway, caller)
    if body.stream:
        return await streamed(question, gateway, caller, request, ReceiptEvents())
    record = await whole(question, gateway, caller, request)
    if record is None:
        return Response(status_code=CLIENT_CLOSED)
    return Response(orjson.dumps(receipt(record)), media_type="application/json")


def asked(body: AnswerRequest, gateway: Gateway, caller: Caller) -> Question:
    """The question of a request to `/answer`."""
    check_length(body.question, gateway)
    set_question(body.question)
    longest, writing = body.max_tokens and min(body.max_tokens, SHORT_TOKENS), None
    if body.style == "full":
        # The short answer keeps its own length: that is what the calibrator was fitted on.
        longest, writing = None, Writing("full", {"max_tokens": body.max_tokens or FULL_TOKENS})
    return question_of(body.question, body, gateway, caller, max_tokens=longest, writing=writing)


def check_length(question: str, gateway: Gateway) -> None:
    """Refuse a question that is too long."""
    if len(question) > (limit := gateway.max_question_chars):
        raise BadRequest(f"question: it has {len(question)} characters, the limit is {limit}: shorten it")


def _identifiers() -> Iterator[str]:
    """Ids that cannot be guessed; random bytes are drawn in bulk, because each draw is a system call."""
    while True:
        drawn = secrets.token_hex(12 * 256)
        yield from (drawn[start : start + 24] for start in range(0, len(drawn), 24))


def _reseed() -> None:
    global _ids  # noqa: PLW0603 - a forked process must not reuse the ids of its parent
    _ids = _identifiers()


_ids = _identifiers()
os.register_at_fork(after_in_child=_reseed)


def question_of(
    text: str,
    chosen: AnswerOptions,
    gateway: Gateway,
    caller: Caller,
    *,
    max_tokens: int | None,
    policy: Policy | None = None,
    writing: Writing | None = None,
    ignored: tuple[str, ...] = (),
) -> Question:
    """Build the question of a request, within the limits of its key."""
    collection, where = caller.reach(chosen.collection, chosen.filter, default=gateway.default_collection)
    return Question(
        id=next(_ids),
        text=text,
        collection=collection,
        max_tokens=max_tokens or gateway.default_max_tokens,
        options=AskOptions(
            policy=policy or chosen.policy or gateway.default_policy,
            retrieval=chosen.retrieval,
            abstain=chosen.abstain,
            filtered=bool(where),
        ),
        where=where,
        tags=chosen.tags,
        key=caller.id,
        may_give_feedback=caller.may_give_feedback,
        writing=writing,
        ignored=ignored,
        deadline=gateway.deadline(chosen.timeout_ms),
    )


async def whole(question: Question, gateway: Gateway, caller: Caller, request: Request) -> DecisionRecord | None:
    """Answer the question; None if the client left."""
    with caller.in_progress():
        return await _while_wanted(request, _permitted(gateway, question))


async def streamed(
    question: Question, gateway: Gateway, caller: Caller, request: Request, render: Rendering
) -> Response:
    """Start a stream. An error before the first event is returned as a normal error response."""
    with ExitStack() as holding:
        holding.enter_context(caller.in_progress())
        stream = AnswerStream(
            lambda listener: _permitted(gateway, question, listener),
            render=render,
            explain=partial(explain, scope=request.scope),
            release=holding.pop_all().close,
        )
    try:
        if await _while_wanted(request, _begun(stream)):
            return StreamedAnswer(stream)
    except BaseException:
        await stream.close()
        raise
    await stream.close()
    return Response(status_code=CLIENT_CLOSED)


async def with_permit(
    work: Callable[[], Awaitable[T]], deadline: float, gateway: Gateway, caller: Caller, request: Request
) -> T | None:
    """Do other work of a request under the limits of a question; None if the client left."""

    async def permitted() -> T:
        await gateway.permits.take(deadline)
        try:
            return await work()
        finally:
            gateway.permits.give_back()

    with caller.in_progress():
        return await _while_wanted(request, permitted())


async def _begun(stream: AnswerStream) -> bool:
    await stream.begun()
    return True


async def _permitted(gateway: Gateway, question: Question, listener: Listener = SILENT) -> DecisionRecord:
    """Answer the question with a permit; wait in the queue for one if necessary."""
    permits = gateway.permits
    waited_s = await permits.take(question.deadline)
    if waited_s:
        question = replace(question, waited_s=waited_s)
    try:
        if question.writing is not None and question.writing.kind == "chat":
            question = await _standing_alone(question, question.writing, gateway)
        return await gateway.answerer.answer(question, listener)
    finally:
        permits.give_back()


async def _standing_alone(question: Question, chat: Writing, gateway: Gateway) -> Question:
    """The question behind the last message of a chat. Nothing is searched for a message that asks nothing."""
    text, found = await standalone(chat.body["messages"], gateway.answerer.upstreams, question.deadline)
    options = question.options
    if found.how in UNSEARCHED:
        options = replace(options, policy=Policy.NEVER, retrieval=Retrieval.AUTO)
    # The end of a long message says what is wanted.
    searched = cleaned(text)[-gateway.max_question_chars :]
    return replace(question, text=searched, standalone=found, options=options)


async def _while_wanted(request: Request, work: Awaitable[T]) -> T | None:
    """Do the work while the client waits. If the client leaves, cancel it and return None."""
    watch = _ClientWatch(request)
    try:
        return await work
    except asyncio.CancelledError:
        # Others cancel too: the server does when it stops.
        if watch.left and watch.working.uncancel() == 0:
            return None
        raise
    finally:
        watch.end()


class _ClientWatch:
    """Cancels the current task when its client leaves.

    The work stays in the task of its request, and watching begins only after some time: a task for either would cost
    more than most of a quick answer.
    """

    def __init__(self, request: Request) -> None:
        working = asyncio.current_task()
        assert working is not None
        self.working = working
        self.left = False
        self._request = request
        self._ended = False
        self._leaving: asyncio.Task[None] | None = None
        self._begin_at = working.get_loop().call_later(_WATCH_AFTER_S, self._begin)

    def end(self) -> None:
        # Set a flag: a callback that is already scheduled cannot be removed, and would cancel later work.
        self._ended = True
        self._begin_at.cancel()
        if self._leaving is not None:
            self._leaving.cancel()

    def _begin(self) -> None:
        self._leaving = asyncio.create_task(_left(self._request))
        self._leaving.add_done_callback(self._leave)

    def _leave(self, leaving: "asyncio.Task[None]") -> None:
        if not self._ended and not leaving.cancelled():
            self.left = True
            self.working.cancel()


async def _left(request: Request) -> None:
    # The body has been read, so the only message still to come is the disconnect.
    while (await request.receive())["type"] != "http.disconnect":
        pass
