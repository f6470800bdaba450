"""A streamed answer: server-sent events `decision`, `passages`, `token`..., and at the end `final` or `error`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import orjson
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from app.api.errors import problem
from app.api.schemas import receipt
from app.decision.policy import Decision
from app.decision.record import DecisionRecord
from app.errors import FetchwiseError
from app.ports import Listener, Passage

logger = logging.getLogger(__name__)

# So that a proxy between does not take a slow reader for a dead connection.
KEEP_ALIVE_S = 15.0
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

Work = Callable[[Listener], Awaitable[DecisionRecord]]


class AnswerStream:
    """Works on a question and turns what it hears into events; closing it stops the work."""

    def __init__(
        self, work: Work, *, explain: Callable[[FetchwiseError], JSONResponse], release: Callable[[], None]
    ) -> None:
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._explain = explain
        self._release = release
        self._begun = asyncio.Event()
        self._working = asyncio.create_task(self._work(work), name="streamed answer")

    def decided(self, decision: Decision) -> None:
        """Say how the question is to be answered."""
        self._say("decision", {"k": decision.k, "reason": decision.reason.value, "p_closed_book": decision.p0})

    def found(self, passages: Sequence[Passage]) -> None:
        """Say what will be read."""
        cited = [
            {"index": index, "id": one.id, "title": one.title, "text": one.text, "score": one.score}
            for index, one in enumerate(passages, start=1)
        ]
        self._say("passages", {"passages": cited})

    def token(self, text: str) -> None:
        """Say a piece of the answer."""
        self._say("token", {"text": text})

    async def begun(self) -> None:
        """Return once there is an event; what fails before raises here, while it can still be a status."""
        waiting = asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait((waiting, self._working), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._begun.is_set():
            await self._working

    async def events(self) -> AsyncIterator[bytes]:
        """Every event as it comes, until the last."""
        while True:
            try:
                event = await asyncio.wait_for(self._events.get(), KEEP_ALIVE_S)
            except TimeoutError:
                yield KEEPALIVE_COMMENT
                continue
            if event is None:
                return
            yield event

    async def close(self) -> None:
        """Stop the work, if it is still under way, and give back what it held; idempotent."""
        self._working.cancel()
        await asyncio.gather(self._working, return_exceptions=True)
        release, self._release = self._release, lambda: None
        release()

    async def _work(self, work: Work) -> None:
        try:
            self._say("final", receipt(await work(self)))
        except FetchwiseError as error:
            if not self._begun.is_set():
                raise
            self._say_raw("error", bytes(self._explain(error).body))
        except Exception:
            if not self._begun.is_set():
                raise
            logger.exception("unforeseen error in a streamed answer")
            self._say_raw("error", bytes(problem(500, "internal_error", "an unforeseen error; see the log").body))
        finally:
            self._events.put_nowait(None)

    def _say(self, event: str, data: dict[str, Any]) -> None:
        self._say_raw(event, orjson.dumps(data))

    def _say_raw(self, event: str, data: bytes) -> None:
        self._events.put_nowait(format_sse_event(event=event, data_str=data.decode()))
        self._begun.set()


class StreamedAnswer(EventSourceResponse):
    """Sends the events, and ends the work with the connection, whoever ended that."""

    def __init__(self, stream: AnswerStream) -> None:
        super().__init__(stream.events(), headers=_HEADERS)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stream.close()
