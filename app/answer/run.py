"""The upstream calls of one question: each timed, traced, and bounded by the time that the question has left."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from app.core.available import Answer, Available, Passage, Usage
from app.core.prompts import search_query
from app.core.question import Question
from app.core.record import Timings
from app.core.signals import extract
from app.errors import DeadlinePassed, NoPassages, UpstreamBadReply, UpstreamError
from app.ports import SILENT, Clock, Embedder, Generation, Listener, Prompt, Reader, Retriever, Stages

T = TypeVar("T")
# The upstream that each stage calls.
_UPSTREAMS = {"probe": "reader", "embed": "embedder", "search": "vectors", "read": "reader"}


@dataclass(frozen=True, slots=True)
class Upstreams:
    """The upstreams that questions are answered with."""

    reader: Reader
    embedder: Embedder
    retriever: Retriever
    stages: Stages = nullcontext
    clock: Clock = time.perf_counter


class Run:
    """Embeds, searches and reads for one question."""

    def __init__(self, question: Question, upstreams: Upstreams, listener: Listener) -> None:
        self._question = question
        self._upstreams = upstreams
        self._listener = listener
        self._started = upstreams.clock() - question.waited_s
        self._spent_ms: dict[str, float] = {}
        # The last call that failed; raised again if no time is left for the next call.
        self._failed: UpstreamError | None = None
        self._vector: Sequence[float] | UpstreamError | None = None
        self.searches = 0
        # Whether the listener has received a piece of the answer. It is never taken back.
        self.streamed = False

    @property
    def timings(self) -> Timings:
        """The time taken so far, including the wait for a permit, and the time of each stage."""
        total = (self._upstreams.clock() - self._started) * 1000.0
        return Timings(total=total, waited=self._question.waited_s * 1000.0, **self._spent_ms)

    async def embed(self) -> Sequence[float] | None:
        """The question's vector, for the scope test; None if the embedder fails: then nothing is certified."""
        try:
            return await self._embedded()
        except UpstreamError:
            return None

    async def search(self, limit: int) -> Sequence[Passage]:
        """The nearest passages, best first; NoPassages if there are none."""
        question, vector = self._question, await self._embedded()
        self.searches += 1
        searching = self._upstreams.retriever.search(question.collection, vector, limit=limit, where=question.where)
        passages = await self._timed("search", searching)
        if not passages:
            raise NoPassages("no passage was found, and this question must be answered from passages")
        return passages

    async def _embedded(self) -> Sequence[float]:
        """The question's vector, computed once; a search does not wait again for an embedder that failed."""
        if self._vector is None:
            said = [turn.text for turn in self._question.earlier if turn.role == "user"]
            query = search_query(self._question.text, said)
            try:
                self._vector = await self._timed("embed", self._upstreams.embedder.embed_query(query))
            except UpstreamError as error:
                self._vector = error
        if isinstance(self._vector, UpstreamError):
            raise self._vector
        return self._vector

    async def read(self, k: int, available: Available, *, live: bool) -> Answer:
        """Answer from the k best passages. `live`: pass on every piece as it arrives."""
        passages = (available.passages or ())[:k]
        if k > 0:
            self._listener.found(passages)
        prompt = Prompt(self._question.text, passages, self._question.earlier)
        generating = self._stream(prompt) if live and self._listener is not SILENT else self._generate(prompt)
        generation = await self._timed("read" if k > 0 else "probe", generating)
        return Answer(
            k,
            generation.text,
            extract(generation.tokens),
            Usage(generation.prompt_tokens, generation.completion_tokens),
            passages_read=generation.passages_read,
            truncated=generation.truncated,
        )

    def _generate(self, prompt: Prompt) -> Coroutine[Any, Any, Generation]:
        return self._upstreams.reader.generate(prompt, max_tokens=self._question.max_tokens)

    async def _stream(self, prompt: Prompt) -> Generation:
        async with aclosing(self._upstreams.reader.stream(prompt, max_tokens=self._question.max_tokens)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Generation):
                    return piece
                if piece.text:
                    self.streamed = True
                    self._listener.token(piece.text)
        raise UpstreamBadReply("reader", "the stream ended before the answer was complete")

    async def _timed(self, stage: str, work: Coroutine[Any, Any, T]) -> T:
        """Run one stage within the time that the question has left, and record how long it took."""
        upstream, deadline = _UPSTREAMS[stage], self._question.deadline
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            work.close()
            raise self._failed or DeadlinePassed(upstream, f"no time was left to call the {upstream}")
        began = self._upstreams.clock()
        try:
            with self._upstreams.stages(stage):
                return await self._in_time(upstream, work)
        except UpstreamError as error:
            self._failed = error
            raise
        finally:
            # The ladder may read more than once.
            self._spent_ms[stage] = self._spent_ms.get(stage, 0.0) + (self._upstreams.clock() - began) * 1000.0

    async def _in_time(self, upstream: str, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout_at(self._question.deadline) as bound:
                return await work
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise DeadlinePassed(
                upstream, f"the call to the {upstream} did not finish in the time for this question"
            ) from error
