"""Break-even where parts ran side by side or for nothing: by what questions took as a whole."""

import math

import numpy as np
import pytest

from app.decision.breakeven import BreakEven, CostView, Verdict
from app.decision.cost import Costs, Tariff
from app.decision.forecast import Schedule
from app.observers.breakeven import estimate
from app.observers.traffic import Rows, Traffic
from app.observers.traffic_view import saved
from tests.fakes.traffic import gated_rows, ungated_rows

SMALL = Costs(cb=64.6, ret1=27.5, ob1=61.4, ret5=27.5, ob5=80.0)
LARGE = Costs(cb=161.1, ret1=27.5, ob1=257.0, ret5=27.5, ob5=319.0)
# In the paper's proportions, out of a thousand.
SKIPS = {"8B": (SMALL, {0: 335, 5: 665}), "32B": (LARGE, {0: 542, 5: 458})}
PROBE, ONE, FIVE = 46, 176, 696


def judged(rows: Rows, *, tariff: Tariff | None = None) -> BreakEven:
    return estimate(Traffic(rows, 60.0, 1), seconds=900, reference=5, tariff=tariff or Tariff())


def view(found: BreakEven, cost: str) -> CostView:
    seen = found.costs[cost]
    assert seen is not None
    return seen


@pytest.mark.parametrize(
    ("name", "schedule", "change"),
    [
        ("8B", Schedule.SERIAL, 26.6),
        ("8B", Schedule.OVERLAP, 9.6),
        ("8B", Schedule.RACE, -13.4),
        ("32B", Schedule.SERIAL, -7.7),
        ("32B", Schedule.OVERLAP, -11.3),
        ("32B", Schedule.RACE, -29.0),
    ],
)
@pytest.mark.parametrize("waited_ms", [0.0, 500.0])
def test_the_published_readers(name: str, schedule: Schedule, change: float, waited_ms: float) -> None:
    """Each schedule costs what the table says, however long the questions waited in line before."""
    costs, counts = SKIPS[name]
    found = view(judged(gated_rows(costs, counts, schedule, waited_ms=waited_ms)), "latency")
    ratio = found.against["k5"].gate_cost_ratio
    assert ratio.value is not None
    assert 100 * (ratio.value - 1) == pytest.approx(change, abs=0.1)
    assert found.against["k5"].verdict is (Verdict.COSTS if change > 0 else Verdict.SAVES)
    assert found.parts["cb"].value == pytest.approx(costs.cb)
    assert found.parts["ob5"].value == pytest.approx(costs.ob5)


@pytest.mark.parametrize(
    ("schedule", "even"),
    [
        # cb / (ret5 + ob5); what is waited for beyond retrieval over what a skip saves; a race never delays.
        (Schedule.SERIAL, 64.6 / 107.5),
        (Schedule.OVERLAP, (64.6 - 27.5) / 80.0),
        (Schedule.RACE, 0.0),
    ],
)
def test_each_schedule_has_a_break_even_of_its_own(schedule: Schedule, even: float) -> None:
    """The skip rate from which it pays is measured on what skipping saves under that schedule."""
    costs, counts = SKIPS["8B"]
    found = view(judged(gated_rows(costs, counts, schedule)), "latency").against["k5"]
    assert found.break_even_skip.value == pytest.approx(even, abs=1e-4)


@pytest.mark.parametrize(("schedule", "wasted"), [(Schedule.OVERLAP, 0), (Schedule.RACE, FIVE)])
def test_tokens_that_were_read_for_nothing_count(schedule: Schedule, wasted: int) -> None:
    """A race that is lost by five passages costs their tokens, and so does one that is won by one."""
    found = view(judged(gated_rows(SMALL, {0: 400, 1: 100, 5: 500}, schedule)), "tokens")
    expected = PROBE + 0.1 * ONE + 0.5 * FIVE + 0.5 * wasted
    assert found.gate.value == pytest.approx(expected)
    assert found.parts["ob5"].value == pytest.approx(FIVE)


def test_money_counts_every_call_and_every_passage_fetched() -> None:
    """Overlap calls for every question and fetches five, whatever is read; races pay for what they generate, too."""
    tariff = Tariff(call=100.0, passage=10.0)
    overlapped = view(judged(gated_rows(SMALL, {0: 400, 1: 100, 5: 500}, Schedule.OVERLAP), tariff=tariff), "money")
    assert overlapped.gate.value == pytest.approx(150.0)
    # Without a gate one passage is all that would be fetched for one.
    assert overlapped.parts["ret1"].value == pytest.approx(110.0)
    serial = view(judged(gated_rows(SMALL, {0: 400, 1: 100, 5: 500}), tariff=tariff), "money")
    assert serial.gate.value == pytest.approx(0.1 * 110.0 + 0.5 * 150.0)
    one = gated_rows(SMALL, {0: 400, 1: 600}, Schedule.OVERLAP, most=1)
    assert view(judged(one, tariff=tariff), "money").gate.value == pytest.approx(110.0)
    generated = Tariff(prompt_token=1.0, completion_token=2.0)
    raced = view(judged(gated_rows(SMALL, {0: 400, 5: 600}, Schedule.RACE), tariff=generated), "money")
    # A probe of 40 and 6 tokens for each, and 690 and 6 read for each, wanted or not.
    assert raced.gate.value == pytest.approx(52.0 + 702.0)


def test_skipping_that_saves_nothing_has_no_break_even() -> None:
    """In a race the tokens of five passages are spent whatever is decided: no skip rate makes up for the probe."""
    found = view(judged(gated_rows(SMALL, {0: 400, 5: 600}, Schedule.RACE)), "tokens").against["k5"]
    assert found.gate_cost_ratio.value == pytest.approx((PROBE + FIVE) / FIVE)
    assert found.break_even_skip.value is None


def test_a_question_that_read_twice_is_no_measure_of_reading_once() -> None:
    """Under overlap one search serves one passage and then five: what both took is not what five take."""
    rows = gated_rows(SMALL, {0: 200, 5: 400}, Schedule.OVERLAP)
    again = np.flatnonzero(rows["k"] == 5)[:100]
    rows["reads"][again], rows["read_ms"][again] = 2, SMALL.ob1 + SMALL.ob5
    rows["read_prompt"][again] *= 2
    assert view(judged(rows), "latency").parts["ob5"].value == pytest.approx(SMALL.ob5)
    assert view(judged(rows), "tokens").parts["ob5"].value == pytest.approx(FIVE)
    assert saved(rows, reference=5)["tokens_always"] == pytest.approx(FIVE * 600)


def test_what_was_wasted_is_not_saved() -> None:
    """The dashboard's tokens of the gate hold those of lost races."""
    rows = gated_rows(SMALL, {0: 30, 5: 70}, Schedule.RACE)
    assert saved(rows, reference=5)["tokens"] == 100 * (PROBE + FIVE)


def test_a_window_of_several_schedules_adds_up() -> None:
    """Half serial and half overlapped costs what lies between the two."""
    costs, counts = SKIPS["8B"]
    both = np.concatenate([gated_rows(costs, counts, schedule) for schedule in (Schedule.SERIAL, Schedule.OVERLAP)])
    ratio = view(judged(both), "latency").against["k5"].gate_cost_ratio.value
    assert ratio is not None
    assert 100 * (ratio - 1) == pytest.approx((26.6 + 9.6) / 2, abs=0.1)


def test_questions_without_a_probe_take_no_time_for_one() -> None:
    """Those foreseen count with nothing where others pay for a probe; the gate is all the cheaper for them."""
    foreseen = ungated_rows(SMALL, 5, 500)
    foreseen["gated"] = True
    rows = np.concatenate([gated_rows(SMALL, {0: 200, 5: 300}), foreseen])
    found = view(judged(rows), "latency")
    assert found.parts["cb"].value == pytest.approx(SMALL.cb / 2)
    assert found.gate.value == pytest.approx(SMALL.cb / 2 + 0.8 * (SMALL.ret5 + SMALL.ob5))
    assert not math.isnan(found.gate.value or math.nan)
