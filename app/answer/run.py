"""The upstream calls of one question: each timed, traced, and bounded by the time that the question has left."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from app.answer.writing import write_chat, write_full
from app.core.available import Answer, Available, Passage, Usage
from app.core.ladder import Reply
from app.core.question import Question, Writing
from app.core.record import Timings
from app.core.signals import extract
from app.errors import DeadlinePassed, NoPassages, UpstreamBadReply, UpstreamError
from app.ports import SILENT, Clock, Embedder, Generation, Listener, Prompt, Reader, Retriever, Stages

T = TypeVar("T")
# The upstream that each stage calls.
_UPSTREAMS = {"probe": "reader", "embed": "embedder", "search": "vectors", "read": "reader", "write": "reader"}


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
        rewriting, rewritten = question.standalone, ("rewritten", "failed")
        self._spent_ms: dict[str, float] = {}
        if rewriting is not None and rewriting.how in rewritten:
            self._spent_ms["rewrite"] = rewriting.ms
        before_s = question.waited_s + (rewriting.ms / 1000.0 if rewriting is not None else 0.0)
        self._started = upstreams.clock() - before_s
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
            try:
                embedding = self._upstreams.embedder.embed_query(self._question.text)
                self._vector = await self._timed("embed", embedding)
            except UpstreamError as error:
                self._vector = error
        if isinstance(self._vector, UpstreamError):
            raise self._vector
        return self._vector

    async def read(self, k: int, available: Available, *, live: bool) -> Answer:
        """Answer from the k best passages. `live`: pass on every piece as it arrives."""
        passages = (available.passages or ())[:k]
        if k > 0 and (self._question.writing is None or self._question.writing.kind == "full"):
            self._listener.found(passages)
        prompt = Prompt(self._question.text, passages)
        # What is written later is streamed instead.
        live = live and self._listener is not SILENT and self._question.writing is None
        generating = self._stream(prompt) if live else self._generate(prompt)
        generation = await self._timed("read" if k > 0 else "probe", generating)
        return Answer(
            k,
            generation.text,
            extract(generation.tokens),
            Usage(generation.prompt_tokens, generation.completion_tokens),
            passages_read=generation.passages_read,
            truncated=generation.truncated,
            read_chars=generation.read_chars,
        )

    async def write(self, writing: Writing, available: Available, reply: Reply) -> Reply:
        """Write the text with the chosen passages; what was streamed of it is never taken back."""
        if reply.withheld:
            return reply
        reader = self._upstreams.reader
        if writing.kind == "chat":
            return await self._timed("write", write_chat(writing, available, reply, reader, self._listener))
        try:
            written = await self._timed("write", write_full(writing, available, reply, reader, self._show))
        except UpstreamError:
            if self.streamed:
                raise
            written = reply
        if written.written is None and reply.text is not None:
            self._show(reply.text)
        return written

    def _show(self, text: str) -> None:
        # Nobody sees what a silent listener gets, so another answer can still be given.
        self.streamed = self._listener is not SILENT
        self._listener.token(text)

    def _generate(self, prompt: Prompt) -> Coroutine[Any, Any, Generation]:
        return self._upstreams.reader.generate(prompt, max_tokens=self._question.max_tokens)

    async def _stream(self, prompt: Prompt) -> Generation:
        async with aclosing(self._upstreams.reader.stream(prompt, max_tokens=self._question.max_tokens)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Generation):
                    return piece
                self._show(piece)
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
