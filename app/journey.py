"""One question under way: what it has come to so far, and its stages, each timed and bounded by the time it has left.

    serial    probe ──► embed ──► search ──► read
    overlap   probe ────────────────┐
              embed ──► search ─────┴──► read
    race      probe ────────────────────────────┐
              embed ──► search ──► read ────────┴──► the one that was decided for; the other is cancelled

What runs beside the probe is begun before anybody knows whether it will be wanted. It never decides anything, and where
it fails it is done again in its turn, if it is wanted at all.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from app.decision.forecast import Schedule
from app.decision.policy import Decision, Gate, may_withhold
from app.decision.record import Timings, Usage
from app.decision.signals import TokenLogprobs, extract
from app.errors import DeadlinePassed, PromptTooLong, UpstreamBadReply, UpstreamError, UpstreamUnavailable
from app.ports import (
    Clock,
    Embedder,
    Generation,
    Listener,
    Passage,
    Prompt,
    Reader,
    Retriever,
    Stages,
    Token,
)
from app.prompts import search_query
from app.question import Question

T = TypeVar("T")
# Which part each stage waits for.
_UPSTREAMS = {"probe": "reader", "embed": "embedder", "search": "vectors", "read": "reader"}


@dataclass(frozen=True, slots=True)
class Means:
    """What questions are answered with."""

    reader: Reader
    embedder: Embedder
    retriever: Retriever
    stages: Stages = nullcontext
    clock: Clock = time.perf_counter


@dataclass(slots=True)
class _Race:
    """A read that began before anybody knew whether it is wanted; nothing of it is heard until then."""

    k: int
    reading: "asyncio.Task[Generation]"
    spent_ms: dict[str, float] = field(default_factory=dict)
    unheard: list[str] = field(default_factory=list)
    hear: Callable[[str], None] | None = None
    # As far as the server has told; None until it was asked.
    usage: Usage | None = None
    wanted: bool = False
    given_up: bool = False

    def heed(self, piece: Token) -> None:
        """Count a piece, and keep it until somebody may hear it."""
        assert self.usage is not None
        read = self.usage.completion_tokens + len(piece.logprobs)
        self.usage = Usage(piece.prompt_tokens or self.usage.prompt_tokens, read)
        if self.hear is None:
            self.unheard.append(piece.text)
        else:
            self.hear(piece.text)

    @property
    def failed(self) -> bool:
        """Whether it has ended without an answer."""
        return self.reading.done() and (self.reading.cancelled() or self.reading.exception() is not None)


class Journey:
    """What has happened to one question so far, and how to go on with it."""

    def __init__(self, question: Question, gate: Gate, means: Means, listener: Listener | None = None) -> None:
        self.question = question
        self.gate = gate
        self.listener = listener
        self._means = means
        self._started = means.clock() - question.waited_s
        self.spent_ms: dict[str, float] = {}
        self.schedule = Schedule.SERIAL
        self.probe: Generation | None = None
        self.probe_usage: Usage | None = None
        self.signals: dict[str, float] = {}
        self.passages: Sequence[Passage] = ()
        self.reading: Generation | None = None
        self.read_usage: Usage | None = None
        self.read_signals: dict[str, float] = {}
        # Whether the listener has heard the answer as it came.
        self.heard = False
        self.searches = 0
        # How many passages all searches together asked for.
        self.fetched = 0
        self.reads = 0
        self.failure: UpstreamError | None = None
        # What was under way when the time was up.
        self._late: DeadlinePassed | None = None
        self._vector: Sequence[float] | None = None
        self._fetching: tuple[int, asyncio.Task[Sequence[Passage]]] | None = None
        self._race: _Race | None = None

    @property
    def timings(self) -> Timings:
        """How long it has taken so far, the time in line included, and each stage of it."""
        total = (self._means.clock() - self._started) * 1000.0
        return Timings(total=total, waited=self.question.waited_s * 1000.0, **self.spent_ms)

    @property
    def wasted(self) -> Usage | None:
        """Tokens of a read that was begun and not wanted, as far as the server told; None where there was none."""
        return None if self._race is None or self._race.wanted else self._race.usage

    def begin(self, schedule: Schedule, most: int) -> None:
        """Begin what overlap or race runs beside the probe, with as many passages as the question can lead to."""
        self.schedule = schedule
        fetching = asyncio.create_task(self._fetch(most), name="fetch ahead")
        self._fetching = (most, fetching)
        if schedule is Schedule.RACE:
            self._race = _Race(most, asyncio.create_task(self._read_ahead(fetching), name="read ahead"))

    def end(self) -> None:
        """Cancel what is still under way and nobody wants; not waited for, as it has nothing left to say."""
        if self._fetching is not None:
            _drop(self._fetching[1])
        if self._race is not None:
            _drop(self._race.reading)

    async def ask(self) -> None:
        """Probe: have the question answered closed-book."""
        self._probed(await self._timed("probe", self._means.reader.generate(self._prompt(), max_tokens=self._most)))

    async def ask_watched(
        self, lengths: Sequence[int], judge: Callable[[int, Mapping[str, float]], Decision | None]
    ) -> Decision | None:
        """Probe, and give the probe up as soon as its first tokens decide the question; None where they never do."""
        return await self._timed("probe", self._watched(lengths, judge))

    async def embed(self) -> Sequence[float]:
        """The question as a vector; asked for once."""
        if self._vector is None:
            earlier = self.question.earlier
            query = search_query(self.question.text, [turn.text for turn in earlier if turn.role == "user"])
            self._vector = await self._timed("embed", self._means.embedder.embed_query(query))
        return self._vector

    async def retrieve(self, k: int) -> None:
        """Have the k best passages at hand."""
        if self._fetching is not None and self._fetching[0] >= k:
            self.passages = (await self._fetching[1])[:k]
        else:
            self.passages = await self._fetch(k)

    async def read(self, k: int) -> Generation:
        """Have the question answered from the passages at hand."""
        if self.listener is not None:
            self.listener.found(self.passages)
        aloud = self.listener is not None and not may_withhold(self.question.ask, self.gate, k)
        reading = await self._read_before(k, aloud=aloud)
        if reading is None:
            prompt = self._prompt(self.passages)
            work = (
                self._streamed(prompt, lambda piece: self._hear(piece.text))
                if aloud
                else self._means.reader.generate(prompt, max_tokens=self._most)
            )
            reading = await self._timed("read", work)
        self.reading = reading
        self.reads += 1
        self.read_usage = (self.read_usage or Usage()) + Usage(reading.prompt_tokens, reading.completion_tokens)
        self.read_signals = extract(reading.tokens)
        return reading

    @property
    def _most(self) -> int:
        return self.question.max_tokens

    def _prompt(self, passages: Iterable[Passage] = ()) -> Prompt:
        return Prompt(self.question.text, tuple(passages), self.question.earlier)

    def _probed(self, probe: Generation) -> None:
        self.probe = probe
        # One that was cut short may have gone before.
        self.probe_usage = (self.probe_usage or Usage()) + Usage(probe.prompt_tokens, probe.completion_tokens)
        self.signals = extract(probe.tokens)

    async def _watched(
        self, lengths: Sequence[int], judge: Callable[[int, Mapping[str, float]], Decision | None]
    ) -> Decision | None:
        tokens: list[TokenLogprobs] = []
        left = list(lengths)
        async with aclosing(self._means.reader.stream(self._prompt(), max_tokens=self._most)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Generation):
                    self._probed(piece)
                    return None
                # Text in this piece shows that the answer goes on behind all that came before it.
                while left and len(tokens) >= left[0] and piece.text.strip():
                    signals = extract(tokens[: left[0]])
                    decision = judge(left.pop(0), signals)
                    if decision is not None:
                        # Not kept as the probe's signals: those are of whole answers, for all who learn from them.
                        self.probe_usage = Usage(piece.prompt_tokens, len(tokens) + len(piece.logprobs))
                        return decision
                tokens += piece.logprobs
        raise _broken_off()

    async def _fetch(self, k: int) -> Sequence[Passage]:
        vector = await self.embed()
        self.searches += 1
        self.fetched += k
        question = self.question
        searching = self._means.retriever.search(question.collection, vector, limit=k, where=question.where)
        return await self._timed("search", searching)

    async def _read_ahead(self, fetching: "asyncio.Task[Sequence[Passage]]") -> Generation:
        passages = await asyncio.shield(fetching)
        race = self._race
        assert race is not None
        if not passages:
            raise asyncio.CancelledError  # there is nothing to read, and whoever wants to will find that out
        race.usage = Usage()
        reading = await self._timed("read", self._streamed(self._prompt(passages), race.heed), race.spent_ms)
        race.usage = Usage(reading.prompt_tokens, reading.completion_tokens)
        return reading

    async def _read_before(self, k: int, *, aloud: bool) -> Generation | None:
        """What was read ahead, if it is what is wanted now; None where there is no such thing."""
        race = self._race
        if race is None or race.wanted or race.given_up or race.failed:
            return None
        if race.k != k:
            # Five passages that were read to the end may still be wanted if one does not convince.
            race.given_up = _drop(race.reading)
            return None
        race.wanted = True
        if aloud:
            self._hear("".join(race.unheard))
            race.hear = self._hear
        try:
            reading = await race.reading
        except (UpstreamUnavailable, UpstreamBadReply, PromptTooLong):
            if self.heard:
                raise
            # Begun earlier than it had to be, and in another way: the question is owed a read of its own.
            race.wanted = False
            return None
        self._took("read", race.spent_ms["read"], self.spent_ms)
        return reading

    async def _streamed(self, prompt: Prompt, heed: Callable[[Token], None]) -> Generation:
        """Read, and hand on every piece as it comes; giving the answer up stops it upstream."""
        async with aclosing(self._means.reader.stream(prompt, max_tokens=self._most)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Generation):
                    return piece
                heed(piece)
        raise _broken_off()

    def _hear(self, text: str) -> None:
        if text:
            assert self.listener is not None
            self.heard = True
            self.listener.token(text)

    async def _timed(self, stage: str, work: Coroutine[Any, Any, T], spent_ms: dict[str, float] | None = None) -> T:
        """Do the work of a stage within the time that the question has left, and note how long it took."""
        upstream, deadline = _UPSTREAMS[stage], self.question.deadline
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            work.close()
            # Whoever used the time up is to blame, not the part that was never asked.
            raise self._late or self.failure or DeadlinePassed(upstream, f"no time was left to ask the {upstream}")
        began = self._means.clock()
        try:
            with self._means.stages(stage):
                try:
                    async with asyncio.timeout_at(deadline) as bound:
                        return await work
                except TimeoutError as error:
                    if not bound.expired():
                        raise
                    self._late = DeadlinePassed(
                        upstream, f"the {upstream} was still at work when the time for this question was up"
                    )
                    raise self._late from error
        finally:
            took = (self._means.clock() - began) * 1000.0
            self._took(stage, took, self.spent_ms if spent_ms is None else spent_ms)

    @staticmethod
    def _took(stage: str, ms: float, spent_ms: dict[str, float]) -> None:
        """Add up what a stage took that may run twice."""
        spent_ms[stage] = spent_ms.get(stage, 0.0) + ms


def _drop(ahead: "asyncio.Task[Any]") -> bool:
    """Cancel what is not wanted, and say if it was still under way; if it has failed meanwhile, nobody minds."""
    ahead.add_done_callback(_forget)
    return ahead.cancel()


def _forget(ahead: "asyncio.Task[Any]") -> None:
    if not ahead.cancelled():
        ahead.exception()


def _broken_off() -> UpstreamBadReply:
    return UpstreamBadReply("reader", "the stream ended before the answer did")
