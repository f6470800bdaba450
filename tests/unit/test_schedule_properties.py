"""Whatever runs beside the probe, and whichever is faster: the same answer, for the same reason."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.answer import Answerer
from app.decision.artifact import Early, Thresholds
from app.decision.calibrator import MinMax
from app.decision.forecast import Plan, Schedule
from app.decision.foresight import SCORE, Foresight, Scorer
from app.decision.mandatory import compile_rules
from app.decision.policy import Ask, Gate, Policy, Retrieval
from app.decision.record import Timings
from app.errors import FetchwiseError, UpstreamError, UpstreamUnavailable
from app.ports import Filter, Generation, Passage, Prompt
from app.question import Question
from tests.fakes.artifacts import a_fit, a_line, an_abstention, an_artifact
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gateway import filled
from tests.fakes.reader import FakeReader, surely
from tests.fakes.retriever import FakeRetriever

from .test_schedules import Heard, OneGate

ASKED = "What is the capital of France?"
SAID = {0: "It may well be Paris", 1: "It is Franville now", 5: "Franville it is"}
QUARTERS = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


class SlowReader(FakeReader):
    """Takes so many turns of the event loop for an answer with so many passages."""

    turns: dict[int, int]

    async def _answer(self, prompt: Prompt, max_tokens: int) -> Generation:
        for _ in range(self.turns[len(prompt.passages)]):
            await asyncio.sleep(0)
        return await super()._answer(prompt, max_tokens)


class SlowRetriever(FakeRetriever):
    """The same for searches."""

    turns = 0

    async def search(
        self, collection: str, vector: Sequence[float], *, limit: int, where: Filter | None = None
    ) -> list[Passage]:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        return await super().search(collection, vector, limit=limit, where=where)


@dataclass(frozen=True)
class World:
    """Everything that an answer may depend on, and how long each part takes, on which it may not."""

    sure: dict[int, float]
    gate: Gate
    ask: Ask
    listened: bool
    found: bool
    rules: tuple[str, ...]
    down: dict[str, UpstreamError | None]
    context_chars: int
    turns: dict[int, int]
    search_turns: int

    async def answer(self, schedule: Schedule) -> tuple[Any, ...]:
        """What it comes to: the part of the record that may not depend on the schedule, or the kind of failure."""
        reader, embedder, retriever = SlowReader(context_chars=self.context_chars), FakeEmbedder(), SlowRetriever()
        reader.turns, retriever.turns = self.turns, self.search_turns
        if self.found:
            await filled(retriever, embedder)
        else:
            await retriever.create("demo", dimension=embedder.dimension)
        for k, text in SAID.items():
            reader.says(ASKED, text, k=k, tokens=tuple(surely(self.sure[k]) for _ in text.split()))
        embedder.fail_with, retriever.fail_with = self.down["embedder"], self.down["vectors"]
        answerer = Answerer(
            reader=reader,
            embedder=embedder,
            retriever=retriever,
            gatekeeper=OneGate(self.gate),
            plan=lambda: Plan(schedule),
            mandatory=compile_rules(self.rules),
        )
        heard = Heard()
        try:
            record = await answerer.answer(Question(ASKED, "demo", 24, self.ask), heard if self.listened else None)
        except FetchwiseError as error:
            return (type(error), heard.said[:2])
        # What it cost and how it was come by may differ, and so may the moments at which pieces were heard.
        same = replace(
            record,
            id="",
            timings=Timings(0.0),
            schedule="",
            wasted_usage=None,
            retrieval_calls=0,
            passages_fetched=0,
        )
        return (same, heard.said[:1], "".join(heard.said[1:]))


def _foresight() -> Foresight:
    dimension = FakeEmbedder().dimension
    # One point for the one capital behind the first word: a P(right) of a quarter.
    scorer = Scorer((*[0.0] * dimension, 0.25), 0.0, MinMax(SCORE, 0.0, 1.0))
    return Foresight(FakeEmbedder().name, dimension, ("capitals",), scorer, scorer)


@st.composite
def gates(draw: st.DrawFn) -> Gate:
    """Nothing calibrated, or any thresholds, with and without early ones."""
    if draw(st.integers(0, 9)) == 0:
        return Gate()
    tau1, tau0 = sorted((draw(QUARTERS), draw(QUARTERS)))
    early = None
    if draw(st.integers(0, 2)) == 0:
        exits = tuple((length, draw(QUARTERS)) for length in (1, 2) if draw(st.booleans()))
        early = Early(draw(QUARTERS), draw(QUARTERS), exits, draw(st.sampled_from([1, 5])))
    fit = replace(a_fit(tau0, tau1), thresholds=Thresholds(tau0, tau1, early), escalate=draw(st.booleans()))
    artifact = an_artifact(
        policies={"graded": fit, "binary": a_fit(tau0, tau0)},
        abstention=an_abstention(tau=draw(QUARTERS)),
        fallback_action=draw(st.sampled_from([1, 5])),
        foresight=_foresight(),
        exits={1: a_line(), 2: a_line()},
        identity=None,
    )
    return Gate(artifact, revoked=draw(st.integers(0, 9)) == 0, bypassed=draw(st.integers(0, 9)) == 0)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Any of them; most are well, so that there is something to run beside the probe."""
    retrieval = draw(st.sampled_from([*[Retrieval.AUTO] * 4, *Retrieval]))
    policy = draw(st.sampled_from([*[Policy.GRADED] * 8, *Policy]))
    contradicting = {(Policy.ALWAYS, Retrieval.FORBIDDEN), (Policy.NEVER, Retrieval.REQUIRED)}
    if (policy, retrieval) in contradicting:
        retrieval = Retrieval.AUTO
    down: dict[str, UpstreamError | None] = {
        name: UpstreamUnavailable(name, "down") if draw(st.integers(0, 9)) == 0 else None
        for name in ("embedder", "vectors")
    }
    return World(
        sure={k: draw(QUARTERS) for k in SAID},
        gate=draw(gates()),
        ask=Ask(policy, retrieval, abstain=draw(st.booleans()), filtered=False),
        listened=draw(st.booleans()),
        found=draw(st.integers(0, 9)) > 0,
        rules=("capital",) if draw(st.integers(0, 9)) == 0 else (),
        down=down,
        # Five passages take some two hundred characters: a few worlds have no room for all of them.
        context_chars=draw(st.sampled_from([8000, 8000, 200, 100])),
        turns={k: draw(st.integers(0, 6)) for k in SAID},
        search_turns=draw(st.integers(0, 6)),
    )


@settings(max_examples=500, deadline=None)
@given(world=worlds())
def test_the_schedule_decides_nothing(world: World) -> None:
    """Serial, overlap and race give the same answer, action, reason, confidence and everything it rests on."""

    async def answers() -> list[tuple[Any, ...]]:
        return [await world.answer(schedule) for schedule in Schedule]

    serial, overlap, race = asyncio.run(answers())
    assert overlap == serial
    assert race == serial
