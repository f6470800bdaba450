"""The time of a question bounds every stage; a stage that is too slow is handled like one that failed."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from app.core.available import Passage
from app.core.policy import AskOptions, Reason
from app.core.question import Question
from app.core.record import DecisionRecord
from app.errors import UpstreamTimeout
from app.ports import SILENT, Generation, Prompt

from .test_answer import ASKED, CONFIDENT, UNCERTAIN, World, a_world

HOUR_S = 3600.0


class Lapse:
    """Moves the event loop's clock forward."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ahead_s = 0.0
        self._loop = loop
        real = loop.time
        loop.time = lambda: real() + self._ahead_s  # type: ignore[method-assign]

    def within(self, seconds: float = HOUR_S) -> float:
        """A deadline: so far from now."""
        return self._loop.time() + seconds

    def pass_by(self, seconds: float) -> None:
        self._ahead_s += seconds

    async def outlast(self, *_: object, **__: object) -> Any:
        """Take longer than any question may, without end."""
        self.pass_by(2 * HOUR_S)
        await asyncio.Event().wait()


@pytest.fixture
async def lapse() -> Lapse:
    return Lapse(asyncio.get_running_loop())


async def ask(world: World, deadline: float | None, listener: Any = SILENT, **chosen: Any) -> DecisionRecord:
    return await world.answerer().answer(
        Question("id", ASKED, "demo", 24, AskOptions(**chosen), deadline=deadline), listener
    )


@pytest.mark.parametrize(
    ("part", "method", "upstream"), [("embedder", "embed_query", "embedder"), ("retriever", "search", "vectors")]
)
async def test_retrieval_that_outlasts_it_is_a_retrieval_that_failed(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch, part: str, method: str, upstream: str
) -> None:
    """The closed-book answer is given if allowed, and the record names the slow upstream."""
    world = await a_world(UNCERTAIN)
    monkeypatch.setattr(getattr(world, part), method, lapse.outlast)
    record = await ask(world, lapse.within())
    assert (record.action, record.reply.k, record.reply.reason) == ("k0", 0, Reason.RETRIEVAL_FAILED)
    assert record.reply.text == "Paris"
    assert record.failure == (upstream, "deadline")
    assert not record.reply.certified


class Heard:
    """A listener that stores what it receives."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def step(self, step: object, evidence: object) -> None:
        pass

    def found(self, passages: Sequence[Passage]) -> None:
        pass

    def token(self, text: str) -> None:
        self.tokens.append(text)


async def test_a_stream_that_outlasts_it_is_closed(lapse: Lapse, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was streamed stays; the error names the reader, and the upstream stream is closed."""
    world = await a_world(UNCERTAIN)
    closed = asyncio.Event()

    async def stream(prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[str | Generation, None]:
        try:
            yield "Fran"
            await lapse.outlast()
        finally:
            closed.set()

    monkeypatch.setattr(world.reader, "stream", stream)
    heard = Heard()
    with pytest.raises(UpstreamTimeout):
        await ask(world, lapse.within(), heard, abstain=False)
    assert heard.tokens == ["Fran"]
    assert closed.is_set()


async def test_a_stage_for_which_no_time_is_left_is_not_begun(lapse: Lapse) -> None:
    """Not even the first."""
    world = await a_world(CONFIDENT)
    with pytest.raises(UpstreamTimeout):
        await ask(world, lapse.within(-1.0))
    assert world.reader.calls == 0


async def test_a_timeout_that_is_not_the_questions_is_not_taken_for_it(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in our own code is not a timeout."""
    world = await a_world(UNCERTAIN)

    async def defect(*_: object, **__: object) -> Generation:
        raise TimeoutError

    monkeypatch.setattr(world.reader, "generate", defect)
    with pytest.raises(TimeoutError):
        await ask(world, lapse.within())


async def test_the_wait_in_line_is_part_of_the_time_it_took() -> None:
    """A receipt shows everything that the caller waited for."""
    world = await a_world(CONFIDENT)
    question = Question("id", ASKED, "demo", 24, waited_s=0.25)
    timings = (await world.answerer().answer(question)).timings
    assert (timings.probe, timings.total) == (pytest.approx(100), pytest.approx(350))


@pytest.mark.parametrize("pieces", [[], ["Fran"], ["Fran", "ville"]])
async def test_what_was_heard_of_a_stream_is_never_taken_back(
    monkeypatch: pytest.MonkeyPatch, pieces: list[str]
) -> None:
    """A stream that breaks before its first token falls back to the probe's answer; later it ends with the error."""
    world = await a_world(UNCERTAIN)

    async def stream(prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[str | Generation, None]:
        for piece in pieces:
            yield piece
        raise UpstreamTimeout("reader", "slow")

    monkeypatch.setattr(world.reader, "stream", stream)
    heard = Heard()
    if pieces:
        with pytest.raises(UpstreamTimeout):
            await ask(world, None, heard, abstain=False)
        assert heard.tokens == pieces
    else:
        record = await ask(world, None, heard, abstain=False)
        assert record.reply.reason is Reason.DEGRADED
        assert heard.tokens == ["Paris"]
