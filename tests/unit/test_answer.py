"""The life of a question: what no reply shows. The golden walks hold what each way through comes to."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.answer import Answerer
from app.decision.artifact import Artifact
from app.decision.bypass import WATCH
from app.decision.passage import Filter, Passage
from app.decision.policy import (
    Ask,
    Gate,
    Policy,
    Reason,
    Retrieval,
    confidence_of,
    decide,
    needs_probe,
    settle,
)
from app.decision.record import DecisionRecord
from app.errors import (
    NoPassages,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.explore import Budget, DiceExplorer
from app.ports import Turn
from app.question import Question
from tests.fakes.artifacts import TAU_ABSTAIN, FixedGate, a_line, an_artifact, an_uncertified_fit
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gateway import filled
from tests.fakes.reader import FakeReader
from tests.fakes.retriever import FakeRetriever

ASKED = "What is the capital of France?"
# Closed-book probabilities of every region of the default thresholds: 0.25 abstain, 0.5 five, 0.75 one.
HOPELESS, UNCERTAIN, CONFIDENT = 0.125, 0.375, 0.875


def down() -> UpstreamUnavailable:
    """What a retriever raises that is not there."""
    return UpstreamUnavailable("vectors", "vectors are down")


class FakeClock:
    """Time that passes only when told to."""

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

    gate: Gate
    clock: FakeClock = field(default_factory=FakeClock)
    reader: FakeReader = field(default_factory=FakeReader)
    embedder: TimedEmbedder = field(default_factory=TimedEmbedder)
    retriever: TimedRetriever = field(default_factory=TimedRetriever)
    notebook: Notebook = field(default_factory=Notebook)

    def __post_init__(self) -> None:
        self.embedder.clock = self.retriever.clock = self.clock
        self.reader.before = lambda prompt: self.clock.spend(100 + 20 * len(prompt.passages))

    def knows(self, p: float, *, k1: float = 0.9, k5: float = 0.9) -> None:
        """Make the closed-book answer sure to the degree p, and those from passages to k1 and k5."""
        self.reader.says(ASKED, "Paris", k=0, sure=p)
        self.reader.says(ASKED, "It is Franville", k=1, sure=k1)
        self.reader.says(ASKED, "Franville it is", k=5, sure=k5)

    async def answer(self, *, where: Filter | None = None, collection: str = "demo", **ask: Any) -> DecisionRecord:
        """Ask the question, and check what holds of every answered one."""
        seen = len(self.notebook.records)
        ask = {"filtered": where is not None} | ask
        record = await self.answerer().answer(Question(ASKED, collection, 24, Ask(**ask), where, {"team": "x"}))
        assert self.notebook.records[seen:] == [record]
        return record

    def answerer(self, **more: Any) -> Answerer:
        return Answerer(
            reader=self.reader,
            embedder=self.embedder,
            retriever=self.retriever,
            gatekeeper=FixedGate(self.gate),
            observers=(self.notebook,),
            clock=self.clock,
            **more,
        )


async def a_world(p: float = UNCERTAIN, *, gate: Gate | None = None, **sure: float) -> World:
    """A world with a calibrator and a filled collection, in which the probe is right with probability p."""
    world = World(Gate(an_artifact()) if gate is None else gate)
    await filled(world.retriever, world.embedder)
    world.knows(p, **sure)
    return world


UNCALIBRATED = Gate(None)


def uncertified(**changes: Any) -> Artifact:
    """An artifact with thresholds that nothing vouches for."""
    return an_artifact(policies={"graded": an_uncertified_fit(), "binary": an_uncertified_fit(0.625, 0.625)}, **changes)


# What is left where passages were wanted and none could be had: the action, or the error.
ANSWERS, ABSTAINS = "k0", "abstain"
REFUSES, FINDS_NONE = UpstreamUnavailable, NoPassages
FALLBACKS = {
    # (found nothing, required, may abstain): not calibrated, p0 below tau_abstain, p0 above it
    (False, True, True): (REFUSES, REFUSES, REFUSES),
    (False, True, False): (REFUSES, REFUSES, REFUSES),
    (False, False, True): (REFUSES, ABSTAINS, ANSWERS),
    (False, False, False): (REFUSES, REFUSES, ANSWERS),
    (True, True, True): (ABSTAINS, ABSTAINS, ABSTAINS),
    (True, True, False): (FINDS_NONE, FINDS_NONE, FINDS_NONE),
    (True, False, True): (FINDS_NONE, ABSTAINS, ANSWERS),
    (True, False, False): (FINDS_NONE, FINDS_NONE, ANSWERS),
}
CALIBRATIONS = {"not calibrated": None, "hopeless": HOPELESS, "fair": UNCERTAIN}


@pytest.mark.parametrize("policy", [Policy.GRADED, Policy.ALWAYS])
@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize(("found_nothing", "required", "abstain"), FALLBACKS)
async def test_the_fallback_table(
    calibration: str, policy: Policy, *, found_nothing: bool, required: bool, abstain: bool
) -> None:
    """Without passages the gateway answers, abstains or refuses by the design's table, whoever asked for them."""
    p = CALIBRATIONS[calibration]
    world = await a_world(p or UNCERTAIN, gate=UNCALIBRATED if p is None else None)
    world.retriever.fail_with = None if found_nothing else down()
    asked: dict[str, Any] = {
        "where": {"lang": "tlh"} if found_nothing else None,
        "retrieval": Retrieval.REQUIRED if required else Retrieval.AUTO,
        "abstain": abstain,
        "policy": policy,
    }
    expected = FALLBACKS[found_nothing, required, abstain][list(CALIBRATIONS).index(calibration)]
    if expected in {REFUSES, FINDS_NONE}:
        with pytest.raises(expected):
            await world.answer(**asked)
        assert world.notebook.records == []
        return
    record = await world.answer(**asked)
    assert record.action == expected
    assert record.k == 0
    assert record.citations == ()
    assert record.read_usage is None
    assert record.reason is (Reason.NO_PASSAGES if found_nothing else Reason.RETRIEVAL_FAILED)
    assert record.failure == (None if found_nothing else ("vectors", "unavailable"))
    # Nobody pays for a probe whose answer could not be given anyway.
    assert record.confidence == (None if required and policy is Policy.ALWAYS else p)


async def test_a_bypass_lets_a_small_share_meet_the_gate() -> None:
    """While the gate is bypassed, the others read the fallback without a probe; by dice, not in turn."""
    world = await a_world(CONFIDENT)
    answerer = world.answerer(bypassed=lambda: True, dice=random.Random(7))
    reasons = [(await answerer.answer(Question(ASKED, "demo", 24))).reason for _ in range(300)]
    dice = random.Random(7)
    expected = []
    for _ in range(300):
        expected.append(Reason.CONFIDENT if dice.random() < WATCH else Reason.BYPASSED)
        dice.random()  # whether feedback is wanted
    assert reasons == expected
    assert set(reasons) == {Reason.CONFIDENT, Reason.BYPASSED}


async def test_a_share_of_answers_is_drawn_for_feedback() -> None:
    """As many as the share says, by dice that know nothing of the answer; none by default."""
    world = await a_world(CONFIDENT)
    answerer = world.answerer(solicit_share=0.25, dice=random.Random(7))
    drawn = [(await answerer.answer(Question(ASKED, "demo", 24))).solicited for _ in range(400)]
    expected = random.Random(7)
    assert drawn == [expected.random() < 0.25 for _ in range(400)]
    assert not (await world.answer()).solicited


async def test_a_withheld_answer_is_not_drawn_for_feedback() -> None:
    """There is nothing to judge where nothing was said."""
    world = await a_world(HOPELESS, k5=HOPELESS)
    record = await world.answerer(solicit_share=1.0).answer(Question(ASKED, "demo", 24))
    assert (record.action, record.solicited) == ("abstain", False)


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
    """What was spent in vain is not hidden."""
    world = await a_world(UNCERTAIN)
    world.retriever.fail_with = down()
    record = await world.answer()
    assert record.timings.search == pytest.approx(3)
    assert record.retrieval_calls == 1
    assert record.timings.read is None


async def test_only_passages_that_were_really_read_are_cited() -> None:
    """A passage that did not fit the reader's context was not read, so it is not cited."""
    world = await a_world(UNCERTAIN)
    world.reader = FakeReader(context_chars=130)
    world.reader.says(ASKED, "Paris", k=0, sure=UNCERTAIN)
    record = await world.answer()
    given = world.reader.prompts[-1].passages
    assert len(given) == record.k == 5
    assert 0 < len(record.citations) < 5
    assert [citation.id for citation in record.citations] == [passage.id for passage in given][: len(record.citations)]


async def test_a_missing_confidence_never_abstains() -> None:
    """Without conf5 an answer from five passages is given, with no confidence: not measured is not low."""
    gate = Gate(an_artifact(calibrators={0: a_line()}))
    record = await (await a_world(UNCERTAIN, gate=gate, k5=0.0)).answer()
    assert (record.action, record.confidence) == ("k5", None)


async def test_a_confidence_equal_to_the_threshold_has_reached_it() -> None:
    """The answer is withheld below tau_abstain, not at it."""
    record = await (await a_world(UNCERTAIN, k5=TAU_ABSTAIN)).answer()
    assert (record.action, record.confidence) == ("k5", TAU_ABSTAIN)


async def test_no_record_of_a_question_that_failed() -> None:
    """Its error goes to the caller, and no observer hears of it."""
    world = await a_world(UNCERTAIN)
    world.reader.fail_with = UpstreamTimeout("reader", "slow")
    with pytest.raises(UpstreamTimeout):
        await world.answer()
    assert world.notebook.records == []


async def test_every_observer_gets_the_record_once() -> None:
    """Two observers see the same one record of a question, and it is the one returned."""
    world = await a_world(UNCERTAIN)
    first, second = Notebook(), Notebook()
    answerer = Answerer(
        reader=world.reader,
        embedder=world.embedder,
        retriever=world.retriever,
        gatekeeper=FixedGate(world.gate),
        observers=(first, second),
    )
    record = await answerer.answer(Question(ASKED, "demo", 24))
    assert first.records == second.records == [record]
    assert (await answerer.answer(Question(ASKED, "demo", 24))).id != record.id


def replayed(record: DecisionRecord, gate: Gate) -> tuple[int, Reason, str]:
    """Decide again from what was recorded, without a reader, a search or a clock."""
    ask = Ask(record.policy, record.retrieval, record.abstain, record.filtered)
    decision = decide(ask, gate, record.signals)
    k = decision.k
    confidence = decision.p0 if k == 0 else confidence_of(gate.artifact, k, record.read_signals)
    assert confidence == record.confidence
    withheld = settle(ask, gate, confidence)
    reason = Reason.LOW_CONFIDENCE if withheld else decision.reason
    return k, reason, "abstain" if withheld else f"k{k}"


GATES = {
    "certified": Gate(an_artifact()),
    "uncertified": Gate(uncertified()),
    "allowed": Gate(uncertified(), allow_uncertified=True),
    "bypassed": Gate(an_artifact(), bypassed=True),
    "revoked": Gate(an_artifact(), revoked=True),
    "uncalibrated": UNCALIBRATED,
}


@pytest.mark.parametrize("gate", GATES)
async def test_replay(gate: str) -> None:
    """From its signals and the same gate alone, every record decides again to its k, its reason and its action."""
    sureness = [0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9]
    asks = [
        {"policy": policy, "retrieval": retrieval, "abstain": abstain}
        for policy, retrieval, abstain in itertools.product(Policy, Retrieval, (True, False))
        if (policy, retrieval) not in {(Policy.ALWAYS, Retrieval.FORBIDDEN), (Policy.NEVER, Retrieval.REQUIRED)}
    ]
    world = await a_world(gate=GATES[gate])
    seen = set()
    for p, ask in itertools.product(sureness, asks):
        world.knows(p, k1=1.0 - p, k5=(p * 7) % 1.0)
        record = await world.answer(**ask)
        assert replayed(record, world.gate) == (record.k, record.reason, record.action)
        assert (record.probe_usage is not None) == needs_probe(Ask(**ask), world.gate)
        seen.add(record.reason)
    assert len(seen) > 2


EARLIER = (Turn("system", "Be brief."), Turn("user", "And in Italy?"), Turn("assistant", "Rome."))


class Dice:
    """Shadows that would draw every question."""

    def draws(self, ask: Ask, *, collection: str, max_tokens: int) -> bool:
        return True

    def run(self, identifier: str, text: str) -> None:
        self.ran = identifier


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("policy", Policy)
async def test_a_conversation_is_decided_by_no_artifact(gate: str, policy: Policy) -> None:
    """Whatever is in force: no confidence, no certificate, no chance at work, and no shadow run."""
    world = await a_world(CONFIDENT, gate=GATES[gate])
    explorer = DiceExplorer(1.0, Budget(1.0))
    answerer = world.answerer(explorer=explorer, shadows=Dice())
    record = await answerer.answer(Question(ASKED, "demo", 24, Ask(policy), earlier=EARLIER))
    assert record.k == (0 if policy is Policy.NEVER else 5)
    if policy not in {Policy.NEVER, Policy.ALWAYS}:
        assert record.reason is Reason.NOT_CALIBRATED
    assert (record.confidence, record.p_closed_book, record.calibrator) == (None, None, None)
    assert (record.certified, record.explored, record.propensities, record.shadowed) == (False, False, None, False)
    assert [prompt.earlier for prompt in world.reader.prompts] == [EARLIER]
    assert world.embedder.queries == ([] if policy is Policy.NEVER else [f"{ASKED}\nAnd in Italy?"])
    alone = await answerer.answer(Question(ASKED, "demo", 24, Ask(policy)))
    assert alone.shadowed


async def test_the_record_says_whether_the_answer_was_cut() -> None:
    """Of the answer that is given: the probe's where nothing was read, else the reading's."""
    world = await a_world(CONFIDENT)
    for policy, k in ((Policy.NEVER, 0), (Policy.ALWAYS, 5)):
        world.reader.says(ASKED, "one two three", k=k, sure=CONFIDENT)
        for most, cut in ((24, False), (2, True)):
            record = await world.answerer().answer(Question(ASKED, "demo", most, Ask(policy)))
            assert record.cut_off is cut
    world.reader.says(ASKED, "one two three", k=0, sure=UNCERTAIN)
    world.reader.says(ASKED, "one", k=5, sure=CONFIDENT)
    assert not (await world.answerer().answer(Question(ASKED, "demo", 3))).cut_off
