"""The live half of the schedules benchmark: its order, its statistics and bars, and the systems it compares."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import httpx
import numpy as np
import pytest
import pytest_asyncio

from app.decision.artifact import Artifact, Early
from app.decision.record import Timings, Usage
from app.parts import Parts
from app.ports import Passage
from app.refit.collect import Labelled, read_questions
from app.refit.split import split
from app.refit.table import load
from app.settings import Settings
from bench.schedules.live_asking import as_answer, ask_all, held_out, of_train, warm_up
from bench.schedules.live_figures import Answer, bars, compare, figures
from bench.schedules.live_order import belt, padding
from bench.schedules.live_readers import Reading
from bench.schedules.live_report import draw, main_table, stage_table
from bench.schedules.live_systems import System, label_of, open_systems
from bench.schedules.verdicts import bar_table
from tests.fakes.artifacts import a_fit, an_artifact, an_early_artifact
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.reader import FakeReader
from tests.fakes.records import a_record, a_skip
from tests.fakes.retriever import FakeRetriever

REPO = Path(__file__).parents[2]
SYSTEMS = ["a", "b", "c", "d"]
IDLE = "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\nllamacpp:prompt_tokens_cached_total {cached}\n"


def an_answer(system: str, question: str, **changes: object) -> Answer:
    """A right answer from one passage in 100 ms."""
    answer = Answer(
        system=system,
        question=question,
        group=question,
        right=True,
        ms=100.0,
        k=1,
        reason="borderline",
        schedule="serial",
        tokens=150,
        wasted_tokens=0,
        cached_tokens=20.0,
        calls_used=1,
        calls_wasted=0,
        stages={"embed": 10.0, "search": 5.0, "read": 85.0},
    )
    return replace(answer, **changes)


@pytest.mark.parametrize("lag", [1, 3])
def test_the_belt_treats_all_systems_alike(lag: int) -> None:
    """Each answers each question once; a step has all of them, on different questions; nothing comes back early."""
    cells = list(belt(40, SYSTEMS, lag=lag, rng=Random(1)))
    assert len(cells) == (40 + padding(4, lag)) * 4
    assert Counter(cell for cell in cells if 0 <= cell[0] < 40) == Counter(
        {(question, system): 1 for question in range(40) for system in SYSTEMS}
    )
    for start in range(0, len(cells), 4):
        assert len({question for question, _ in cells[start : start + 4]}) == 4
    for question in range(40):
        places = [place for place, (asked, _) in enumerate(cells) if asked == question]
        # The next system is asked it `lag` steps later, one place further in the step.
        assert all(later - sooner == 4 * lag + 1 for sooner, later in pairwise(places))


def test_every_system_comes_first_as_often() -> None:
    """Orders are random and differ from question to question."""
    cells = list(belt(2000, SYSTEMS, lag=1, rng=Random(1)))
    first = {}
    for question, system in cells:
        first.setdefault(question, system)
    counts = Counter(first[question] for question in range(2000))
    assert all(400 < counts[system] < 600 for system in SYSTEMS)


def test_figures_by_hand() -> None:
    """Groups weigh alike: two phrasings of one fact are half each."""
    answers = [
        an_answer("x", "q1", group="one", right=True, ms=100.0),
        an_answer("x", "q2", group="one", right=False, ms=300.0),
        an_answer("x", "q3", group="two", right=True, ms=400.0, k=0, stages={"probe": 400.0}),
    ]
    answers += [replace(answer, system="always-k5", ms=800.0, right=True, k=5) for answer in answers]
    own = figures(compare(answers), "x")
    assert own["accuracy"]["value"] == pytest.approx(0.75)
    assert own["mean_ms"]["value"] == pytest.approx(300.0)
    assert (own["p50_ms"], own["n"], own["calls_used"]) == (300.0, 3, 1.0)
    assert own["k"] == pytest.approx({"k0": 1 / 3, "k1": 2 / 3, "k5": 0.0})
    assert own["stages"]["probe"] == pytest.approx({"share": 1 / 3, "mean_ms": 400.0})
    assert own["stages"]["read"] == pytest.approx({"share": 2 / 3, "mean_ms": 85.0})
    assert own["against"]["always-k5"]["latency"]["value"] == pytest.approx(300.0 / 800.0)
    assert own["against"]["always-k5"]["accuracy"]["value"] == pytest.approx(-0.25)


def test_intervals_are_paired() -> None:
    """Questions differ a hundredfold, systems by a tenth on each: the ratio is known all the same."""
    rng = np.random.default_rng(3)
    slow = rng.lognormal(5.0, 1.5, 200)
    answers = [an_answer("always-k5", f"q{i}", ms=float(ms)) for i, ms in enumerate(slow)]
    answers += [an_answer("x", f"q{i}", ms=float(ms) * 0.9) for i, ms in enumerate(slow)]
    own = figures(compare(answers), "x")
    ratio, mean = own["against"]["always-k5"]["latency"], own["mean_ms"]
    assert ratio["low"] == pytest.approx(0.9)
    assert ratio["high"] == pytest.approx(0.9)
    assert mean["high"] > 1.2 * mean["low"]


def test_an_interval_has_the_truth_in_it_as_often_as_it_says() -> None:
    """Of 300 samples of 120 groups, about 95 % of the intervals hold the true difference of accuracy."""
    rng, held = np.random.default_rng(5), 0
    for _ in range(300):
        better, worse = rng.random((2, 120)) < np.array([[0.7], [0.6]])
        answers = [an_answer("x", f"q{i}", right=bool(right)) for i, right in enumerate(better)]
        answers += [an_answer("always-k1", f"q{i}", right=bool(right)) for i, right in enumerate(worse)]
        found = compare(answers, resamples=300).more_right("x", "always-k1")
        held += found["low"] <= 0.1 <= found["high"]
    assert 0.90 < held / 300 < 0.98


def test_what_is_not_side_by_side_is_refused() -> None:
    """A system that missed a question, or answered it twice."""
    with pytest.raises(ValueError, match="1 of 2"):
        compare([an_answer("x", "q1"), an_answer("y", "q1"), an_answer("y", "q2")])
    with pytest.raises(ValueError, match="twice"):
        compare([an_answer("x", "q1"), an_answer("x", "q1")])


@pytest.mark.parametrize(
    ("right", "ms", "met"),
    [(0.98, 97.0, [True, True]), (0.96, 97.0, [True, False]), (0.98, 103.0, [True, False]), (0.89, 97.0, [False] * 2)],
)
def test_bars(right: float, ms: float, met: list[bool], tmp_path: Path) -> None:
    """Judged for the headline alone; accuracy and time must both do."""
    answers = []
    for i in range(100):
        answers += [
            an_answer("always-k5", f"q{i}", right=i < 90, ms=250.0, k=5),
            an_answer("always-k1", f"q{i}", ms=100.0),
            an_answer("gate, serial", f"q{i}", right=i < 100 * right, ms=ms),
            an_answer("auto", f"q{i}", right=False, ms=900.0),
        ]
    found = compare(answers, resamples=100)
    systems = {name: figures(found, name) for name in found.answers}
    judged = bars(systems, best="always-k1", epsilon=0.02, headline="gate, serial")
    assert [bar.met for bar in judged if bar.what.startswith("gate, serial")] == met
    assert [bar.met for bar in judged if bar.what.startswith("auto")] == [None, None]
    assert bar_table(judged).count("NOT met") == met.count(False)
    for shown in (main_table(systems), stage_table(systems)):
        lines = shown.splitlines()
        assert len(lines) == 2 + len(systems)
        assert len({line.count("|") for line in lines}) == 1
    draw(systems, "a title", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_a_record_as_an_answer() -> None:
    """Tokens in vain count among all; a search whose passages nobody read is wasted; the label rule judges."""
    question = Labelled("q1", "Who?", ("She",), "who")
    read = as_answer("x", question, a_record(), 650.0)
    assert (read.right, read.ms, read.k, read.tokens) == (True, 650.0, 1, 177)
    assert (read.calls_used, read.calls_wasted, read.wasted_tokens) == (1, 0, 0)
    assert read.stages == {"probe": 200.0, "embed": 15.0, "search": 5.0, "read": 400.0}
    skipped = a_skip(
        answer="He", retrieval_calls=1, wasted_usage=Usage(100, 1), timings=Timings(total=205.0, probe=200.0)
    )
    raced = as_answer("x", question, skipped, 210.0)
    assert (raced.right, raced.tokens, raced.wasted_tokens) == (False, 149, 101)
    assert (raced.calls_used, raced.calls_wasted) == (0, 1)


def test_only_the_test_split_is_asked() -> None:
    """By the rule that the refit job parts its table by; what warms systems up is of train."""
    questions = read_questions(REPO / "demo/questions.jsonl")
    train, _, test = split(load(REPO / "demo/outcomes.jsonl.gz"))
    assert {question.id for question in held_out(questions)} == set(test.outcomes.ids)
    assert {question.id for question in of_train(questions)} == set(train.outcomes.ids)


@pytest_asyncio.fixture
async def parts() -> Parts:
    """Fakes, with passages to find."""
    embedder, vectors = FakeEmbedder(), FakeRetriever()
    await vectors.create("demo", dimension=embedder.dimension)
    passages = [Passage(str(number), "", f"Passage {number} of the world.") for number in range(8)]
    await vectors.add("demo", passages, await embedder.embed_passages([passage.text for passage in passages]))
    return Parts(FakeReader(), embedder, vectors)


@pytest_asyncio.fixture
async def reading() -> AsyncIterator[Reading]:
    """A reader whose metrics say that it is busy once, then idle, and that its cache gives ten tokens a question."""
    told = 0

    def tell(_: httpx.Request) -> httpx.Response:
        nonlocal told
        told += 1
        text = IDLE.format(cached=10 * told)
        return httpx.Response(200, text=text if told != 1 else text.replace("processing 0", "processing 1"))

    async with httpx.AsyncClient(transport=httpx.MockTransport(tell)) as client:
        yield Reading(Settings(), "http://reader", client)


def asked(reader: object) -> list[int]:
    """How many passages each generation was given."""
    assert isinstance(reader, FakeReader)
    return [len(prompt.passages) for prompt in reader.prompts]


async def test_each_system_is_what_it_is_called(parts: Parts) -> None:
    """Fixed actions pay for no probe; a gate probes; with a pre-gate a question may be spared it."""
    early = an_early_artifact(Early(unasked=2.0, compact=0.0))
    artifacts = {label_of(artifact): artifact for artifact in (an_artifact(), early)}
    reader = parts.reader
    assert isinstance(reader, FakeReader)
    reader.says("Who?", "She", k=0, sure=0.1)
    with open_systems(parts, Settings(), artifacts) as systems:
        assert list(systems) == [
            *("always-k5", "always-k1"),
            *("gate, serial", "gate, overlap", "gate, race"),
            *("pre-gate, serial", "auto"),
        ]
        expected = {"always-k5": [5], "always-k1": [1], "gate, serial": [0, 5], "pre-gate, serial": [1], "auto": [1]}
        for name, generations in expected.items():
            reader.prompts.clear()
            record = await systems[name].answer("Who?")
            assert asked(reader) == generations, name
            assert record.answer is not None
        assert (await systems["gate, race"].answer("Who?")).schedule == "race"


def test_gates_are_called_by_what_they_decide_with() -> None:
    """Whole probes alone, the question alone, or the first tokens."""
    exits = an_early_artifact(Early(exits=((2, 0.1),)))
    both = an_early_artifact(Early(unasked=0.5, exits=((2, 0.1),)))
    assert [label_of(one) for one in (an_artifact(), exits, both)] == ["gate", "early exit", "pre-gate + early exit"]


def uncertified() -> Artifact:
    """One whose thresholds nobody vouches for."""
    return an_artifact(policies={"graded": a_fit(certificate=None)})


async def test_a_run(parts: Parts, reading: Reading) -> None:
    """Every system's answer to every question, padding left out, with what the reader had cached for each."""
    questions = [Labelled(f"q{number}", f"Passage {number}?", ("world",), f"g{number}") for number in range(5)]
    fillers = [Labelled("filler", "What?", ("none",), "filler")]
    done: list[tuple[int, int]] = []
    with open_systems(parts, Settings(), {"gate": uncertified()}, ["always-k5", "always-k1", "auto"]) as systems:
        answers = await ask_all(
            systems,
            questions,
            fillers,
            reading,
            lag=1,
            concurrency=2,
            rng=Random(1),
            on_progress=lambda *both: done.append(both),
        )
    found = compare(answers)
    assert set(found.answers) == {"always-k5", "always-k1", "auto"}
    assert all(len(given) == 5 for given in found.answers.values())
    assert {answer.k for answer in found.answers["always-k5"]} == {5}
    assert {answer.cached_tokens for answer in answers} == {5.0, 10.0}
    assert done[-1] == (15, 15)


async def test_auto_looks_at_its_plan_while_it_warms_up(parts: Parts) -> None:
    """After every ten answers; what it went by is kept, once each."""
    questions = [Labelled(f"q{number}", f"Passage {number}?", ("world",), "g") for number in range(25)]
    with open_systems(parts, Settings(), {"gate": an_artifact()}, ["auto"]) as systems:
        auto: System = systems["auto"]
        heard: list[int] = []
        await warm_up(auto, questions, heard.append)
        assert heard == list(range(1, 26))
        assert len(auto.plans) == 1


async def test_a_reader_that_tells_nothing_is_refused() -> None:
    """Nobody could know whether it still works on what the last system cancelled."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text="up 1\n"))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(RuntimeError, match="does not tell"):
            await Reading(Settings(), "http://reader", client).idle()
