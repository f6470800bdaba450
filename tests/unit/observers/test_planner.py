"""The planner: what it chooses by the published readers' costs, what it waits for, and that it does not waver."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import cast

import numpy as np
import pytest

from app.decision.artifact import MEANS, Early, Flow, Thresholds
from app.decision.bypass import PATIENCE
from app.decision.cost import Costs, Objective, Shares, Tariff
from app.decision.forecast import WATCH, Measured, Plan, Schedule
from app.decision.policy import Gate
from app.decision.schedule import choose
from app.observers import planner as planner_module
from app.observers.gate_watch import GateWatch
from app.observers.planner import FixedPlan, Planner, beside, busy
from app.observers.traffic import ROW, Rows, Traffic, TrafficWindow
from tests.fakes.artifacts import a_fit, a_variant, an_artifact, an_early_artifact
from tests.fakes.traffic import gated_rows, ungated_rows

SMALL = Costs(cb=64.6, ret1=27.5, ob1=61.4, ret5=27.5, ob5=80.0)
LARGE = Costs(cb=161.1, ret1=27.5, ob1=257.0, ret5=27.5, ob5=319.0)
READERS = {"8B": (SMALL, {0: 335, 5: 665}), "32B": (LARGE, {0: 542, 5: 458})}
TOKENS = Costs(cb=46.0, ret1=0.0, ob1=696.0, ret5=0.0, ob5=696.0)
SERIAL = Plan(Schedule.SERIAL)


class Shop:
    """A planner over rows that the test puts there, and a clock that it sets."""

    def __init__(self, *batches: Rows, objective: Objective = Objective.LATENCY, tariff: Tariff | None = None) -> None:
        self.rows = np.concatenate(batches) if batches else np.zeros(0, ROW)
        self.now, self.gate = 100.0, Gate()
        self.watch = GateWatch(
            cast("TrafficWindow", self),
            seconds=900,
            reference=lambda: 5,
            tariff=tariff or Tariff(),
            clock=self.ever_later,
        )
        self.planner = Planner(
            self.watch, lambda: self.rows, objective=objective, gate=lambda: self.gate, clock=lambda: self.now
        )

    def read(self, _: float) -> Traffic:
        return Traffic(self.rows, 900.0, 1)

    def ever_later(self) -> float:
        """So that every look is a new one."""
        self.now += 10.0
        return self.now

    def add(self, rows: Rows) -> None:
        rows["at"] = self.now
        self.rows = np.concatenate([self.rows, rows])


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("objective", [Objective.LATENCY, Objective.TOKENS, Objective.CALLS])
def test_it_chooses_what_choose_says_of_the_published_readers(name: str, objective: Objective) -> None:
    """By a window of serial traffic at the paper's costs, on a reader that is idle."""
    costs, counts = READERS[name]
    shop = Shop(gated_rows(costs, counts), objective=objective)
    skip = counts[0] / 1000
    known = Measured(
        replace(costs, ret1=costs.ret5, ob1=costs.ob5),
        TOKENS,
        Shares(skip, 0.0, 1.0 - skip),
        serving=SERIAL,
        # A read of six tokens at the probe's pace; the rest of it is its prompt, for which a probe waits.
        beside=beside(shop.rows, 5),  # type: ignore[arg-type]
    )
    expected = choose(known, objective, current=SERIAL)
    found = shop.planner.consider()
    assert found.same(expected)
    assert found.ratio == pytest.approx(expected.ratio)
    assert found.why == expected.why
    assert shop.planner.plan() is found


def test_the_published_choices() -> None:
    """Time: the large reader overlaps or races, and the small one, on one server without an exit, is not worth a gate.

    Tokens: the small reader's probe is cheap, so one step at a time saves.
    """
    assert Shop(gated_rows(*READERS["32B"])).planner.consider().schedule is not Schedule.SERIAL
    assert Shop(gated_rows(*READERS["8B"]), objective=Objective.TOKENS).planner.consider().same(SERIAL)


@pytest.mark.parametrize(
    ("rows", "needs"),
    [
        (gated_rows(SMALL, {0: 5, 5: 5}), "30 questions that the gate decided, 10 so far"),
        (gated_rows(SMALL, {0: 90, 5: 10}), "30 questions that read five passages, 10 so far"),
    ],
)
def test_with_too_few_figures_it_stays_serial_and_says_so(rows: Rows, needs: str) -> None:
    """Nothing is tried before it is known what it costs, and what is missing is told."""
    plan = Shop(rows).planner.consider()
    assert plan.same(SERIAL)
    assert math.isnan(plan.ratio)
    assert plan.why.endswith(f"It takes {needs}.")


def test_a_chosen_plan_stays_while_figures_are_missing() -> None:
    """A quiet hour is no reason to change, nor to forget why."""
    shop = Shop(gated_rows(*READERS["32B"]))
    chosen = shop.planner.consider()
    shop.rows = shop.rows[:0]
    assert shop.planner.consider() is chosen


# Nothing that runs beside a probe so slow pays: even a skip takes longer than reading.
HOPELESS = Costs(cb=200.0, ret1=20.0, ob1=60.0, ret5=20.0, ob5=80.0)
PAYING = Costs(cb=10.0, ret1=20.0, ob1=60.0, ret5=20.0, ob5=80.0)


def test_a_gate_that_cannot_pay_is_passed_by_and_taken_up_again() -> None:
    """Out at once where every plan is foretold to lose; back only when the few that still meet the gate show it."""
    shop = Shop(gated_rows(HOPELESS, {0: 300, 5: 700}))
    plan = shop.planner.consider()
    assert plan.bypass
    assert plan.ratio == pytest.approx(1.0 + WATCH * (plan_ratio(shop) - 1.0), abs=0.05)
    assert "go without the gate" in plan.why
    # It pays again: after as many looks as it takes, and not before.
    shop.rows = np.concatenate(
        [gated_rows(PAYING, {0: 60, 5: 40}, plan.schedule, at=shop.now), ungated_rows(PAYING, 5, 500, at=shop.now)]
    )
    assert not shop.planner.consider().bypass


def plan_ratio(shop: Shop) -> float:
    """What the gate costs by the window."""
    latency = shop.watch.look().costs["latency"]
    assert latency is not None
    return latency.against["k5"].gate_cost_ratio.value or math.nan


def test_traffic_has_the_last_word_on_a_bypass() -> None:
    """Serial is foretold to pay a little, and surely does not: out after three looks, in again after three more."""
    shop = Shop(gated_rows(SMALL, {0: 335, 5: 665}), objective=Objective.TOKENS)
    assert shop.planner.consider().same(SERIAL)
    # As if every probe had cost as much as reading, which no forecast from its parts can miss for long.
    dear = gated_rows(SMALL, {0: 100, 5: 900})
    dear["probe_prompt"] = 600
    shop.rows = dear
    looks = [shop.planner.consider().bypass for _ in range(PATIENCE)]
    assert looks[-1]
    cheap = np.concatenate([gated_rows(SMALL, {0: 60, 5: 40}), ungated_rows(SMALL, 5, 500)])
    cheap["at"] = shop.now
    shop.rows = cheap
    looks = [shop.planner.consider().bypass for _ in range(PATIENCE)]
    assert looks == [True] * (PATIENCE - 1) + [False]


def test_one_odd_window_changes_nothing() -> None:
    """A plan in force stays for one that is hardly better, and a bypass is not entered at one look."""
    shop = Shop(gated_rows(*READERS["32B"]))
    chosen = shop.planner.consider()
    slightly = gated_rows(replace(LARGE, cb=LARGE.cb * 1.01), {0: 542, 5: 458}, chosen.schedule)
    slightly["at"] = shop.now
    shop.rows = slightly
    assert shop.planner.consider().same(chosen)


def test_the_past_does_not_speak_against_a_new_plan() -> None:
    """Rows of the schedule before are not held against the one in force, however long the window still has them."""
    shop = Shop(gated_rows(*READERS["8B"]))
    shop.planner._plan = Plan(Schedule.RACE)  # as if chosen just now
    shop.planner._since = shop.now
    for _ in range(2 * PATIENCE):
        shop.planner.consider()
        shop.add(gated_rows(SMALL, {0: 34, 5: 66}, Schedule.RACE))
    assert not shop.planner.plan().bypass


# Reading is no more work than probing, and searching is slow: what can run beside the probe should.
RACING = Costs(cb=100.0, ret1=60.0, ob1=100.0, ret5=60.0, ob5=100.0)


def test_a_schedule_that_disappoints_makes_way_for_another() -> None:
    """A race that surely loses is given up for what is next best, and tried again when the window has forgotten it."""
    shop = Shop(gated_rows(RACING, {0: 700, 5: 300}))
    assert shop.planner.consider().schedule is Schedule.RACE
    raced = gated_rows(RACING, {0: 700, 5: 300}, Schedule.RACE)
    # As if one had waited for the other.
    raced["total_ms"] = 500.0
    shop.add(raced)
    plans = [shop.planner.consider() for _ in range(PATIENCE)]
    assert [plan.schedule for plan in plans] == [Schedule.RACE] * (PATIENCE - 1) + [Schedule.OVERLAP]
    assert not plans[-1].bypass
    assert "race" not in plans[-1].why
    shop.now += 1000.0
    shop.rows = gated_rows(RACING, {0: 700, 5: 300}, Schedule.OVERLAP, at=shop.now)
    assert shop.planner.consider().schedule is Schedule.RACE


def test_a_busy_reader_is_not_raced_on() -> None:
    """Where most probes take far longer than the quickest did, there is no room for reads that may be for nothing."""
    rows = gated_rows(RACING, {0: 700, 5: 300})
    assert Shop(rows).planner.consider().schedule is Schedule.RACE
    slow = rows.copy()
    slow["probe_ms"] *= 4.0
    slow["read_ms"] *= 4.0
    crowded = np.concatenate([slow[:900], rows[:100]])
    assert busy(crowded) == pytest.approx(0.75)
    assert Shop(crowded).planner.consider().schedule is not Schedule.RACE


def test_how_busy_it_is_takes_enough_probes_of_one_length() -> None:
    """Short answers are quicker than long ones on any reader, so only probes of one length are compared."""
    assert busy(gated_rows(SMALL, {0: 20})) == 0.0
    assert busy(ungated_rows(SMALL, 5, 100)) == 0.0
    rows = gated_rows(SMALL, {0: 100})
    assert busy(rows) == pytest.approx(0.0)
    rows["probe_completion"] = np.arange(100)
    assert busy(rows) == 0.0


def test_contention_is_measured_on_what_ran_alone() -> None:
    """Too few such rows tell nothing, and races tell nothing of what a probe takes alone."""
    assert beside(gated_rows(SMALL, {0: 335, 5: 665}, Schedule.RACE), 5) is None
    assert beside(gated_rows(SMALL, {0: 335, 5: 20}), 5) is None
    found = beside(gated_rows(SMALL, {0: 335, 5: 665}), 5)
    assert found is not None
    # Six tokens of a probe take 64.6 ms, so six tokens of a read do; the rest of its 80 ms is the prompt.
    assert astuple(found) == pytest.approx((80.0 - 64.6, 64.6 / 12))


EARLY = Early(unasked=0.5)
# Twice as good, if nobody has to wait long for an embedding: no probe for most of those that read anyway.
BY_PROBES = Flow(0.0, 0.0, k0=0.3, k1=0.0, k5=0.7)
BY_QUESTION = Flow(0.0, 0.6, k0=0.3, k1=0.0, k5=0.1)
GATE = Gate(
    an_early_artifact(
        EARLY,
        variants={
            "whole probes": a_variant(a_fit(), flow=BY_PROBES),
            "pre-gate": a_variant(a_fit(thresholds=Thresholds(0.75, 0.5, EARLY)), flow=BY_QUESTION),
        },
    )
)
# Slow to embed and quick to probe, and the other way round; searching takes no time.
SLOW_EMBEDDER, SLOW_PROBE = Costs(5.0, 60.0, 60.0, 60.0, 80.0), Costs(60.0, 4.0, 60.0, 4.0, 80.0)


def by_means(costs: Costs, flow: Flow, n: int = 1000, *, at: float = 0.0) -> Rows:
    """Traffic that goes this way, one step at a time; retrieval is nothing but embedding."""
    probed = gated_rows(costs, {0: round(flow.k0 * n), 5: round(flow.k5 * n)}, at=at)
    unasked = ungated_rows(costs, 5, round(flow.unasked5 * n), at=at)
    unasked["gated"] = True
    rows = np.concatenate([probed, unasked])
    read = rows["k"] == 5
    rows["means"] = MEANS.index("pre-gate" if flow.unasked5 else "whole probes")
    rows["embed_ms"][read], rows["search_ms"][read] = costs.ret5, 0.0
    if flow.unasked5:
        rows["total_ms"][~read] += costs.ret5
        rows["embed_ms"][~read] = costs.ret5
    mixed: Rows = rows[np.random.default_rng(2).permutation(len(rows))]
    return mixed


@pytest.mark.parametrize(
    ("costs", "means"), [pytest.param(SLOW_EMBEDDER, "whole probes"), pytest.param(SLOW_PROBE, "pre-gate")]
)
@pytest.mark.parametrize("flow", [BY_PROBES, BY_QUESTION])
def test_it_chooses_the_means_by_what_they_cost(costs: Costs, flow: Flow, means: str) -> None:
    """From either side: probes that are quicker than embedding are not spared, slow ones are."""
    shop = Shop(by_means(costs, flow))
    shop.gate = GATE
    if flow is BY_PROBES:
        shop.planner._plan = Plan(Schedule.SERIAL, means="whole probes", ratio=1.0)
        shop.planner._calibrator = GATE.artifact.version if GATE.artifact else None
    plan = shop.planner.consider()
    assert (plan.means, plan.bypass) == (means, False)
    assert f"with {means}" in plan.why.lower()


def test_without_whole_probes_the_means_stay() -> None:
    """Nobody knows what more of them would take."""
    rows = by_means(SLOW_EMBEDDER, BY_QUESTION)
    rows["whole"] = False
    shop = Shop(rows)
    shop.gate = GATE
    assert shop.planner.consider().means == "pre-gate"


def test_means_that_disappoint_make_way() -> None:
    """Tried because so much was foretold of it, a pre-gate that costs more than what was there before is left again."""
    shop = Shop(by_means(SLOW_PROBE, BY_PROBES))
    shop.gate = GATE
    shop.planner._plan = Plan(Schedule.SERIAL, means="whole probes", ratio=1.0)
    assert shop.planner.consider().means == "pre-gate"
    # Far more questions than were expected are probed, and after that read.
    dear = by_means(SLOW_PROBE, Flow(0.0, 0.05, k0=0.15, k1=0.0, k5=0.8), at=shop.now)
    shop.rows = np.concatenate([shop.rows, dear])
    plans = [shop.planner.consider() for _ in range(2 * PATIENCE)]
    assert plans[-1].means == "whole probes"
    assert len({plan.means for plan in plans[PATIENCE:]}) == 1


def test_what_reading_took_by_other_means_is_not_forgotten() -> None:
    """Questions that hardly ever read five tell nothing of what five would cost; those by the means before do."""
    shop = Shop(by_means(SLOW_PROBE, BY_PROBES))
    shop.gate = GATE
    shop.planner._plan = Plan(Schedule.SERIAL, means="pre-gate", ratio=0.5)
    seldom = gated_rows(SLOW_PROBE, {0: 190, 5: 10}, at=shop.now)
    seldom["means"] = MEANS.index("pre-gate")
    shop.rows = np.concatenate([shop.rows, seldom])
    plan = shop.planner.consider()
    assert plan.ratio < 1.0
    assert plan.ratio != 0.5


def test_first_choices_are_told_apart_from_what_was_fitted() -> None:
    """Before anything was chosen the calibrator's own means were in force, and what they cost is kept as theirs."""
    shop = Shop(by_means(SLOW_EMBEDDER, BY_QUESTION))
    shop.gate = GATE
    assert shop.planner.consider().means == "whole probes"
    assert list(shop.planner._lived) == ["pre-gate"]
    assert shop.planner.consider().means == "whole probes"
    assert list(shop.planner._lived) == ["pre-gate"]


def test_a_new_calibrator_begins_anew() -> None:
    """What gating by the old one cost says nothing of it: no bypass, and a reason that says so."""
    shop = Shop(gated_rows(HOPELESS, {0: 300, 5: 700}))
    shop.gate = Gate(an_artifact())
    assert shop.planner.consider().bypass
    shop.gate = Gate(an_artifact(version="2026-02-01-0a1b2c3d"))
    plan = shop.planner.consider()
    assert (plan.schedule, plan.bypass) == (Schedule.SERIAL, False)
    assert "Nothing is known yet" in plan.why


def test_contention_that_was_seen_counts() -> None:
    """A reader that has no room for both slows the probe down by more than a prompt."""
    alone, raced = gated_rows(SMALL, {0: 335, 5: 665}), gated_rows(SMALL, {0: 50, 5: 50}, Schedule.RACE)
    raced["probe_ms"] = 150.0
    foretold, seen = beside(alone, 5), beside(np.concatenate([alone, raced]), 5)
    assert foretold is not None
    assert seen is not None
    assert (seen.probe, seen.read) == (pytest.approx(150.0 - 64.6), foretold.read)
    assert beside(np.concatenate([alone, raced[:20]]), 5) == foretold
    raced["probe_ms"] = 60.0
    easier = beside(np.concatenate([alone, raced]), 5)
    assert easier is not None
    assert easier.probe == 0.0


def test_money_goes_by_the_tariff() -> None:
    """Dear calls and free tokens: what calls least."""
    shop = Shop(gated_rows(*READERS["32B"]), objective=Objective.MONEY, tariff=Tariff(call=1.0))
    plan = shop.planner.consider()
    assert plan.schedule is Schedule.SERIAL
    assert plan.ratio == pytest.approx(0.458)
    assert "less money" in plan.why


def test_a_change_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Once, in the words that `/breakeven` has for it."""
    shop = Shop(gated_rows(*READERS["32B"]))
    with caplog.at_level(logging.INFO, logger=planner_module.__name__):
        why = shop.planner.consider().why
        shop.planner.consider()
    assert [record.getMessage() for record in caplog.records] == [f"from now on: {why}"]


def test_a_fixed_plan_is_what_was_set() -> None:
    """And nothing is foretold of it."""
    fixed = FixedPlan(Schedule.OVERLAP, Objective.TOKENS)
    assert (fixed.plan().schedule, fixed.objective) == (Schedule.OVERLAP, Objective.TOKENS)
    assert fixed.plan().why == "FETCHWISE_SCHEDULE=overlap says so."
    assert math.isnan(fixed.plan().ratio)


async def test_it_keeps_considering_whatever_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A look that fails leaves the plan as it is, and the next one is taken all the same."""
    monkeypatch.setattr(planner_module, "EVERY_S", 0.001)
    shop = Shop(gated_rows(*READERS["32B"]))
    broken = True

    def gate() -> Gate:
        if broken:
            raise RuntimeError("no gatekeeper")
        return Gate()

    shop.planner._gate = gate
    considering = asyncio.create_task(shop.planner.keep_considering())
    try:
        async with asyncio.timeout(30):
            await until(lambda: "stays; trying again" in caplog.text)
            assert shop.planner.plan().same(SERIAL)
            broken = False
            await until(lambda: not shop.planner.plan().same(SERIAL))
    finally:
        considering.cancel()
        await asyncio.gather(considering, return_exceptions=True)


async def until(seen: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    while not seen():  # noqa: ASYNC110 - nobody could set an event
        await asyncio.sleep(0.001)
