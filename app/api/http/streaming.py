"""A streamed answer: the work on a question, told event by event while it goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import orjson
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from app.api.receipt import cited, receipt
from app.core.available import Passage
from app.core.ladder import Step
from app.core.record import DecisionRecord
from app.errors import FetchwiseError
from app.ports import Listener

logger = logging.getLogger(__name__)

# So that a proxy between does not take a slow reader for a dead connection.
KEEP_ALIVE_S = 15.0
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

Work = Callable[[Listener], Awaitable[DecisionRecord]]


class Rendering(Protocol):
    """How what is heard goes over the wire, as the bytes of whole server-sent events; empty where it says nothing."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What the reply's head can tell once there is an event."""
        ...

    def decided(self, k: int, step: Step) -> bytes:
        """How many passages the answer is read from, once that is known."""
        ...

    def found(self, passages: Sequence[Passage]) -> bytes:
        """What will be read."""
        ...

    def token(self, text: str) -> bytes:
        """A piece of the answer."""
        ...

    def final(self, record: DecisionRecord) -> bytes:
        """What it came to."""
        ...

    def failed(self, problem: bytes) -> bytes:
        """The error that ends it, of which this would have been the body of a reply."""
        ...


class ReceiptEvents:
    """The events of `/answer`: `decision`, `passages`, `token`..., and at the end `final` (the receipt) or `error`."""

    headers: Mapping[str, str] = MappingProxyType({})

    def decided(self, k: int, step: Step) -> bytes:
        """Say k, the reason, and the probability it was decided by."""
        return _event("decision", {"k": k, "reason": step.why, "p_closed_book": step.p})

    def found(self, passages: Sequence[Passage]) -> bytes:
        """Say them as the receipt will cite them."""
        return _event("passages", {"passages": cited(passages)})

    def token(self, text: str) -> bytes:
        """Say it as it is."""
        return _event("token", {"text": text})

    def final(self, record: DecisionRecord) -> bytes:
        """Say the receipt."""
        return _event("final", receipt(record))

    def failed(self, problem: bytes) -> bytes:
        """Say it in the one shape of errors."""
        return format_sse_event(event="error", data_str=problem.decode())


def _event(name: str, data: dict[str, Any]) -> bytes:
    return format_sse_event(event=name, data_str=orjson.dumps(data).decode())


class AnswerStream:
    """Works on a question and turns what it hears into events; closing it stops the work."""

    def __init__(
        self,
        work: Work,
        *,
        render: Rendering,
        explain: Callable[[FetchwiseError], JSONResponse],
        release: Callable[[], None],
    ) -> None:
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._render = render
        self._explain = explain
        self._release = release
        self._begun = asyncio.Event()
        self._decided = False
        self._working = asyncio.create_task(self._work(work), name="streamed answer")

    @property
    def headers(self) -> Mapping[str, str]:
        """What the reply's head can tell once the stream has begun."""
        return self._render.headers

    def step(self, step: Step) -> None:
        """Say how the question is answered, as soon as that is decided."""
        if not self._decided and step.k is not None:
            self._decided = True
            self._send(self._render.decided(step.k, step))

    def found(self, passages: Sequence[Passage]) -> None:
        """Say what will be read."""
        self._send(self._render.found(passages))

    def token(self, text: str) -> None:
        """Say a piece of the answer."""
        self._send(self._render.token(text))

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
            self._send(self._render.final(await work(self)))
        except FetchwiseError as error:
            if not self._begun.is_set():
                raise
            self._send(self._render.failed(bytes(self._explain(error).body)))
        except Exception:
            if not self._begun.is_set():
                raise
            logger.exception("unforeseen error in a streamed answer")
            unforeseen = FetchwiseError("an unforeseen error; see the log")
            self._send(self._render.failed(bytes(self._explain(unforeseen).body)))
        finally:
            self._events.put_nowait(None)

    def _send(self, event: bytes) -> None:
        if event:
            self._events.put_nowait(event)
            self._begun.set()


class StreamedAnswer(EventSourceResponse):
    """Sends the events, and ends the work with the connection, whoever ended that."""

    def __init__(self, stream: AnswerStream) -> None:
        super().__init__(stream.events(), headers={**_HEADERS, **stream.headers})
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stream.close()
