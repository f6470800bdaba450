"""What can go wrong beside the probe: it costs no answer that one step at a time would have given."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from app.decision.forecast import Schedule
from app.decision.policy import Action, Ask, Gate, Policy, Reason, Retrieval
from app.decision.record import Usage
from app.errors import PromptTooLong, UpstreamTimeout, UpstreamUnavailable
from app.ports import Generation, Prompt, Token
from app.question import Question
from tests.fakes.artifacts import a_fit, an_abstention, an_artifact
from tests.fakes.reader import surely

from .test_schedules import ASKED, BORDERLINE, CONFIDENT, LONG, UNCERTAIN, Heard, World, ahead, early

DOWN = UpstreamUnavailable("reader", "down for a moment")


class BreakingOff(World):
    """A world whose streams with passages end in an error, as soon as so many pieces have come."""

    def __init__(self, error: Exception, after: int, gate: Gate | None = None, *, held: bool = False) -> None:
        super().__init__(Schedule.RACE, gate)
        stream = self.reader.stream
        self.go_on = asyncio.Event()
        if not held:
            self.go_on.set()

        async def breaking(prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[Token | Generation, None]:
            told = 0
            async for piece in stream(prompt, max_tokens=max_tokens):
                if prompt.passages and told == after:
                    await self.go_on.wait()
                    raise error
                told += 1
                yield piece

        self.reader.stream = breaking  # type: ignore[method-assign]


@pytest.mark.parametrize("error", [DOWN, PromptTooLong("shorten it")])
@pytest.mark.parametrize("held", [False, True])
async def test_a_raced_read_that_fails_unheard_is_done_again(error: Exception, held: bool) -> None:
    """Before the decision or after it: whoever wants the passages read has them read, one step at a time."""
    world = await BreakingOff(error, 1, held=held).filled(UNCERTAIN)
    world.reader.held[0] = asyncio.Event()
    heard = Heard()
    answering = asyncio.create_task(world.answer(heard))
    await world.reader.begun[5].wait()
    world.reader.held[0].set()
    for _ in range(20):
        await asyncio.sleep(0)
    world.go_on.set()
    record = await answering
    assert (record.action, record.answer, record.failure) == (Action.K5, "Franville it is", None)
    # What came of the first attempt was for nothing.
    assert record.wasted_usage is not None
    assert record.wasted_usage.completion_tokens == 1
    assert [len(prompt.passages) for prompt in world.reader.prompts] == [5, 0, 5]
    assert heard.said == ["k5", "5 passages", "Franville it is"]


async def test_a_raced_read_that_fails_in_mid_sentence_is_an_error() -> None:
    """Nothing that was said is taken back, so nothing else can be said instead."""
    world = await BreakingOff(DOWN, 2, held=True).filled(UNCERTAIN)
    world.reader.held[0] = asyncio.Event()
    heard = Heard()
    answering = asyncio.create_task(world.answer(heard, abstain=False))
    await world.reader.begun[5].wait()
    for _ in range(20):
        await asyncio.sleep(0)
    world.reader.held[0].set()
    for _ in range(20):
        await asyncio.sleep(0)
    world.go_on.set()
    with pytest.raises(UpstreamUnavailable):
        await answering
    assert heard.said == ["k5", "5 passages", "Franville it"]


async def test_a_raced_read_that_took_too_long_is_not_done_again() -> None:
    """A reader that is too slow is not asked for the same once more."""
    world = await BreakingOff(UpstreamTimeout("reader", "too slow"), 0, held=True).filled(UNCERTAIN)
    answering = asyncio.create_task(world.answer())
    await world.reader.begun[5].wait()
    for _ in range(20):
        await asyncio.sleep(0)
    world.go_on.set()
    with pytest.raises(UpstreamTimeout):
        await answering
    assert [len(prompt.passages) for prompt in world.reader.prompts] == [0, 5]


@pytest.mark.parametrize("finished", [False, True])
async def test_one_passage_that_does_not_convince_reads_five_after_all(finished: bool) -> None:
    """The race for five is given up for one passage, unless it was won already: then it need not be run again."""
    graded = replace(a_fit(), escalate=True)
    gate = Gate(an_artifact(policies={"graded": graded}, abstention=an_abstention(tau=0.5)))
    world = await World(Schedule.RACE, gate).filled(BORDERLINE)
    world.reader.says(ASKED, "It is Franville", k=1, sure=0.25)
    world.reader.held = {0: asyncio.Event()} if finished else {0: asyncio.Event(), 5: asyncio.Event()}
    answering = asyncio.create_task(world.answer())
    await world.reader.begun[5].wait()
    for _ in range(20):
        await asyncio.sleep(0)
    world.reader.held.pop(0).set()
    world.reader.held.clear()
    record = await answering
    assert (record.action, record.answer, record.reads) == (Action.K5, "Franville it is", 2)
    assert record.wasted_usage == (None if finished else Usage())
    # One that was given up before it was answered leaves no trace of a prompt.
    assert [len(prompt.passages) for prompt in world.reader.prompts] == ([5, 0, 1] if finished else [0, 1, 5])
    assert record.retrieval_calls == 1


@pytest.mark.parametrize("ask", [{"policy": Policy.NEVER}, {"retrieval": Retrieval.FORBIDDEN}])
async def test_nothing_is_begun_that_can_never_be_wanted(ask: dict[str, Any]) -> None:
    """A question that may read nothing fetches nothing, whatever the schedule."""
    world = await World(Schedule.RACE).filled(UNCERTAIN)
    record = await world.answer(**ask)
    assert (record.k, record.retrieval_calls, world.retriever.searches, world.embedder.calls) == (0, 0, 0, 0)


async def test_the_time_of_a_lost_read_is_not_the_time_of_reading() -> None:
    """What one passage takes to read is not made longer by five that were read for nothing."""
    now = 0.0
    world = await World(Schedule.RACE, clock=lambda: now).filled(BORDERLINE)
    world.reader.held = {0: asyncio.Event(), 5: asyncio.Event()}
    answering = asyncio.create_task(world.answer())
    await world.reader.begun[5].wait()
    now = 60.0
    world.reader.held[0].set()
    timings = (await answering).timings
    assert (timings.probe, timings.read, timings.total) == (60_000.0, 0.0, 60_000.0)


async def test_a_probe_cut_short_for_nothing_is_paid_for_twice() -> None:
    """Where no passage is found after all, the question is probed again, and whole: both probes count."""
    world = World(Schedule.SERIAL, early(exits=((2, 0.5),), exit_k=5))
    await world.filled(UNCERTAIN)
    world.reader.says(ASKED, LONG, k=0, tokens=tuple(surely(0.25) for _ in LONG.split()))
    world.retriever.fail_with = UpstreamUnavailable("vectors", "down")
    record = await world.answer()
    assert (record.reason, record.action) == (Reason.RETRIEVAL_FAILED, Action.K0)
    assert record.probe_usage is not None
    # Three tokens until it was cut short, then six and the end.
    assert record.probe_usage.completion_tokens == 3 + 7
    # By the whole probe, as there is one.
    assert record.signals
    assert (record.p_closed_book, record.confidence) == (0.25, 0.25)


async def test_who_used_the_time_up_is_blamed_for_it() -> None:
    """An embedder that takes all the time there is leaves none to probe, which is not the reader's fault."""
    world = await World(Schedule.SERIAL, early(unasked=0.5)).filled(CONFIDENT)
    world.embedder.embed_query = forever  # type: ignore[assignment]
    deadline = asyncio.get_running_loop().time() + 0.01
    with pytest.raises(UpstreamTimeout) as raised:
        await world.answerer.answer(Question(ASKED, "demo", 24, Ask(), deadline=deadline))
    assert raised.value.upstream == "embedder"


async def forever(_: str) -> Any:
    """Never embed."""
    await asyncio.Event().wait()


async def test_what_was_fetched_is_counted() -> None:
    """One search for five passages beside the probe, of which one is read."""
    world = await World(Schedule.OVERLAP).filled(BORDERLINE)
    record = await world.answer()
    assert (record.k, record.retrieval_calls, record.passages_fetched, record.reads) == (1, 1, 5, 1)
    assert ahead() == []


async def test_a_race_that_never_began_wasted_nothing() -> None:
    """While the search was still under way there was nothing to read."""
    world = await World(Schedule.RACE).filled(CONFIDENT)
    world.retriever.go.clear()
    world.reader.held[0] = asyncio.Event()
    answering = asyncio.create_task(world.answer())
    await world.retriever.begun.wait()
    world.reader.held[0].set()
    record = await answering
    assert (record.action, record.retrieval_calls, record.wasted_usage) == (Action.K0, 1, None)
