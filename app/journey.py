"""One question under way: what it has come to so far, and its stages, each timed and bounded by the time it has left.

probe ──► embed ──► search ──► read
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from app.decision.passage import Passage
from app.decision.policy import Gate, may_withhold
from app.decision.record import Timings, Usage
from app.decision.signals import extract
from app.errors import DeadlinePassed, UpstreamBadReply, UpstreamError
from app.ports import Clock, Embedder, Generation, Listener, Prompt, Reader, Retriever, Stages
from app.prompts import search_query
from app.question import Question

T = TypeVar("T")
# Which part each stage waits for.
_UPSTREAMS = {"probe": "reader", "embed": "embedder", "search": "vectors", "read": "reader"}


@dataclass(frozen=True, slots=True)
class Upstreams:
    """The parts that answer questions, and what watches and times them."""

    reader: Reader
    embedder: Embedder
    retriever: Retriever
    stages: Stages = nullcontext
    clock: Clock = time.perf_counter


class Journey:
    """What has happened to one question so far, and how to go on with it."""

    def __init__(self, question: Question, gate: Gate, upstreams: Upstreams, listener: Listener | None = None) -> None:
        self.question = question
        self.gate = gate
        self.listener = listener
        self._upstreams = upstreams
        self._started = upstreams.clock() - question.waited_s
        self._spent_ms: dict[str, float] = {}
        self.probe: Generation | None = None
        self.signals: dict[str, float] = {}
        self.passages: Sequence[Passage] = ()
        self.reading: Generation | None = None
        self.read_signals: dict[str, float] = {}
        # Whether the listener has heard the answer as it came.
        self.heard = False
        self.searches = 0
        self.failure: UpstreamError | None = None

    @property
    def timings(self) -> Timings:
        """How long it has taken so far, the time in line included, and each stage of it."""
        total = (self._upstreams.clock() - self._started) * 1000.0
        return Timings(total=total, waited=self.question.waited_s * 1000.0, **self._spent_ms)

    async def ask(self) -> None:
        """Probe: have the question answered closed-book."""
        self.probe = await self._timed("probe", self._generate(self._prompt()))
        self.signals = extract(self.probe.tokens)

    async def retrieve(self, k: int) -> None:
        """Have the k best passages at hand."""
        question = self.question
        query = search_query(question.text, [turn.text for turn in question.earlier if turn.role == "user"])
        vector = await self._timed("embed", self._upstreams.embedder.embed_query(query))
        self.searches += 1
        searching = self._upstreams.retriever.search(question.collection, vector, limit=k, where=question.where)
        self.passages = await self._timed("search", searching)

    async def read(self, k: int) -> Generation:
        """Have the question answered from the passages at hand."""
        prompt, work = self._prompt(self.passages), self._generate
        if self.listener is not None:
            self.listener.found(self.passages)
            if not may_withhold(self.question.ask, self.gate, k):
                work = self._stream
        self.reading = await self._timed("read", work(prompt))
        self.read_signals = extract(self.reading.tokens)
        return self.reading

    def _prompt(self, passages: Iterable[Passage] = ()) -> Prompt:
        return Prompt(self.question.text, tuple(passages), self.question.earlier)

    async def _generate(self, prompt: Prompt) -> Generation:
        return await self._upstreams.reader.generate(prompt, max_tokens=self.question.max_tokens)

    async def _stream(self, prompt: Prompt) -> Generation:
        """Read, and hand on every piece as it comes; cancelling it stops it upstream."""
        async with aclosing(self._upstreams.reader.stream(prompt, max_tokens=self.question.max_tokens)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Generation):
                    return piece
                self._hear(piece.text)
        raise UpstreamBadReply("reader", "the stream ended before the answer did")

    def _hear(self, text: str) -> None:
        if text:
            assert self.listener is not None
            self.heard = True
            self.listener.token(text)

    async def _timed(self, stage: str, work: Coroutine[Any, Any, T]) -> T:
        """Do the work of a stage within the time that the question has left, and note how long it took."""
        upstream, deadline = _UPSTREAMS[stage], self.question.deadline
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            work.close()
            # Whoever used the time up is to blame, not the part that was never asked.
            raise self.failure or DeadlinePassed(upstream, f"no time was left to ask the {upstream}")
        began = self._upstreams.clock()
        try:
            with self._upstreams.stages(stage):
                try:
                    async with asyncio.timeout_at(deadline) as bound:
                        return await work
                except TimeoutError as error:
                    if not bound.expired():
                        raise
                    raise DeadlinePassed(
                        upstream, f"the {upstream} was still at work when the time for this question was up"
                    ) from error
        finally:
            self._spent_ms[stage] = (self._upstreams.clock() - began) * 1000.0


def usage_of(generation: Generation | None) -> Usage | None:
    """The tokens of a generation; None where there was none."""
    return Usage(generation.prompt_tokens, generation.completion_tokens) if generation is not None else None
