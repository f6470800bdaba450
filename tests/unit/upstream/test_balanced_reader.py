"""Several readers as one: each question has a home replica, moves if that fails, and never reaches another model."""

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
from app.ports import Generation, Prompt
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


async def streamed_pieces(reader: BalancedReader, question: str = QUESTIONS[0]) -> list[str | Generation]:
    async with aclosing(reader.stream(Prompt(question), max_tokens=24)) as pieces:
        return [piece async for piece in pieces]


def home(question: str, *readers: FakeReader) -> FakeReader:
    """Which of these readers received this question."""
    (reader,) = [one for one in readers if any(prompt.question == question for prompt in one.prompts)]
    return reader


async def test_probe_and_read_go_to_the_same_replica_and_questions_are_spread() -> None:
    """A question has one home, with or without passages; each of three replicas is home to about a third."""
    readers = [FakeReader() for _ in range(3)]
    reader = balanced(*readers)
    for question in QUESTIONS:
        await ask(reader, question)
        await reader.generate(Prompt(question), max_tokens=5)
        await streamed_pieces(reader, question)
        home(question, *readers)
    assert all(len(QUESTIONS) / 3 * 0.6 < one.calls / 3 < len(QUESTIONS) / 3 * 1.4 for one in readers)


async def test_only_the_questions_of_a_failed_replica_move() -> None:
    """The other questions keep their home, so the caches stay warm."""
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


async def test_overloaded_replica_passes_questions_on() -> None:
    """A question that many callers ask at once does not overload its home while the other replica is idle."""
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
async def test_next_replica_answers_if_the_home_is_gone(streamed: bool) -> None:
    """Nothing was sent yet, so the caller sees no failure."""
    readers = [FakeReader(), FakeReader()]
    reader = balanced(*readers)
    await ask(reader)
    home(QUESTIONS[0], *readers).fail_with = GONE
    answer = (await streamed_pieces(reader))[-1] if streamed else await ask(reader)
    assert isinstance(answer, Generation)


@pytest.mark.parametrize("error", [UpstreamTimeout("reader", "late"), UpstreamBadReply("reader", "nonsense")])
async def test_timeouts_and_bad_replies_are_not_retried(error: UpstreamError) -> None:
    """A generation that was slow or invalid is not paid for twice."""
    readers = [FakeReader(), FakeReader()]
    for one in readers:
        one.fail_with = error
    with pytest.raises(type(error)):
        await ask(balanced(*readers))
    assert sum(one.calls for one in readers) == 1


class BreaksOff(FakeReader):
    """Fails after the first token of a stream."""

    async def stream(self, prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[str | Generation, None]:
        self.prompts.append(prompt)
        yield "The"
        raise GONE


async def test_stream_is_not_retried_after_its_first_token() -> None:
    """The caller would receive the beginning twice."""
    readers = [BreaksOff(), BreaksOff()]
    reader = balanced(*readers)
    async with aclosing(reader.stream(Prompt("?"), max_tokens=5)) as stream:
        assert await anext(stream) == "The"
        with pytest.raises(UpstreamUnavailable):
            await anext(stream)
    assert sum(one.calls for one in readers) == 1


async def test_completely_received_stream_is_a_success() -> None:
    """A caller that has the whole answer closes the stream, which must not count as a cancelled call."""
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
    # The breaker is closed: two questions at once both pass.
    await asyncio.gather(ask(reader), ask(reader))


async def test_open_breakers_of_all_readers_refuse_questions() -> None:
    """If no reader may be called, the question fails at once and the error says when to retry."""
    for readers in ([FakeReader()], [FakeReader(), FakeReader()]):
        reader = balanced(*readers, failures=2, retries=0)
        for one in readers:
            one.fail_with = GONE
        for question in QUESTIONS[:20]:
            with pytest.raises(UpstreamUnavailable):
                await ask(reader, question)
        assert sum(one.calls for one in readers) == 2 * len(readers)
        with pytest.raises(UpstreamUnavailable, match="is open: ") as refused:
            await streamed_pieces(reader)
        assert refused.value.retry_after_s is not None
        assert refused.value.retry_after_s >= AWHILE


async def test_ping_closes_the_breaker_of_a_recovered_replica() -> None:
    """The ping generates one token, so no question waits for a replica that may still hang."""
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


async def test_listing_models_does_not_close_the_breaker() -> None:
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


async def test_long_prompts_and_cancelled_calls_open_no_breaker() -> None:
    """Neither is a failure of the reader."""
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


async def test_ping_counts_the_replicas() -> None:
    """All answer: no message. Some: how many, and the failures of the others. None: an error."""
    readers = [FakeReader(), FakeReader()]
    reader = balanced(*readers)
    assert await reader.ping() is None
    readers[1].fail_with = GONE
    assert await reader.ping() == "1 of 2 readers answer; reader 2: gone"
    readers[0].fail_with = GONE
    with pytest.raises(UpstreamUnavailable, match="0 of 2 readers answer; reader 1: gone; reader 2: gone"):
        await reader.ping()


async def test_different_replicas_refuse_the_start() -> None:
    """One calibrator cannot serve two models; the message says which replica differs, and how."""
    with pytest.raises(ConfigurationError, match="reader 2 is not the same as reader 1: model is 'b', not 'a'"):
        await balanced(FakeReader(model="a"), FakeReader(model="b")).start()


async def test_gateway_starts_without_its_readers() -> None:
    """They may start later."""
    readers = [FakeReader(), FakeReader()]
    for one in readers:
        one.fail_with = GONE
    reader = balanced(*readers)
    await reader.start()
    readers[0].fail_with = None
    assert (await reader.identify()).reader == "fake"


async def test_replica_that_returns_as_another_model_is_not_used() -> None:
    """Not even its first answer is passed on, complete or streamed; the other replica answers, and ping says why."""
    for call in (ask, streamed_pieces):
        readers = [FakeReader(), FakeReader()]
        reader = balanced(*readers)
        await reader.start()
        await ask(reader)
        swapped = home(QUESTIONS[0], *readers)
        swapped.fail_with = GONE
        await ask(reader)
        swapped.fail_with, swapped._model = None, "another"
        swapped.says(QUESTIONS[0], "The answer of another model")
        answer = await call(reader, QUESTIONS[0])
        assert "another" not in str(answer)
        calls = swapped.calls
        await ask(reader)
        assert swapped.calls == calls
        assert "model is 'another', not 'fake'" in (await reader.ping() or "")
        swapped._model = "fake"
        await reader.identify()
        assert await reader.ping() is None


async def test_identify_excludes_a_replica_that_differs() -> None:
    """The gateway identifies its readers every half minute, which detects a swapped model."""
    readers = [FakeReader(), FakeReader()]
    reader = balanced(*readers)
    await reader.start()
    readers[1]._model = "another"
    assert (await reader.identify()).reader == "fake"
    for question in QUESTIONS[:20]:
        await ask(reader, question)
    assert readers[1].calls == 0


async def test_identity_changes_if_all_readers_change() -> None:
    """The new identity is reported, so the old calibrator no longer decides; with one reader or several."""
    for readers in ([FakeReader()], [FakeReader(), FakeReader()]):
        reader = balanced(*readers)
        await reader.identify()
        for one in readers:
            one._model = "another"
        assert (await reader.identify()).reader == "another"
        assert await ask(reader)


async def test_single_reader_that_returns_as_another_model_must_be_identified() -> None:
    """Until then it would answer under the old model's calibrator."""
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


async def test_close_closes_every_reader() -> None:
    """No connection stays open."""
    readers = [FakeReader(), FakeReader()]
    await balanced(*readers).close()
    assert all(one.closed for one in readers)


async def test_calls_and_pings_of_each_replica_are_reported() -> None:
    """An operator sees which of them fails, is slow, or is gone."""
    calls: list[tuple[str, str]] = []
    pings: list[tuple[str, bool]] = []
    resilience = Resilience(failures=3, retry_s=AWHILE, retries=1, at_once=10)
    resilience.watch(
        lambda *_: None,
        lambda *_: None,
        lambda server, result, _: calls.append((server, result)),
        lambda server, up: pings.append((server, up)),
    )
    readers = {"reader 1": FakeReader(), "reader 2": FakeReader()}
    reader = BalancedReader(readers, resilience)
    await ask(reader)
    ((first, _),) = calls
    readers[first].fail_with = GONE
    await ask(reader)
    await reader.ping()
    (other,) = readers.keys() - {first}
    assert calls == [(first, "ok"), (first, "unavailable"), (other, "ok")]
    assert dict(pings) == {first: False, other: True}
