"""What runs beside the probe: it never decides anything, is cancelled when unwanted, and is counted."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import pytest

from app.answer import Answerer
from app.decision.artifact import Early, Thresholds
from app.decision.calibrator import MinMax
from app.decision.forecast import Plan, Schedule
from app.decision.foresight import SCORE, Foresight, Scorer
from app.decision.mandatory import compile_rules
from app.decision.policy import Action, Ask, Decision, Gate, Policy, Reason, Retrieval
from app.decision.record import DecisionRecord, Usage
from app.errors import UpstreamUnavailable
from app.ports import Filter, Passage, Prompt
from app.question import Question
from tests.fakes.artifacts import a_fit, a_line, a_variant, an_artifact
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gateway import filled
from tests.fakes.reader import FakeReader, surely
from tests.fakes.retriever import FakeRetriever

ASKED = "What is the capital of France?"
UNCERTAIN, BORDERLINE, CONFIDENT = 0.375, 0.625, 0.875


class HeldRetriever(FakeRetriever):
    """Says when a search has begun, and lets none end before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.cancelled = 0
        self.go.set()

    async def search(
        self, collection: str, vector: Sequence[float], *, limit: int, where: Filter | None = None
    ) -> list[Passage]:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().search(collection, vector, limit=limit, where=where)


class HeldReader(FakeReader):
    """Holds generations with so many passages back until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, asyncio.Event] = {}
        self.begun: dict[int, asyncio.Event] = {k: asyncio.Event() for k in (0, 1, 5)}

    async def _answer(self, prompt: Prompt, max_tokens: int) -> Any:
        self.begun[len(prompt.passages)].set()
        if (held := self.held.get(len(prompt.passages))) is not None:
            await held.wait()
        return await super()._answer(prompt, max_tokens)


class CountingEmbedder(FakeEmbedder):
    """Counts the questions that it embeds."""

    calls = 0

    async def embed_query(self, text: str) -> Sequence[float]:
        self.calls += 1
        return await super().embed_query(text)


class Heard:
    """A listener that writes everything down."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def decided(self, decision: Decision) -> None:
        self.said.append(f"k{decision.k}")

    def found(self, passages: Sequence[Passage]) -> None:
        self.said.append(f"{len(passages)} passages")

    def token(self, text: str) -> None:
        self.said.append(text)


class OneGate:
    """A gatekeeper of one gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def gate(self, *, collection: str, max_tokens: int) -> Gate:
        return self._gate


class World:
    """An Answerer over fakes that can be held."""

    def __init__(self, schedule: Schedule, gate: Gate | None = None, **more: Any) -> None:
        self.reader, self.embedder, self.retriever = HeldReader(), CountingEmbedder(), HeldRetriever()
        self.answerer = Answerer(
            reader=self.reader,
            embedder=self.embedder,
            retriever=self.retriever,
            gatekeeper=OneGate(Gate(an_artifact()) if gate is None else gate),
            plan=more.pop("plan", lambda: Plan(schedule)),
            **more,
        )

    async def filled(self, p: float) -> Self:
        """Put passages in, and make the closed-book answer sure to the degree p."""
        await filled(self.retriever, self.embedder)
        self.reader.says(ASKED, "Paris", k=0, sure=p)
        self.reader.says(ASKED, "It is Franville", k=1)
        self.reader.says(ASKED, "Franville it is", k=5)
        return self

    async def answer(self, listener: Heard | None = None, **ask: Any) -> DecisionRecord:
        """Ask, and leave nothing running."""
        record = await self.answerer.answer(Question(ASKED, "demo", 24, Ask(**ask)), listener)
        await asyncio.gather(*ahead(), return_exceptions=True)
        return record


def ahead() -> list["asyncio.Task[Any]"]:
    """What was begun beside a probe and has not ended."""
    return [task for task in asyncio.all_tasks() if task.get_name() in {"fetch ahead", "read ahead"}]


@pytest.mark.parametrize("schedule", [Schedule.OVERLAP, Schedule.RACE])
async def test_retrieval_runs_beside_the_probe(schedule: Schedule) -> None:
    """The search has begun before the probe has ended, and is asked once, for as many as could be wanted."""
    world = await World(schedule).filled(BORDERLINE)
    world.reader.held[0] = asyncio.Event()
    answering = asyncio.create_task(world.answer())
    await world.retriever.begun.wait()
    assert not answering.done()
    world.reader.held[0].set()
    record = await answering
    assert (record.action, record.k, record.schedule) == (Action.K1, 1, schedule.value)
    assert [len(record.citations), record.retrieval_calls, world.retriever.searches] == [1, 1, 1]
    assert world.embedder.calls == 1


async def test_an_unwanted_search_is_cancelled_and_counted() -> None:
    """A confident probe does not wait for the search beside it; the call was made all the same."""
    world = await World(Schedule.OVERLAP).filled(CONFIDENT)
    world.retriever.go.clear()
    world.reader.held[0] = asyncio.Event()
    answering = asyncio.create_task(world.answer())
    await world.retriever.begun.wait()
    world.reader.held[0].set()
    record = await answering
    assert (record.action, record.retrieval_calls, record.citations) == (Action.K0, 1, ())
    assert world.retriever.cancelled == 1


async def test_a_failed_search_nobody_wanted_is_nobodys_failure() -> None:
    """What is not wanted may fail: the answer stands, and no exception is left unheard."""
    world = await World(Schedule.RACE).filled(CONFIDENT)
    world.retriever.fail_with = UpstreamUnavailable("vectors", "down")
    record = await world.answer()
    assert (record.action, record.failure) == (Action.K0, None)


async def test_reading_races_the_probe() -> None:
    """Five passages are read before the probe has ended, and not again when it turns out that they are wanted."""
    world = await World(Schedule.RACE).filled(UNCERTAIN)
    world.reader.held[0] = asyncio.Event()
    answering = asyncio.create_task(world.answer())
    await world.reader.begun[5].wait()
    world.reader.held[0].set()
    record = await answering
    assert (record.action, record.answer, record.wasted_usage) == (Action.K5, "Franville it is", None)
    assert [len(prompt.passages) for prompt in world.reader.prompts] in ([0, 5], [5, 0])
    assert record.read_usage is not None


@pytest.mark.parametrize(("p", "action", "read"), [(CONFIDENT, Action.K0, []), (BORDERLINE, Action.K1, [1])])
async def test_the_loser_of_a_race_is_cancelled_upstream(p: float, action: Action, read: list[int]) -> None:
    """What the probe makes needless is given up at once, and its tokens count as wasted."""
    world = await World(Schedule.RACE).filled(p)
    world.reader.held = {0: asyncio.Event(), 5: asyncio.Event()}
    answering = asyncio.create_task(world.answer())
    await world.reader.begun[5].wait()
    world.reader.held[0].set()
    record = await answering
    assert (record.action, record.wasted_usage) == (action, Usage())
    assert world.reader.cancelled == 1
    # The cancelled one never got as far as being answered.
    assert [len(prompt.passages) for prompt in world.reader.prompts] == [0, *read]


async def test_nothing_of_a_race_is_heard_before_the_decision() -> None:
    """The answer read ahead is kept until the decision is known, then given in one go, before any of the rest."""
    world = await World(Schedule.RACE).filled(UNCERTAIN)
    world.reader.held[0] = asyncio.Event()
    heard = Heard()
    answering = asyncio.create_task(world.answer(heard, abstain=False))
    await world.reader.begun[5].wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert heard.said == []
    world.reader.held[0].set()
    await answering
    assert heard.said[:2] == ["k5", "5 passages"]
    assert "".join(heard.said[2:]) == "Franville it is"


async def test_a_race_that_is_lost_is_never_heard() -> None:
    """A confident probe's answer is all that is heard."""
    world = await World(Schedule.RACE).filled(CONFIDENT)
    heard = Heard()
    await world.answer(heard, abstain=False)
    assert heard.said == ["k0", "Paris"]


async def test_no_more_passages_than_the_policy_can_want() -> None:
    """A policy that never reads five fetches and races with one."""
    one = a_fit(0.75, 0.0)
    world = await World(Schedule.RACE, Gate(an_artifact(policies={"graded": one}))).filled(UNCERTAIN)
    record = await world.answer()
    assert (record.action, record.retrieval_calls) == (Action.K1, 1)
    assert sorted(len(prompt.passages) for prompt in world.reader.prompts) == [0, 1]


async def test_leaving_cancels_all_that_runs() -> None:
    """Whoever is not waited for any more stops the probe, the search and the read beside it."""
    world = await World(Schedule.RACE).filled(UNCERTAIN)
    world.reader.held = {0: asyncio.Event(), 5: asyncio.Event()}
    answering = asyncio.create_task(world.answer())
    await world.reader.begun[5].wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.reader.cancelled == 2
    assert ahead() == []


def early(**changes: Any) -> Gate:
    """A gate with thresholds on the question alone and on its probe's first two tokens."""
    thresholds = Thresholds(0.75, 0.5, Early(**changes))
    line = MinMax(SCORE, 0.0, 1.0)
    dimension = FakeEmbedder().dimension
    # Nothing but the text counts: one point for each capital behind the first word, and the question has one.
    scorer = Scorer((*[0.0] * dimension, 0.25), 0.0, line)
    foresight = Foresight(FakeEmbedder().name, dimension, ("capitals",), scorer, scorer)
    fit = a_fit(thresholds.tau0, thresholds.tau1)
    certain = type(fit)(**{name: getattr(fit, name) for name in fit.__slots__} | {"thresholds": thresholds})
    return Gate(
        an_artifact(policies={"graded": certain}, foresight=foresight, exits={2: a_line()}, identity=None),
    )


@pytest.mark.parametrize(("compact", "k"), [(0.25, 1), (0.5, 5)])
async def test_a_question_that_is_foreseen_is_not_probed(compact: float, k: int) -> None:
    """By the question alone, a P(right) of a quarter is below the threshold: passages are read at once."""
    world = await World(Schedule.SERIAL, early(unasked=0.5, compact=compact)).filled(CONFIDENT)
    record = await world.answer()
    assert (record.reason, record.k, record.p_closed_book, record.certified) == (Reason.FORESEEN, k, 0.25, True)
    assert [len(prompt.passages) for prompt in world.reader.prompts] == [k]
    assert (record.probe_usage, record.gated, world.embedder.calls) == (None, True, 1)


async def test_a_question_with_prospects_is_probed() -> None:
    """At the threshold it is probed, by the same certified policy, and embedded once for both purposes."""
    world = await World(Schedule.SERIAL, early(unasked=0.25)).filled(UNCERTAIN)
    record = await world.answer()
    assert (record.reason, record.certified, world.embedder.calls) == (Reason.UNCERTAIN, True, 1)


@pytest.mark.parametrize(("unasked", "k"), [(0.5, 5), (0.125, 1)])
async def test_where_no_probe_could_change_anything_the_question_alone_decides(unasked: float, k: int) -> None:
    """The hopeless read five and all others one, certified; nobody is probed."""
    gate = early(unasked=unasked, compact=1.0)
    assert gate.artifact is not None
    fit = gate.artifact.policies["graded"]
    never = replace(fit, thresholds=replace(fit.thresholds, tau0=2.0, tau1=0.0))
    world = await World(Schedule.RACE, Gate(replace(gate.artifact, policies={"graded": never}))).filled(CONFIDENT)
    record = await world.answer()
    assert (record.reason, record.k, record.certified, record.gated) == (Reason.FORESEEN, k, True, True)
    assert record.probe_usage is None


async def test_a_plan_may_name_other_means() -> None:
    """By the variant that probes every question none is foreseen, and its own thresholds decide, certified."""
    gate = early(unasked=0.5)
    assert gate.artifact is not None
    artifact = replace(gate.artifact, variants={"whole probes": a_variant(a_fit(1.0, 0.25))})
    plan = Plan(Schedule.SERIAL, means="whole probes")
    world = await World(Schedule.SERIAL, Gate(artifact), plan=lambda: plan).filled(CONFIDENT)
    record = await world.answer()
    assert (record.reason, record.k, record.certified) == (Reason.BORDERLINE, 1, True)
    assert record.thresholds == Thresholds(1.0, 0.25)


async def test_without_its_embedding_a_question_is_probed() -> None:
    """An embedder that is down costs the certificate, and no more."""
    world = await World(Schedule.SERIAL, early(unasked=0.5)).filled(CONFIDENT)
    world.embedder.fail_with = UpstreamUnavailable("embedder", "down")
    record = await world.answer()
    assert (record.reason, record.action, record.certified) == (Reason.CONFIDENT, Action.K0, False)


LONG = "one two three four five six"


@pytest.mark.parametrize("schedule", Schedule)
async def test_a_hopeless_probe_is_cut_short(schedule: Schedule) -> None:
    """Once the third token shows that the answer goes on, the first two decide, and the probe stops upstream."""
    world = await World(schedule, early(exits=((2, 0.5),), exit_k=5)).filled(UNCERTAIN)
    world.reader.says(ASKED, LONG, k=0, tokens=tuple(surely(0.25) for _ in LONG.split()))
    record = await world.answer()
    assert (record.reason, record.k, record.p_closed_book) == (Reason.HOPELESS, 5, 0.25)
    assert record.certified
    assert record.probe_usage is not None
    assert record.probe_usage.completion_tokens == 3
    # They are of a whole answer wherever they are kept.
    assert record.signals == {}
    assert world.reader.cancelled >= 1


@pytest.mark.parametrize(("answer", "sure"), [("one two", 0.25), (LONG, 0.5)])
async def test_a_probe_is_judged_whole_otherwise(answer: str, sure: float) -> None:
    """An answer that ends where the exit looks, or that is sure enough there, is judged by all of its tokens."""
    world = await World(Schedule.SERIAL, early(exits=((2, 0.5),), exit_k=5)).filled(UNCERTAIN)
    world.reader.says(ASKED, answer, k=0, tokens=tuple(surely(sure) for _ in answer.split()))
    record = await world.answer()
    assert record.reason is not Reason.HOPELESS
    assert record.p_closed_book == sure
    assert record.signals


@pytest.mark.parametrize("ask", [{}, {"policy": Policy.UTILITY}, {"retrieval": Retrieval.REQUIRED}])
async def test_an_operators_rule_reads_without_a_probe(ask: dict[str, Any]) -> None:
    """A question that holds one of the operator's phrases is answered from passages, and not as certified."""
    world = await World(Schedule.SERIAL, mandatory=compile_rules(["Capital of"])).filled(CONFIDENT)
    record = await world.answer(**ask)
    assert (record.reason, record.k, record.certified) == (Reason.RETRIEVAL_REQUIRED, 1, False)
    assert [len(prompt.passages) for prompt in world.reader.prompts] == [1]


async def test_a_rule_does_not_overrule_the_asker() -> None:
    """Who forbids passages gets none."""
    world = await World(Schedule.SERIAL, mandatory=compile_rules(["capital"])).filled(CONFIDENT)
    record = await world.answer(retrieval=Retrieval.FORBIDDEN)
    assert (record.reason, record.k) == (Reason.RETRIEVAL_FORBIDDEN, 0)


async def test_a_bypass_still_asks_the_gate_now_and_then() -> None:
    """Most questions go without it and say so; a few meet it, or nobody would notice that it pays again."""
    world = await World(
        Schedule.SERIAL, plan=lambda: Plan(Schedule.OVERLAP, bypass=True), dice=random.Random(7)
    ).filled(CONFIDENT)
    reasons = [(await world.answer()).reason for _ in range(500)]
    assert set(reasons) == {Reason.BYPASSED, Reason.CONFIDENT}
    assert 1 <= reasons.count(Reason.CONFIDENT) <= 30
