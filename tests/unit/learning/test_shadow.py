"""Shadow runs: at every k, only while the gateway is idle, within the budget, and without losing a question."""

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from app.core.artifact import Identity
from app.core.effective_policy import Sampled
from app.core.policy import AskOptions, Retrieval
from app.core.question import Question, Standalone
from app.core.record import DecisionRecord, FullRun
from app.errors import UpstreamUnavailable
from app.learning import shadow as module
from app.learning.sampling import Budget
from app.learning.shadow import WAITING, ShadowRunner
from tests.fakes.artifacts import an_identity
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gateway import filled
from tests.fakes.reader import FakeReader
from tests.fakes.records import a_record
from tests.fakes.retriever import FakeRetriever
from tests.waiting import until

ASKED = "What is the capital of France?"


def a_question(
    ask: AskOptions | None = None, collection: str = "demo", max_tokens: int = 24, standalone: Standalone | None = None
) -> Question:
    return Question("id", ASKED, collection, max_tokens, ask or AskOptions(), standalone=standalone)


def drawn(identifier: str) -> DecisionRecord:
    """An answered question that was drawn for a shadow run."""
    return a_record(id=identifier, question=ASKED, sampled=Sampled(shadow=True))


@dataclass
class Bench:
    """A runner over fakes, and its results."""

    runner: ShadowRunner
    reader: FakeReader
    done: list[FullRun] = field(default_factory=list)
    lost: list[None] = field(default_factory=list)
    # The identity of the running system.
    known: list[Identity | None] = field(default_factory=list)

    async def settled(self, count: int) -> None:
        """Wait until so many runs have ended, completed or lost."""
        await until(lambda: len(self.done) + len(self.lost) >= count)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(module, "IDLE_S", 0.0)
    return await a_bench()


async def a_bench(share: float = 1.0, budget: Budget | None = None) -> Bench:
    reader, embedder, vectors = FakeReader(), FakeEmbedder(), FakeRetriever()
    await filled(vectors, embedder)
    done: list[FullRun] = []
    lost: list[None] = []
    known: list[Identity | None] = [an_identity()]
    runner = ShadowRunner(
        share,
        budget or Budget(1.0),
        reader=reader,
        embedder=embedder,
        retriever=vectors,
        identity=lambda: known[-1],
        on_done=done.append,
        on_end=lambda end: lost.append(None) if end == "lost" else None,
        rng=random.Random(0),
    )
    return Bench(runner, reader, done, lost, known)


async def test_every_action_is_asked_and_kept(bench: Bench) -> None:
    """One run asks at k = 0, 1 and 5, and keeps answers, signals, tokens and times under the record's id."""
    bench.runner.start()
    bench.runner.observe(drawn("a"))
    await bench.settled(1)
    await bench.runner.close()
    (shadow,) = bench.done
    assert (shadow.id, tuple(shadow.outcomes)) == ("a", (0, 1, 5))
    assert [len(prompt.passages) for prompt in bench.reader.prompts] == [0, 1, 5]
    assert shadow.identity == an_identity()
    assert all("seq_logprob" in outcome.signals for outcome in shadow.outcomes.values())
    assert {"search.cosine", "k0.margin", "k1.support", "k0~k5.agreement"} <= shadow.evidence.keys()
    assert shadow.tokens > 0


async def test_a_question_that_arrives_goes_first(bench: Bench) -> None:
    """A running shadow run is cancelled upstream, waits while questions are in flight, and then starts again."""
    bench.reader.hang = True
    bench.runner.start()
    bench.runner.observe(drawn("a"))
    await until(lambda: bool(bench.reader.prompts))
    bench.runner.began()
    bench.reader.hang = False
    await until(lambda: bench.reader.cancelled == 1)
    asked = bench.reader.calls
    await asyncio.sleep(0.02)
    assert bench.reader.calls == asked
    bench.runner.ended()
    await bench.settled(1)
    await bench.runner.close()
    assert [shadow.id for shadow in bench.done] == ["a"]


async def test_a_run_that_fails_is_counted_and_the_next_goes_on(bench: Bench) -> None:
    """An upstream that is down loses only that run."""
    bench.reader.fail_with = UpstreamUnavailable("reader", "down")
    bench.runner.start()
    bench.runner.observe(drawn("a"))
    await bench.settled(1)
    bench.reader.fail_with = None
    bench.runner.observe(drawn("b"))
    await bench.settled(2)
    await bench.runner.close()
    assert (len(bench.lost), [shadow.id for shadow in bench.done]) == (1, ["b"])


async def test_what_two_systems_answered_is_lost(bench: Bench) -> None:
    """A run is lost if the reader changes or is unknown; the next one is stored."""
    bench.reader.hang = True
    bench.runner.start()
    bench.runner.observe(drawn("a"))
    await until(lambda: bool(bench.reader.prompts))
    bench.known.append(an_identity(reader="another"))
    bench.runner.began()
    bench.reader.hang = False
    bench.runner.ended()
    await bench.settled(1)
    assert [shadow.identity.reader for shadow in bench.done] == ["another"]
    bench.known.append(None)
    assert not bench.runner.draws(a_question())
    bench.runner.observe(drawn("b"))
    await bench.settled(2)
    await bench.runner.close()
    assert len(bench.lost) == 1


async def test_a_long_queue_turns_new_ones_away(bench: Bench) -> None:
    """The queue is bounded; runs that do not fit are counted."""
    bench.runner.began()
    bench.runner.start()
    for number in range(WAITING + 3):
        bench.runner.observe(drawn(str(number)))
    assert len(bench.lost) == 3
    await bench.runner.close()


async def test_only_questions_that_a_table_could_hold_are_drawn(bench: Bench) -> None:
    """Not before the start; not filtered, forced, of another collection or length, or a turn without a question."""
    assert not bench.runner.draws(a_question())
    bench.runner.start()
    assert bench.runner.draws(a_question())
    assert not bench.runner.draws(a_question(AskOptions(filtered=True)))
    assert not bench.runner.draws(a_question(AskOptions(retrieval=Retrieval.REQUIRED)))
    assert not bench.runner.draws(a_question(collection="other"))
    assert not bench.runner.draws(a_question(max_tokens=8))
    for how, wanted in (("as_asked", True), ("rewritten", True), ("small_talk", False), ("failed", False)):
        assert bench.runner.draws(a_question(standalone=Standalone(how, ASKED))) is wanted
    await bench.runner.close()


async def test_the_share_is_kept_and_zero_never_starts() -> None:
    """About the share of many questions is drawn; with a share of 0, nothing runs."""
    some, none = await a_bench(0.2), await a_bench(0.0)
    for one in (some, none):
        one.runner.start()
    drawn = sum(some.runner.draws(a_question()) for _ in range(2000))
    assert 320 < drawn < 480
    assert not any(none.runner.draws(a_question()) for _ in range(100))
    for one in (some, none):
        await one.runner.close()


async def test_a_spent_budget_draws_nothing() -> None:
    """Learning stops once it has used its share of all tokens."""
    budget = Budget(0.1)
    spent = await a_bench(1.0, budget)
    spent.runner.start()
    assert spent.runner.draws(a_question())
    budget.spend(20_000)
    assert not spent.runner.draws(a_question())
    await spent.runner.close()
