"""Several readers as one: the same replica for a question, another where that one fails, and never another model."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from app.errors import (
    ConfigurationError,
    PromptTooLong,
    UpstreamBadReply,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.ports import Generation, Prompt, Token
from app.upstream.readers.balanced import BalancedReader
from app.upstream.resilience import Resilience
from tests.fakes.reader import FakeReader
from tests.waiting import until

AWHILE = 3600.0
QUESTIONS = [f"What is the capital of country {number}?" for number in range(200)]
GONE = UpstreamUnavailable("reader", "gone")


def balanced(*readers: FakeReader, failures: int = 3, retry_s: float = AWHILE, retries: int = 1) -> BalancedReader:
    named = {f"reader {number}": reader for number, reader in enumerate(readers, start=1)}
    return BalancedReader(named, Resilience(failures=failures, retry_s=retry_s, retries=retries, at_once=10))


async def ask(reader: BalancedReader, question: str = QUESTIONS[0]) -> Generation:
    return await reader.generate(Prompt(question), max_tokens=24)


async def heard(reader: BalancedReader, question: str = QUESTIONS[0]) -> list[Token | Generation]:
    async with aclosing(reader.stream(Prompt(question), max_tokens=24)) as pieces:
        return [piece async for piece in pieces]


def home(question: str, *readers: FakeReader) -> FakeReader:
    """Which of these was asked this question."""
    (reader,) = [one for one in readers if any(prompt.question == question for prompt in one.prompts)]
    return reader


async def test_probe_and_read_of_a_question_go_to_the_same_replica_and_questions_are_spread() -> None:
    """Whatever is read with it, a question has one home; each of three replicas is home to about a third."""
    readers = [FakeReader() for _ in range(3)]
    reader = balanced(*readers)
    for question in QUESTIONS:
        await ask(reader, question)
        await reader.generate(Prompt(question, earlier=()), max_tokens=5)
        await heard(reader, question)
        home(question, *readers)
    assert all(len(QUESTIONS) / 3 * 0.6 < one.calls / 3 < len(QUESTIONS) / 3 * 1.4 for one in readers)


async def test_the_homes_of_the_others_stay_when_a_replica_goes() -> None:
    """Only the questions of the one that failed move, so that the caches of the others stay warm."""
    readers = [FakeReader() for _ in range(3)]
    reader = balanced(*readers, failures=1)
    for question in QUESTIONS:
        await ask(reader, question)
    before = {question: home(question, *readers) for question in QUESTIONS}
    readers[0].fail_with = GONE
    await ask(reader, next(question for question in QUESTIONS if before[question] is readers[0]))
    for one in readers:
        one.prompts.clear()
    for question in QUESTIONS:
        await ask(reader, question)
        assert home(question, *readers) is (
            before[question] if before[question] is not readers[0] else home(question, *readers[1:])
        )
    assert not readers[0].prompts


async def test_a_replica_with_far_more_than_its_share_passes_questions_on() -> None:
    """A question that everybody asks at once does not drown its home while the other idles."""
    readers = [FakeReader(), FakeReader()]
    for one in readers:
        one.hang = True
    reader = balanced(*readers)
    asking = [asyncio.create_task(ask(reader)) for _ in range(40)]
    await until(lambda: sum(one.calls for one in readers) == 40)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    fewer, more = sorted(one.calls for one in readers)
    assert fewer + more == 40
    assert fewer >= 5
    assert more > fewer


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_question_whose_replica_is_gone_is_answered_by_the_next(streamed: bool) -> None:
    """Nothing was said yet, so the asker need not know."""
    readers = [FakeReader(), FakeReader()]
    reader = balanced(*readers)
    await ask(reader)
    home(QUESTIONS[0], *readers).fail_with = GONE
    answer = (await heard(reader))[-1] if streamed else await ask(reader)
    assert isinstance(answer, Generation)


@pytest.mark.parametrize("error", [UpstreamTimeout("reader", "late"), UpstreamBadReply("reader", "nonsense")])
async def test_what_was_worked_on_is_not_tried_elsewhere(error: UpstreamError) -> None:
    """A generation that took its time, or came to nonsense, is not paid for twice."""
    readers = [FakeReader(), FakeReader()]
    for one in readers:
        one.fail_with = error
    with pytest.raises(type(error)):
        await ask(balanced(*readers))
    assert sum(one.calls for one in readers) == 1


class BreaksOff(FakeReader):
    """Fails after the first piece of a stream."""

    async def stream(self, prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[Token | Generation, None]:
        self.prompts.append(prompt)
        yield Token("The", ())
        raise GONE


async def test_nothing_is_tried_again_once_a_piece_was_given() -> None:
    """The asker would hear the beginning twice."""
    readers = [BreaksOff(), BreaksOff()]
    reader = balanced(*readers)
    async with aclosing(reader.stream(Prompt("?"), max_tokens=5)) as stream:
        assert await anext(stream) == Token("The", ())
        with pytest.raises(UpstreamUnavailable):
            await anext(stream)
    assert sum(one.calls for one in readers) == 1


async def test_a_stream_whose_whole_was_heard_is_a_success() -> None:
    """Whoever has the whole answer stops listening, which must not look like a call that was given up."""
    inner = FakeReader()
    reader = balanced(inner, failures=1, retry_s=0.001, retries=0)
    inner.fail_with = GONE
    with pytest.raises(UpstreamUnavailable):
        await ask(reader)
    inner.fail_with = None
    await asyncio.sleep(0.01)
    async with aclosing(reader.stream(Prompt(QUESTIONS[0]), max_tokens=24)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Generation):
                break
    # Closed by it: two questions at once are both let through.
    await asyncio.gather(ask(reader), ask(reader))


async def test_a_reader_that_keeps_failing_is_left_alone_alone_or_all_of_them() -> None:
    """Then the answer is a failure at once that says when to come back."""
    for readers in ([FakeReader()], [FakeReader(), FakeReader()]):
        reader = balanced(*readers, failures=2, retries=0)
        for one in readers:
            one.fail_with = GONE
        for question in QUESTIONS[:20]:
            with pytest.raises(UpstreamUnavailable):
                await ask(reader, question)
        assert sum(one.calls for one in readers) == 2 * len(readers)
        with pytest.raises(UpstreamUnavailable, match="is open: ") as refused:
            await heard(reader)
        assert refused.value.retry_after_s is not None
        assert refused.value.retry_after_s >= AWHILE


async def test_a_replica_that_is_well_again_is_asked_again() -> None:
    """A ping tries it with one token, so that no question waits for a replica that may still hang."""
    readers = [FakeReader(), FakeReader()]
    reader = balanced(*readers, failures=1, retry_s=0.001)
    await ask(reader)
    failing = home(QUESTIONS[0], *readers)
    failing.fail_with = GONE
    await ask(reader)
    await asyncio.sleep(0.01)
    failing.fail_with = None
    failing.prompts.clear()
    await ask(reader)
    assert not failing.prompts
    assert await reader.ping() is None
    assert [prompt.question for prompt in failing.prompts] == ["ping"]
    await ask(reader)
    assert failing.prompts[-1].question == QUESTIONS[0]


async def test_a_ping_that_lists_models_does_not_bring_back_a_reader_that_cannot_answer() -> None:
    """Only an answer does."""
    inner = FakeReader()
    reader = balanced(inner, failures=1, retry_s=0.001)
    inner.fail_with, inner.fail_on_k = GONE, 0
    with pytest.raises(UpstreamUnavailable):
        await ask(reader)
    await asyncio.sleep(0.01)
    with pytest.raises(UpstreamUnavailable):
        await reader.ping()
    assert inner.calls == 2


async def test_prompts_that_are_too_long_and_askers_that_leave_open_no_breaker() -> None:
    """Neither says anything about the reader."""
    inner = FakeReader(context_chars=100)
    reader = balanced(inner, failures=1)
    with pytest.raises(PromptTooLong):
        await ask(reader, "long " * 100)
    inner.hang = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await ask(reader)
    inner.hang = False
    assert await ask(reader)


async def test_readiness_counts_the_replicas() -> None:
    """All well: nothing to say. Some: how many, and what ails the others. None: a failure."""
    readers = [FakeReader(), FakeReader()]
    reader = balanced(*readers)
    assert await reader.ping() is None
    readers[1].fail_with = GONE
    assert await reader.ping() == "1 of 2 readers answer; reader 2: gone"
    readers[0].fail_with = GONE
    with pytest.raises(UpstreamUnavailable, match="0 of 2 readers answer; reader 1: gone; reader 2: gone"):
        await reader.ping()


async def test_replicas_that_are_not_the_same_refuse_the_start() -> None:
    """One calibrator cannot hold for two models; the message says which and how."""
    with pytest.raises(ConfigurationError, match="reader 2 is not the same as reader 1: model is 'b', not 'a'"):
        await balanced(FakeReader(model="a"), FakeReader(model="b")).start()


async def test_readers_that_cannot_be_reached_do_not_keep_the_gateway_from_starting() -> None:
    """They may come later."""
    readers = [FakeReader(), FakeReader()]
    for one in readers:
        one.fail_with = GONE
    reader = balanced(*readers)
    await reader.start()
    readers[0].fail_with = None
    assert (await reader.identify()).reader == "fake"


async def test_a_replica_that_comes_back_as_another_model_answers_nothing() -> None:
    """Not even its first answer is passed on, whole or in pieces; the other one answers, and health says why."""
    for listen in (ask, heard):
        readers = [FakeReader(), FakeReader()]
        reader = balanced(*readers)
        await reader.start()
        await ask(reader)
        swapped = home(QUESTIONS[0], *readers)
        swapped.fail_with = GONE
        await ask(reader)
        swapped.fail_with, swapped._model = None, "another"
        swapped.says(QUESTIONS[0], "The answer of another model")
        told = await listen(reader, QUESTIONS[0])
        assert "another" not in str(told)
        calls = swapped.calls
        await ask(reader)
        assert swapped.calls == calls
        assert "model is 'another', not 'fake'" in (await reader.ping() or "")
        swapped._model = "fake"
        await reader.identify()
        assert await reader.ping() is None


async def test_a_replica_that_differs_when_all_are_asked_is_left_out() -> None:
    """The gateway asks every half minute: a model swapped unnoticed is noticed then."""
    readers = [FakeReader(), FakeReader()]
    reader = balanced(*readers)
    await reader.start()
    readers[1]._model = "another"
    assert (await reader.identify()).reader == "fake"
    for question in QUESTIONS[:20]:
        await ask(reader, question)
    assert readers[1].calls == 0


async def test_readers_that_all_became_another_model_are_taken_up_as_that() -> None:
    """The identity that is told is the new one, so that no calibrator of the old one decides; one reader or several."""
    for readers in ([FakeReader()], [FakeReader(), FakeReader()]):
        reader = balanced(*readers)
        await reader.identify()
        for one in readers:
            one._model = "another"
        assert (await reader.identify()).reader == "another"
        assert await ask(reader)


async def test_a_single_reader_that_comes_back_as_another_model_waits_to_be_identified() -> None:
    """Until then it would answer under the old one's calibrator."""
    inner = FakeReader()
    reader = balanced(inner, retries=0)
    await reader.identify()
    inner.fail_with = GONE
    with pytest.raises(UpstreamUnavailable):
        await ask(reader)
    inner.fail_with, inner._model = None, "another"
    with pytest.raises(UpstreamUnavailable, match="model is 'another', not 'fake'"):
        await ask(reader)
    await reader.identify()
    assert await ask(reader)


async def test_closing_closes_all() -> None:
    """No connection is left."""
    readers = [FakeReader(), FakeReader()]
    await balanced(*readers).close()
    assert all(one.closed for one in readers)
