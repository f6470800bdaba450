"""Any rungs, from end to end: collected with fakes, refitted, published, loaded, and walked by the gateway's loop."""

import random
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from app.answer.answer import Answerer
from app.answer.run import Upstreams
from app.calibrators.store import ArtifactStore
from app.core.artifact import Artifact
from app.core.available import Passage
from app.core.corpus_stats import CorpusStats
from app.core.effective_policy import Ladder, Sampled, resolve
from app.core.policy import AskOptions, Retrieval
from app.core.question import Question
from app.core.record import DecisionRecord
from app.offline.builder import load
from app.offline.collect import Collector, collect
from app.offline.questions import LabelledQuestion
from app.offline.refit.climb import answers_of, graded_states, purchases, states
from app.offline.refit.follow import serve
from app.offline.refit.holdout import publish
from app.offline.refit.options import Options
from app.offline.refit.refit import refit
from app.offline.table import Outcomes
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gateway import Fakes, filled
from tests.fakes.reader import FakeReader
from tests.fakes.retriever import FakeRetriever

RUNGS = [(0, 2, 8), (0, 1, 5, 15)]
QUESTIONS = [
    LabelledQuestion(f"q{n}", f"What is the secret of item{n}?", (f"gold{n}",), f"item{n}") for n in range(300)
]
OPTIONS = Options("rungs", "2026-01-01T00:00:00Z", source="outcomes.jsonl", epsilon=0.05, prices=(0.0, 0.1, 0.3, 1.0))


class World(NamedTuple):
    """A table that was collected with fakes, and the fakes."""

    ks: tuple[int, ...]
    fakes: Fakes
    table: Outcomes


async def collected(ks: tuple[int, ...], folder: Path) -> World:
    """More passages help more often; a wrong answer is seldom in a passage, and sureness says a little."""
    reader, embedder, vectors = Fakes(FakeReader(context_chars=10**6), FakeEmbedder(), FakeRetriever())
    chance = random.Random(5)
    for number, one in enumerate(QUESTIONS):
        for place, k in enumerate(ks):
            right = chance.random() < 0.4 + 0.08 * place
            wrong = f"decoy{number}" if chance.random() < 0.1 else f"dross{number}"
            sure = min(0.99, max(0.05, chance.gauss(0.7 if right else 0.5, 0.2)))
            reader.says(one.question, f"gold{number}" if right else wrong, k=k, sure=sure)
    corpus = [
        Passage(f"p{n}", f"item{n}", f"The secret of item{n} is gold{n} and not decoy{n}.")
        for n in range(len(QUESTIONS))
    ]
    await filled(vectors, embedder, "demo", corpus)
    identity = replace(await reader.identify(), embedder=embedder.name, collection="demo", max_tokens=24, ks=ks)
    collector = Collector(reader=reader, embedder=embedder, retriever=vectors, identity=identity, ks=ks)
    report = await collect(QUESTIONS, folder / "outcomes.jsonl", collector, concurrency=4)
    assert not report.failed
    return World(ks, Fakes(reader, embedder, vectors), load(folder / "outcomes.jsonl"))


def published(world: World, options: Options, folder: Path) -> tuple[Artifact, CorpusStats]:
    """Refit, publish, and load what is current."""
    artifact, summary = refit(world.table, options)
    assert publish(artifact, summary.stats, folder, test=summary.test).current
    store = ArtifactStore(folder)
    version = store.current()
    assert version == artifact.version
    loaded = store.load(version)
    return loaded, store.load_stats(loaded)


async def answered(
    world: World, artifact: Artifact, stats: CorpusStats, ask: AskOptions, explore: float | None = None
) -> list[DecisionRecord]:
    """Every sixth question through the loop of the gateway."""
    sampled = Sampled(0.1, explore)
    answerer = Answerer(
        Upstreams(world.fakes.reader, world.fakes.embedder, world.fakes.vectors),
        lambda question, drawn: resolve(question.options, artifact, ks=artifact.ks, stats=stats, sampled=drawn),
        draw=lambda _: sampled,
    )
    asked = [Question(one.id, one.question, "demo", 24, ask) for one in QUESTIONS[::6]]
    return [await answerer.answer(question) for question in asked]


@pytest.mark.parametrize("ks", RUNGS, ids=str)
async def test_rungs_are_data(ks: tuple[int, ...], tmp_path: Path) -> None:
    """Both goals certify, every state has its heads, and the loop answers as the job did, with these k alone."""
    world = await collected(ks, tmp_path)
    assert world.table.ks == ks
    for goal in ("gain", "save"):
        options = replace(OPTIONS, goal=goal, budget=0.9)
        artifact, stats = published(world, options, tmp_path / goal)
        assert artifact.ks == ks
        assert artifact.fallback_k in ks[1:]
        assert artifact.ladder is not None
        assert artifact.ladder.certificate is not None, artifact.ladder.uncertified_reason
        for state in (*states(ks), *graded_states(ks)):
            assert set(answers_of(state)) <= set(artifact.heads.get(state, {})), state
        assert set(artifact.heads["search+k0"]) == set(ks)
        assert all(set(artifact.ladder.values.get(state, {})) == set(purchases(state, ks)) for state in states(ks))
        records = await answered(world, artifact, stats, AskOptions(abstain=False))
        assert all(isinstance(record.policy.kind, Ladder) for record in records)
        expected = serve(world.table, artifact, stats.centroids)
        assert {record.reply.k for record in records} <= set(ks)
        inside = [number for number, record in enumerate(records) if record.reply.in_scope]
        assert len(inside) > 0.9 * len(records)
        # The table keeps seven digits.
        row_of = {identifier: row for row, identifier in enumerate(world.table.ids)}
        rows = np.array([row_of[records[number].question.id] for number in inside])
        assert [records[number].reply.k for number in inside] == expected.k[rows].tolist()
        shown = [records[number].reply.confidence for number in inside]
        assert shown == pytest.approx(expected.confidence[rows].tolist(), abs=1e-4)
        # It stops at the first answer that the passages support: right far more often than any fixed k.
        gold = {one.id: one.gold[0] for one in QUESTIONS}
        right = np.mean([record.reply.text == gold[record.question.id] for record in records])
        assert right > max(world.table.correct[k].mean() for k in ks) + 0.05
        assert len({record.reply.k for record in records}) > 1


@pytest.mark.parametrize("ks", RUNGS, ids=str)
async def test_bounds_hold_on_any_rungs(ks: tuple[int, ...], tmp_path: Path) -> None:
    """Forbidden never searches, required never gives k=0, and each k can be explored; all with a confidence."""
    world = await collected(ks, tmp_path)
    artifact, stats = published(world, replace(OPTIONS, prices=(0.1,), epsilon=0.2), tmp_path / "c")

    async def ask(retrieval: Retrieval = Retrieval.AUTO, explore: float | None = None) -> list[DecisionRecord]:
        return await answered(world, artifact, stats, AskOptions(retrieval=retrieval, abstain=False), explore)

    assert {(one.reply.k, one.searches) for one in await ask(Retrieval.FORBIDDEN)} == {(0, 0)}
    assert 0 not in {one.reply.k for one in await ask(Retrieval.REQUIRED)}
    for place, k in enumerate(ks):
        records = await ask(explore=(place + 0.5) / len(ks))
        # Out of scope the most is read, whatever was drawn.
        inside = [one.reply for one in records if one.reply.in_scope]
        assert {one.k for one in inside} <= {k}
        assert all(one.confidence is not None for one in inside)
