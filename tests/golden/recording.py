"""Fakes that fail as a scenario says, and record every call in one list."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from app.core.available import Passage
from app.core.question import Filter
from app.errors import PromptTooLong, UpstreamBadReply, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from app.ports import Generation, Prompt
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gateway import Fakes
from tests.fakes.reader import FakeReader
from tests.fakes.retriever import FakeRetriever

ERRORS = {
    "unavailable": UpstreamUnavailable,
    "timeout": UpstreamTimeout,
    "bad-reply": UpstreamBadReply,
    "error": UpstreamError,
}
# More than any question may take.
_MUCH_LATER_S = 3600.0


class Calls:
    """Every call in order; `fails` says by stage (probe, embed, search, read, or read5 alone) what goes wrong."""

    def __init__(self, fails: Mapping[str, str]) -> None:
        self.made: list[dict[str, Any]] = []
        self._fails = fails

    @contextmanager
    def note(self, name: str, **details: Any) -> Iterator[dict[str, Any]]:
        """Record a call, and whether it was cancelled."""
        call = {"call": name} | details
        self.made.append(call)
        try:
            yield call
        except (asyncio.CancelledError, GeneratorExit):
            call["cancelled"] = True
            raise

    async def fail(self, stage: str, part: str) -> None:
        """Do what the scenario says about this stage."""
        kind = self._kind(stage)
        if kind == "deadline":
            _let_time_pass()
            await asyncio.Event().wait()
        elif kind == "too-long":
            raise PromptTooLong("the question is too long")
        elif kind == "defect":
            raise RuntimeError("a secret of the inside")
        elif kind in ERRORS:
            raise ERRORS[kind](part, f"{part}: {kind}")

    def fails(self, stage: str, kind: str) -> bool:
        """Whether the scenario says this about a stage."""
        return self._kind(stage) == kind

    def _kind(self, stage: str) -> str | None:
        """`read` is every read from passages, `read5` only the one from five."""
        return self._fails.get(stage) or self._fails.get(stage.rstrip("0123456789"))


def recorded(calls: Calls) -> Fakes:
    """The three upstreams, which record their calls in one list."""
    return Fakes(_Reader(calls), _Embedder(calls), _Retriever(calls))


class _Reader(FakeReader):
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    async def generate(self, prompt: Prompt, *, max_tokens: int) -> Generation:
        with self._calls.note("reader.generate", **_asked(prompt, max_tokens)):
            await self._calls.fail(_stage(prompt), "reader")
            return await super().generate(prompt, max_tokens=max_tokens)

    async def stream(self, prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[str | Generation, None]:
        with self._calls.note("reader.stream", **_asked(prompt, max_tokens)):
            await self._calls.fail(_stage(prompt), "reader")
            async with aclosing(super().stream(prompt, max_tokens=max_tokens)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Generation):
                        break
                    yield piece
                    if self._calls.fails(_stage(prompt), "broken-off"):
                        raise UpstreamUnavailable("reader", "the reader breaks off")
                    if self._calls.fails(_stage(prompt), "ended"):
                        return
        # Outside: who closes the stream now has the whole answer.
        yield piece

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        with self._calls.note("reader.chat", body=dict(body)):
            await self._calls.fail("write", "reader")
            return await super().chat(body)

    async def chat_stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        with self._calls.note("reader.chat_stream", body=dict(body)):
            await self._calls.fail("write", "reader")
            async with aclosing(super().chat_stream(body)) as events:
                async for event in events:
                    yield event
                    if self._calls.fails("write", "broken-off"):
                        raise UpstreamUnavailable("reader", "the reader breaks off")


class _Embedder(FakeEmbedder):
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    async def embed_query(self, text: str) -> Sequence[float]:
        with self._calls.note("embedder.embed_query", text=text):
            await self._calls.fail("embed", "embedder")
            return await super().embed_query(text)


class _Retriever(FakeRetriever):
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    async def search(
        self, collection: str, vector: Sequence[float], *, limit: int, where: Filter | None = None
    ) -> list[Passage]:
        details: dict[str, Any] = {"collection": collection, "limit": limit, "where": dict(where) if where else None}
        with self._calls.note("vectors.search", **details):
            await self._calls.fail("search", "vectors")
            return await super().search(collection, vector, limit=limit, where=where)


def _stage(prompt: Prompt) -> str:
    return f"read{len(prompt.passages)}" if prompt.passages else "probe"


def _asked(prompt: Prompt, max_tokens: int) -> dict[str, Any]:
    return {
        "question": prompt.question,
        "passages": [passage.id for passage in prompt.passages],
        "max_tokens": max_tokens,
    }


def _let_time_pass() -> None:
    """Put the event loop's clock forward, so that no scenario has to wait for a deadline or race against one."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + _MUCH_LATER_S  # type: ignore[method-assign]
