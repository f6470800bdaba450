"""A question's time: every stage is bounded by it, and what it falls back to is what a failed stage falls back to."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from app.decision.passage import Passage
from app.decision.policy import Action, Ask, Policy, Reason, Retrieval
from app.decision.record import DecisionRecord
from app.errors import UpstreamTimeout, UpstreamUnavailable
from app.ports import Generation, Prompt, Token
from app.question import Question

from .test_answer import ASKED, CONFIDENT, HOPELESS, UNCERTAIN, World, a_world

HOUR_S = 3600.0


class Lapse:
    """Lets the event loop believe that time has passed."""

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
        """Take longer than any question has, and never end by itself."""
        self.pass_by(2 * HOUR_S)
        await asyncio.Event().wait()


@pytest.fixture
async def lapse() -> Lapse:
    return Lapse(asyncio.get_running_loop())


async def ask(world: World, deadline: float | None, listener: Any = None, **chosen: Any) -> DecisionRecord:
    return await world.answerer().answer(Question(ASKED, "demo", 24, Ask(**chosen), deadline=deadline), listener)


@pytest.mark.parametrize(
    ("part", "method", "upstream"), [("embedder", "embed_query", "embedder"), ("retriever", "search", "vectors")]
)
async def test_retrieval_that_outlasts_it_is_a_retrieval_that_failed(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch, part: str, method: str, upstream: str
) -> None:
    """The closed-book answer stands if it may, and the record names the part that was too slow."""
    world = await a_world(UNCERTAIN)
    monkeypatch.setattr(getattr(world, part), method, lapse.outlast)
    record = await ask(world, lapse.within())
    assert (record.action, record.k, record.reason) == (Action.K0, 0, Reason.RETRIEVAL_FAILED)
    assert record.answer == "Paris"
    assert record.failure == (upstream, "deadline")
    assert not record.certified


async def test_an_unsure_answer_is_withheld_then(lapse: Lapse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of a failed search hold: below the threshold nothing is made up."""
    world = await a_world(HOPELESS)
    monkeypatch.setattr(world.retriever, "search", lapse.outlast)
    record = await ask(world, lapse.within())
    assert (record.action, record.reason, record.answer) == (Action.ABSTAIN, Reason.RETRIEVAL_FAILED, None)


async def test_where_evidence_is_required_the_slow_part_is_named(lapse: Lapse, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to fall back to."""
    world = await a_world(UNCERTAIN)
    monkeypatch.setattr(world.retriever, "search", lapse.outlast)
    with pytest.raises(UpstreamTimeout) as caught:
        await ask(world, lapse.within(), retrieval=Retrieval.REQUIRED)
    assert caught.value.upstream == "vectors"


@pytest.mark.parametrize("k", [0, 5], ids=["probe", "read"])
async def test_a_reader_that_outlasts_it(lapse: Lapse, k: int) -> None:
    """The generation is given up, the error names the reader, and nothing is recorded."""
    world = await a_world(UNCERTAIN)

    def slow(prompt: Prompt) -> None:
        if len(prompt.passages) == k:
            world.reader.hang = True
            lapse.pass_by(2 * HOUR_S)

    world.reader.before = slow
    with pytest.raises(UpstreamTimeout) as caught:
        await ask(world, lapse.within())
    assert caught.value.upstream == "reader"
    assert world.reader.cancelled == 1
    assert world.notebook.records == []


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def decided(self, decision: object) -> None:
        pass

    def found(self, passages: Sequence[Passage]) -> None:
        pass

    def token(self, text: str) -> None:
        self.tokens.append(text)


async def test_a_stream_that_outlasts_it_is_closed(lapse: Lapse, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was heard was heard; then the reader is named, and the stream upstream is closed."""
    world = await a_world(UNCERTAIN)
    closed = asyncio.Event()

    async def stream(prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[Token | Generation, None]:
        try:
            yield Token("Fran", ())
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


async def test_whoever_used_the_time_up_is_named(lapse: Lapse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search without a probe before it leaves no time for a closed-book answer: that is not the reader's failure."""
    world = await a_world(UNCERTAIN)
    monkeypatch.setattr(world.retriever, "search", lapse.outlast)
    with pytest.raises(UpstreamTimeout) as caught:
        await ask(world, lapse.within(), policy=Policy.ALWAYS)
    assert caught.value.upstream == "vectors"
    assert world.reader.calls == 0


@pytest.mark.parametrize("deadline", [None, HOUR_S])
async def test_a_part_with_a_limit_of_its_own(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch, deadline: float | None
) -> None:
    """Its own error is told as it is, whether or not the question has a deadline."""
    world = await a_world(UNCERTAIN)
    error = UpstreamUnavailable("reader", "gone")
    world.reader.fail_with = error
    with pytest.raises(UpstreamUnavailable):
        await ask(world, None if deadline is None else lapse.within(deadline))


async def test_a_timeout_that_is_not_the_questions_is_not_taken_for_it(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect stays a defect."""
    world = await a_world(UNCERTAIN)

    async def defect(*_: object, **__: object) -> Generation:
        raise TimeoutError

    monkeypatch.setattr(world.reader, "generate", defect)
    with pytest.raises(TimeoutError):
        await ask(world, lapse.within())


async def test_the_wait_in_line_is_part_of_the_time_it_took() -> None:
    """A receipt hides nothing of what its asker waited for."""
    world = await a_world(CONFIDENT)
    question = Question(ASKED, "demo", 24, waited_s=0.25)
    timings = (await world.answerer().answer(question)).timings
    assert (timings.probe, timings.total) == (pytest.approx(100), pytest.approx(350))
