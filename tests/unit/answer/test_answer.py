"""The life of a question: what no reply shows. The golden walks test the replies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.answer.answer import Answerer
from app.answer.run import Upstreams
from app.core.available import Passage
from app.core.policy import AskOptions, Policy, Reason
from app.core.question import Filter, Question
from app.core.record import DecisionRecord
from app.errors import UpstreamTimeout, UpstreamUnavailable
from tests.fakes.artifacts import an_artifact
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gateway import filled
from tests.fakes.reader import FakeReader
from tests.fakes.retriever import FakeRetriever
from tests.fakes.walks import fixed

ASKED = "What is the capital of France?"
# Closed-book probabilities of every region of the default thresholds: 0.25 abstain, 0.5 five, 0.75 one.
HOPELESS, UNCERTAIN, CONFIDENT = 0.125, 0.375, 0.875


def down() -> UpstreamUnavailable:
    """The error of a retriever that is down."""
    return UpstreamUnavailable("vectors", "vectors are down")


class FakeClock:
    """Time that passes only on request."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def spend(self, ms: float) -> None:
        """Let time pass."""
        self.now += ms / 1000.0


class Notebook:
    """An observer that keeps every record."""

    def __init__(self) -> None:
        self.records: list[DecisionRecord] = []

    def observe(self, record: DecisionRecord) -> None:
        self.records.append(record)


class TimedEmbedder(FakeEmbedder):
    """An embedder that takes seven milliseconds."""

    clock: FakeClock

    async def embed_query(self, text: str) -> Sequence[float]:
        self.clock.spend(7)
        return await super().embed_query(text)


class TimedRetriever(FakeRetriever):
    """A retriever that takes three milliseconds."""

    clock: FakeClock

    async def search(
        self, collection: str, vector: Sequence[float], *, limit: int, where: Filter | None = None
    ) -> list[Passage]:
        self.clock.spend(3)
        return await super().search(collection, vector, limit=limit, where=where)


@dataclass
class World:
    """Everything around an Answerer."""

    clock: FakeClock = field(default_factory=FakeClock)
    reader: FakeReader = field(default_factory=FakeReader)
    embedder: TimedEmbedder = field(default_factory=TimedEmbedder)
    retriever: TimedRetriever = field(default_factory=TimedRetriever)
    notebook: Notebook = field(default_factory=Notebook)

    def __post_init__(self) -> None:
        self.embedder.clock = self.retriever.clock = self.clock
        self.reader.before = lambda prompt: self.clock.spend(100 + 20 * len(prompt.passages))

    def knows(self, p: float, *, k1: float = 0.9, k5: float = 0.9) -> None:
        """Set the probability of the closed-book answer to p, and of those from passages to k1 and k5."""
        self.reader.says(ASKED, "Paris", k=0, sure=p)
        self.reader.says(ASKED, "It is Franville", k=1, sure=k1)
        self.reader.says(ASKED, "Franville it is", k=5, sure=k5)

    async def answer(self, *, where: Filter | None = None, collection: str = "demo", **ask: Any) -> DecisionRecord:
        """Ask the question, and check what is true of every answer."""
        seen = len(self.notebook.records)
        ask = {"filtered": where is not None} | ask
        record = await self.answerer().answer(
            Question("id", ASKED, collection, 24, AskOptions(**ask), where, {"team": "x"})
        )
        assert self.notebook.records[seen:] == [record]
        return record

    def answerer(self, **more: Any) -> Answerer:
        upstreams = Upstreams(self.reader, self.embedder, self.retriever, clock=self.clock)
        return Answerer(upstreams, fixed(an_artifact()), **({"observers": (self.notebook,)} | more))


async def a_world(p: float = UNCERTAIN, **sure: float) -> World:
    """A world with a calibrator and a filled collection, in which the probe is right with probability p."""
    world = World()
    await filled(world.retriever, world.embedder)
    world.knows(p, **sure)
    return world


async def test_timings_of_a_closed_book_answer() -> None:
    """Stages that did not run have no time, and those that did add up."""
    timings = (await (await a_world(CONFIDENT)).answer()).timings
    assert timings.total == timings.probe == pytest.approx(100)
    assert (timings.embed, timings.search, timings.read) == (None, None, None)


async def test_timings_of_an_open_book_answer() -> None:
    """Each stage has its own milliseconds, and the total is theirs."""
    timings = (await (await a_world(UNCERTAIN)).answer()).timings
    assert timings.probe == pytest.approx(100)
    assert timings.embed == pytest.approx(7)
    assert timings.search == pytest.approx(3)
    assert timings.read == pytest.approx(200)
    assert timings.total == pytest.approx(310)


async def test_a_failed_search_is_timed_too() -> None:
    """Wasted time is shown."""
    world = await a_world(UNCERTAIN)
    world.retriever.fail_with = down()
    record = await world.answer()
    assert record.timings.search == pytest.approx(3)
    assert record.searches == 1
    assert record.timings.read is None


async def test_only_passages_that_were_really_read_are_cited() -> None:
    """A passage that did not fit the reader's context was not read, so it is not cited."""
    world = await a_world(UNCERTAIN)
    world.reader = FakeReader(context_chars=130)
    world.reader.says(ASKED, "Paris", k=0, sure=UNCERTAIN)
    record = await world.answer()
    given = world.reader.prompts[-1].passages
    assert len(given) == record.reply.k == 5
    assert 0 < len(record.citations) < 5
    assert [citation.id for citation in record.citations] == [passage.id for passage in given][: len(record.citations)]


async def test_no_record_of_a_question_that_failed() -> None:
    """The caller gets its error, and no observer gets a record."""
    world = await a_world(UNCERTAIN)
    world.reader.fail_with = UpstreamTimeout("reader", "slow")
    with pytest.raises(UpstreamTimeout):
        await world.answer()
    assert world.notebook.records == []


async def test_every_observer_gets_the_record_once() -> None:
    """Two observers see the same one record of a question, and it is the one returned."""
    world = await a_world(UNCERTAIN)
    first, second = Notebook(), Notebook()
    record = await world.answerer(observers=(first, second)).answer(Question("id", ASKED, "demo", 24))
    assert first.records == second.records == [record]


async def test_the_record_says_whether_the_answer_was_cut() -> None:
    """Of the given answer: the probe's if no passage was read, else the reading's."""
    world = await a_world(CONFIDENT)
    for policy, k in ((Policy.NEVER, 0), (Policy.ALWAYS, 5)):
        world.reader.says(ASKED, "one two three", k=k, sure=CONFIDENT)
        for most, cut in ((24, False), (2, True)):
            record = await world.answerer().answer(Question("id", ASKED, "demo", most, AskOptions(policy)))
            assert record.reply.truncated is cut
    world.reader.says(ASKED, "one two three", k=0, sure=UNCERTAIN)
    world.reader.says(ASKED, "one", k=5, sure=CONFIDENT)
    assert not (await world.answerer().answer(Question("id", ASKED, "demo", 3))).reply.truncated


async def test_a_failed_read_is_no_error_where_there_is_an_answer() -> None:
    """The closed-book answer is given instead, uncertified; what failed is in the record."""
    world = await a_world(UNCERTAIN)
    world.reader.fail_on_k, world.reader.fail_with = 5, UpstreamTimeout("reader", "slow")
    record = await world.answer()
    assert (record.reply.text, record.reply.reason, record.reply.certified) == ("Paris", Reason.DEGRADED, False)
    assert record.failure == ("reader", "timeout")


async def test_an_observer_that_fails_does_not_fail_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The others still get the record, and the error is logged and counted."""

    class Broken:
        def observe(self, record: DecisionRecord) -> None:
            raise RuntimeError("no room left")

    world = await a_world(CONFIDENT)
    notebook, counted = Notebook(), list[None]()
    answerer = world.answerer(observers=(Broken(), notebook), on_observer_error=lambda: counted.append(None))
    record = await answerer.answer(Question("id", ASKED, "demo", 24))
    assert notebook.records == [record]
    assert len(counted) == 1
    assert "no room left" in caplog.text
