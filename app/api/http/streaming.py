"""A streamed answer: server-sent events while the question is being answered."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import orjson
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from app.api.explain import step_out
from app.api.receipt import cited, receipt
from app.core.available import Passage
from app.core.ladder import Step, Stop
from app.core.record import DecisionRecord
from app.correlation import first_token
from app.errors import FetchwiseError
from app.ports import Listener

logger = logging.getLogger(__name__)

# Keeps proxies from closing the connection while the reader is slow.
KEEP_ALIVE_S = 15.0
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

Work = Callable[[Listener], Awaitable[DecisionRecord]]


class Rendering(Protocol):
    """Turns what happens into the bytes of server-sent events; empty bytes send nothing."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Response headers, known when the first event is."""
        ...

    def step(self, step: Step, evidence: Mapping[str, float]) -> bytes:
        """The next action, with the evidence that is known."""
        ...

    def found(self, passages: Sequence[Passage]) -> bytes:
        """The passages that the answer was requested from."""
        ...

    def token(self, text: str) -> bytes:
        """A piece of the answer."""
        ...

    def chunk(self, event: Mapping[str, Any]) -> bytes:
        """An event of the reader's own reply."""
        ...

    def final(self, record: DecisionRecord) -> bytes:
        """The answer is complete."""
        ...

    def failed(self, problem: bytes) -> bytes:
        """An error ends the stream; `problem` is the body of the error response."""
        ...


class ReceiptEvents:
    """The events of `/answer`: `step`..., `passages`, `token`..., then `final` (the receipt) or `error`."""

    headers: Mapping[str, str] = MappingProxyType({})

    def step(self, step: Step, evidence: Mapping[str, float]) -> bytes:
        """The step, as in the receipt."""
        return _event("step", step_out(step, evidence))

    def found(self, passages: Sequence[Passage]) -> bytes:
        """The passages, as the receipt cites them."""
        return _event("passages", {"passages": cited(passages)})

    def token(self, text: str) -> bytes:
        """The text."""
        return _event("token", {"text": text})

    def chunk(self, _event: Mapping[str, Any]) -> bytes:
        """Send nothing: this route passes no chat on."""
        return b""

    def final(self, record: DecisionRecord) -> bytes:
        """The receipt."""
        return _event("final", receipt(record))

    def failed(self, problem: bytes) -> bytes:
        """The error, in the shape of every error."""
        return format_sse_event(event="error", data_str=problem.decode())


def _event(name: str, data: dict[str, Any]) -> bytes:
    return format_sse_event(event=name, data_str=orjson.dumps(data).decode())


class AnswerStream:
    """Answers a question and queues events; closing it cancels the work."""

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
        self._steps = 0
        # The passages of the largest prompt so far; None once they are sent.
        self._passages: Sequence[Passage] | None = ()
        self._working = asyncio.create_task(self._work(work), name="streamed answer")

    @property
    def headers(self) -> Mapping[str, str]:
        """Response headers, known when the stream has begun."""
        return self._render.headers

    def step(self, step: Step, evidence: Mapping[str, float]) -> None:
        """Send the step. The first waits for the next event: if the first call fails, that is an error response."""
        self._steps += 1
        self._send(self._render.step(step, evidence), begin=self._steps > 1)
        if isinstance(step.action, Stop):
            self._send_passages(step.action.k)

    def found(self, passages: Sequence[Passage]) -> None:
        """Keep the passages until it is known that the answer comes from them: the ladder may read more."""
        if self._passages is not None:
            self._passages = passages

    def token(self, text: str) -> None:
        """Send a piece of the answer."""
        self._send_passages(None if self._passages is None else len(self._passages))
        first_token()
        self._send(self._render.token(text))

    def chunk(self, event: Mapping[str, Any]) -> None:
        """Pass on an event of the reader."""
        self._send(self._render.chunk(event))

    def _send_passages(self, k: int | None) -> None:
        """Send the k passages that the answer was requested from, once."""
        if k and self._passages:
            self._send(self._render.found(self._passages[:k]))
        self._passages = None

    async def begun(self) -> None:
        """Return when there is an event. An earlier error is raised here, while it can still be an error response."""
        waiting = asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait((waiting, self._working), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._begun.is_set():
            await self._working

    async def events(self) -> AsyncIterator[bytes]:
        """Every event, until the last."""
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
        """Cancel the work if it still runs, and release what it holds; idempotent."""
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
            logger.exception("unexpected error in a streamed answer")
            unexpected = FetchwiseError("an unexpected error; see the log of the gateway")
            self._send(self._render.failed(bytes(self._explain(unexpected).body)))
        finally:
            self._events.put_nowait(None)

    def _send(self, event: bytes, *, begin: bool = True) -> None:
        if event:
            self._events.put_nowait(event)
            if begin:
                self._begun.set()


class StreamedAnswer(EventSourceResponse):
    """Sends the events, and cancels the work when the connection ends."""

    def __init__(self, stream: AnswerStream) -> None:
        super().__init__(stream.events(), headers={**_HEADERS, **stream.headers})
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stream.close()
