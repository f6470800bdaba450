"""The simulated reader and gateway: batch-1 figures, what steps cost, what cancelling frees, and the formulas met."""

from dataclasses import replace

import numpy as np
import pytest

from app.decision.cost import Costs, Exit, Shares, always_rag, overlap, serial
from app.decision.schedule import Plan, Schedule
from bench.schedules.auto import auto_for
from bench.schedules.engine import Engine, Generation, StepModel
from bench.schedules.gateway import Answered, Fixed, Simulation
from bench.schedules.readers import CLOSED_BOOK_TOKENS, EXIT_AT, LARGE, PROMPTS, SMALL, Reader, lengths
from bench.schedules.regimes import Row
from bench.schedules.verdicts import bar_table, bars
from bench.schedules.workload import Workload, made_up

STEPS = StepModel(fixed=10.0, per_answer=1.0, per_prompt_token=0.5, budget=100, max_answers=2, memory=1000)
READERS = pytest.mark.parametrize("reader", [SMALL, LARGE], ids=lambda reader: reader.name)


def drive(engine: Engine, until: float = 1e9) -> None:
    while engine.ends < until:
        engine.finish()


def test_steps_by_hand() -> None:
    """Two prompts share a step if they fit, a long one is read in chunks, and every answer grows by one a step."""
    engine, ends = Engine(STEPS), {}

    def submit(name: str, prompt: int, answer: int) -> None:
        engine.submit(Generation(prompt, answer, lambda: ends.update({name: True})), 0.0)

    submit("a", 150, 2)
    # An idle reader begins at once, with what fits: 100 of the prompt.
    assert engine.ends == 10.0 + 1.0 + 50.0
    submit("b", 20, 1)
    engine.finish()
    # The other 50, and all of the second.
    assert engine.ends == 61.0 + 10.0 + 2.0 + 35.0
    engine.finish()
    assert ends == {"b": True}
    assert engine.ends == 108.0 + 11.0
    engine.finish()
    assert ends == {"a": True, "b": True}
    assert engine.ends == float("inf")
    assert (engine.prompt_tokens, engine.answer_tokens) == (170, 3)


def test_a_place_and_memory_are_given_back() -> None:
    """With two places a third waits; cancelling one lets it in at the next step, and says what was spent."""
    engine, done = Engine(STEPS), []
    first, second, third = (Generation(10, 50, lambda n=n: done.append(n)) for n in range(3))
    for one in (first, second, third):
        engine.submit(one, 0.0)
    drive(engine, until=100.0)
    assert third.unread == 10
    spent = engine.cancel(first)
    assert engine.cancel(first) == 0
    assert spent == 10 + engine._step - first.first_step + 1
    engine.finish()
    engine.finish()
    assert third.unread == 0
    drive(engine)
    assert done == [1, 2]
    assert engine._memory == STEPS.memory
    assert engine._places == 0


def test_one_that_waits_is_cancelled_for_free() -> None:
    """Nothing was spent on a prompt that was never looked at."""
    engine = Engine(STEPS)
    engine.submit(Generation(90, 5, lambda: None), 0.0)
    waiting = Generation(90, 5, lambda: pytest.fail("it was cancelled"))
    engine.submit(waiting, 0.0)
    assert engine.cancel(waiting) == 0
    drive(engine)
    assert engine.prompt_tokens == 90


def test_no_prompt_larger_than_the_memory_that_is_left() -> None:
    """It waits until enough has been given back."""
    engine, done = Engine(replace(STEPS, max_answers=9)), []
    for n in range(3):
        engine.submit(Generation(390, 10, lambda n=n: done.append(n)), 0.0)
    drive(engine)
    assert done == [0, 1, 2]
    assert engine._memory == STEPS.memory


@READERS
def test_batch_1_figures_are_the_papers(reader: Reader) -> None:
    """Each kind of generation, simulated by itself, takes on average what the paper measured."""
    for k, took in ((0, reader.costs.cb), (1, reader.costs.ob1), (5, reader.costs.ob5)):
        total = 0.0
        for length in lengths(reader.tokens[k], 1000):
            engine = Engine(reader.steps)
            engine.submit(Generation(PROMPTS[k], length, lambda: None), 0.0)
            while engine.ends < float("inf"):
                end = engine.ends
                engine.finish()
            total += end
        assert total / 1000 == pytest.approx(took, rel=1e-3)


def paper(reader: Reader, *, questions: int = 1000, caught: float = 0.64) -> Workload:
    return made_up(reader, skip=reader.skip, questions=questions, rng=np.random.default_rng(5), caught=caught)


def answer(work: Workload, reader: Reader, plan: Plan | None, **how: int) -> list[Answered]:
    return Simulation(work, reader.steps, Fixed(plan)).run(**how)


def mean(done: list[Answered]) -> float:
    return float(np.mean([one.latency for one in done]))


@READERS
def test_one_at_a_time_is_what_the_formulas_say(reader: Reader) -> None:
    """Always-RAG, serial and overlap, with exits and without, to a thousandth."""
    work, c = paper(reader), reader.costs
    shares = Shares(work.k.count(0) / len(work), 0.0, work.k.count(5) / len(work))
    spent = reader.steps.alone(PROMPTS[0], EXIT_AT) / reader.steps.alone(PROMPTS[0], CLOSED_BOOK_TOKENS)
    exit_ = Exit(sum(at is not None for at in work.exit_at) / work.k.count(5), spent)
    assert mean(answer(work, reader, None)) == pytest.approx(always_rag(c), rel=1e-3)
    for schedule, cost in ((Schedule.SERIAL, serial), (Schedule.OVERLAP, overlap)):
        assert mean(answer(work, reader, Plan(schedule))) == pytest.approx(cost(c, shares), rel=1e-3)
        assert mean(answer(work, reader, Plan(schedule, exits=True))) == pytest.approx(cost(c, shares, exit_), rel=1e-3)


@READERS
@pytest.mark.parametrize("plan", [None, *(Plan(one, exits=cut) for one in Schedule for cut in (False, True))])
def test_every_token_and_call_is_accounted_for(reader: Reader, plan: Plan | None) -> None:
    """In a crowd: what questions say they used is what the reader did, and the same passages are read as ever."""
    work = paper(reader, questions=300)
    simulation = Simulation(work, reader.steps, Fixed(plan))
    done = simulation.run(at_a_time=40)
    engine = simulation._engine
    # A token of an answer that is given up within a step comes and is not seen.
    unseen = 1 if plan is not None and plan.schedule is Schedule.RACE else 0
    used = sum(one.tokens for one in done)
    assert used <= engine.prompt_tokens + engine.answer_tokens <= used + unseen * len(done)
    assert sorted(one.number for one in done) == list(range(300))
    assert [one.k for one in sorted(done, key=lambda one: one.number)] == ([5] * 300 if plan is None else work.k)
    skipped = work.k.count(0)
    calls = 300 - skipped if plan is not None and plan.schedule is Schedule.SERIAL else 300
    assert sum(one.calls for one in done) == calls
    assert sum(one.wasted_calls for one in done) == calls - (300 if plan is None else 300 - skipped)


def test_what_the_reader_still_knows_it_need_not_read_again() -> None:
    """With prompts that begin alike a read after a probe is shorter by that; always-RAG has no probe to gain from."""
    work = paper(SMALL, questions=200)
    shorter = Simulation(work, SMALL.steps, Fixed(Plan(Schedule.SERIAL)), cached=30).run()
    saved = mean(answer(work, SMALL, Plan(Schedule.SERIAL))) - mean(shorter)
    assert saved == pytest.approx(0.665 * 30 * SMALL.steps.per_prompt_token, rel=1e-6)


@pytest.mark.parametrize("schedule", Schedule)
def test_a_pre_gate_sends_questions_without_a_probe(schedule: Schedule) -> None:
    """They take what always-RAG takes; the others' probes wait for the embedding, which is not made twice."""
    work = paper(SMALL, questions=100, caught=0.0)
    sent = [5 if k and n % 2 else 0 for n, k in enumerate(work.k)]
    work = replace(work, sent=sent, embed_ms=5.0)
    done = answer(work, SMALL, Plan(schedule, pregate=True))
    assert {one.number for one in done if one.sent} == {n for n, k in enumerate(sent) if k}
    for one in done:
        if one.sent:
            assert one.latency == pytest.approx(27.5 + 80.0, abs=12.0)
            assert one.probe_ms is None
        elif one.k == 0:
            assert one.latency >= 64.6 + 5.0 - 1e-6
        elif schedule is Schedule.SERIAL:
            assert one.latency == pytest.approx(64.6 + 27.5 + 80.0, abs=12.0)


@pytest.mark.parametrize(("skip", "bypassed"), [(0.0, True), (0.9, False)])
def test_auto_gates_where_it_pays(skip: float, bypassed: bool) -> None:
    """Told nothing but what it measures, it bypasses the gate where nothing can be skipped, and uses it elsewhere."""
    work = made_up(SMALL, skip=skip, questions=1500, rng=np.random.default_rng(6))
    auto = auto_for(work, SMALL.steps, None, warm_up=500)
    done = Simulation(work, SMALL.steps, auto).run()
    assert [plan.bypass for plan in auto.plans] == [bypassed] * len(auto.plans)
    later = [one.latency for one in done if one.number >= 500]
    always = mean(answer(work, SMALL, None))
    assert np.mean(later) < always * (1.02 if bypassed else 0.8)


def test_lengths_have_their_mean() -> None:
    """Whole numbers next to it, as evenly spread as can be."""
    found = lengths(5.25, 400)
    assert set(found) == {5, 6}
    assert np.mean(found) == 5.25
    assert lengths(6, 3) == [6, 6, 6]


def test_a_bar_that_is_not_met_says_so() -> None:
    """Bars are judged by the rows, whatever these are."""

    def row(**given: object) -> Row:
        shown = {
            "latency_ratio": 1.5,
            "throughput_ratio": 0.9,
            "served": {"race": 1.0},
            "ret_over_ob": 1.0,
            "skip": 0.0,
        }
        return shown | given

    rows = [
        row(model=model, regime="paper", schedule=schedule, load=load)
        for model in ("8B", "32B")
        for schedule in ("serial", "overlap+exit", "race", "auto")
        for load in (0.0, 0.8, 1.0)
    ]
    rows += [row(model="8B", regime="sweep", schedule="auto", load=load) for load in (0.0, 0.8)]
    found = bars(rows, None)
    assert [bar.met for bar in found if bar.met is not None] == [False] * 5
    assert bar_table(found).count("NOT met") == 5


def test_the_readers_costs_are_typed_right() -> None:
    """The paper's table of costs adds up to what it prints for always-RAG."""
    assert always_rag(SMALL.costs) == 107.5
    assert always_rag(LARGE.costs) == 346.5
    assert Costs(64.6, 27.5, 61.4, 27.5, 80.0) == SMALL.costs
