"""From the figures of a window to what a plan is chosen by: the published readers, and figures that are missing."""

from dataclasses import astuple, replace

import pytest

from app.decision.breakeven import BreakEven, Comparison, CostView, Covered, Estimate, Verdict, lacking
from app.decision.cost import Costs, Objective, Shares
from app.decision.forecast import Measured, Plan, Schedule, predict
from app.decision.planning import live_ratio, measured_from

SMALL = Costs(cb=64.6, ret1=27.5, ob1=61.4, ret5=27.5, ob5=80.0)
LARGE = Costs(cb=161.1, ret1=27.5, ob1=257.0, ret5=27.5, ob5=319.0)
TOKENS = Costs(cb=46.0, ret1=0.0, ob1=176.0, ret5=0.0, ob5=696.0)
SERIAL = Plan(Schedule.SERIAL)
PARTS = ("cb", "ret1", "ob1", "ret5", "ob5")


def sure(value: float, n: int = 900) -> Estimate:
    return Estimate(value, value, value, n)


def a_window(
    latency: Costs,
    skip: float,
    *,
    k1: float = 0.0,
    abstain: float = 0.0,
    without: tuple[int, ...] = (),
    reference: int = 5,
) -> BreakEven:
    """Figures of a window; of `without` so many passages nothing is known."""

    def view(costs: Costs) -> CostView:
        parts = {
            name: lacking(3, f"30 of {name}, 3 so far")
            if int(name[-1:].replace("b", "0")) in without
            else sure(getattr(costs, name))
            for name in PARTS
        }
        compared = Comparison(sure(1.0), sure(0.5), sure(1.25), Verdict.COSTS, "…")
        return CostView("unit", parts, sure(1.0), {f"k{k}": compared for k in (1, 5)})

    return BreakEven(
        window=Covered(900, 900, 900, 900, 1),
        sentence="…",
        reference=f"k{reference}",
        skip_rate=sure(skip),
        shares={"k0": sure(skip), "k1": sure(k1), "k5": sure(1.0 - skip - k1 - abstain), "abstain": sure(abstain)},
        costs={"latency": view(latency), "tokens": view(TOKENS), "money": None},
        caveats=(),
    )


def measured(found: BreakEven, **more: object) -> Measured:
    known = measured_from(found, serving=SERIAL, busy=0.0, **more)  # type: ignore[arg-type]
    assert isinstance(known, Measured), known
    return known


@pytest.mark.parametrize(
    ("costs", "skip", "changes"),
    [
        pytest.param(SMALL, 0.335, {"serial": 26.6, "overlap": 9.6, "race": -13.4}, id="8B"),
        pytest.param(LARGE, 0.542, {"serial": -7.7, "overlap": -11.3, "race": -29.0}, id="32B"),
    ],
)
def test_the_published_readers(costs: Costs, skip: float, changes: dict[str, float]) -> None:
    """A window with the paper's costs, of which one passage is never read, foretells what the table says."""
    known = measured(a_window(costs, skip, without=(1,)))
    assert (known.shares, known.reference) == (Shares(skip, 0.0, 1.0 - skip), 5)
    assert (known.latency.ob5, known.latency.ob1) == (costs.ob5, costs.ob5)
    for schedule, change in changes.items():
        ratio = predict(known, Objective.LATENCY, Plan(Schedule(schedule)))
        assert 100 * (ratio - 1) == pytest.approx(change, abs=0.1)


def test_withheld_answers_are_read_like_the_others() -> None:
    """A tenth withheld after reading: one passage and five keep their proportion among all that read."""
    known = measured(a_window(SMALL, 0.4, k1=0.1, abstain=0.1))
    assert astuple(known.shares) == pytest.approx((0.4, 0.12, 0.48))


def test_what_is_missing_is_said() -> None:
    """Without gated questions, or without the cost of what is often read or compared with, nothing is foretold."""
    nobody = replace(a_window(SMALL, 0.3), skip_rate=lacking(3, "30 questions that the gate decided, 3 so far"))
    assert measured_from(nobody, serving=SERIAL, busy=0.0) == "30 questions that the gate decided, 3 so far"
    often = a_window(SMALL, 0.3, k1=0.2, without=(1,))
    assert measured_from(often, serving=SERIAL, busy=0.0) == "30 of ret1, 3 so far"
    reference = a_window(SMALL, 0.3, k1=0.7, without=(5,))
    assert measured_from(reference, serving=SERIAL, busy=0.0) == "30 of ret5, 3 so far"
    probes = a_window(SMALL, 0.3, without=(0,))
    assert measured_from(probes, serving=SERIAL, busy=0.0) == "30 of cb, 3 so far"


def test_a_rare_reading_need_not_be_known() -> None:
    """One passage in a hundred questions costs as much as five do."""
    known = measured(a_window(SMALL, 0.3, k1=0.01, without=(1,)))
    assert (known.latency.ret1, known.latency.ob1) == (SMALL.ret5, SMALL.ob5)


def test_a_policy_that_reads_one_at_the_most_races_with_one() -> None:
    """What is fetched and read ahead is then one passage, which is what is wanted whenever anything is."""
    found = a_window(SMALL, 0.3, k1=0.7, without=(5,), reference=1)
    known = measured(found, most=1)
    assert (known.shares, known.latency.ob5) == (Shares(0.3, 0.0, 0.7), SMALL.ob1)
    # The probe is the faster: what reads takes no longer than without a probe, what skips no longer than the probe.
    expected = (0.3 * SMALL.cb + 0.7 * (SMALL.ret1 + SMALL.ob1)) / (SMALL.ret1 + SMALL.ob1)
    assert predict(known, Objective.LATENCY, Plan(Schedule.RACE)) == pytest.approx(expected)
    assert predict(measured(found), Objective.LATENCY, Plan(Schedule.RACE)) > expected


def test_the_ratio_as_served() -> None:
    """Of the objective, against what would be read without a gate; lacking for calls, and for money without prices."""
    found = a_window(SMALL, 0.3)
    assert live_ratio(found, Objective.LATENCY).value == 1.25
    assert live_ratio(found, Objective.TOKENS).value == 1.25
    assert live_ratio(found, Objective.CALLS).value is None
    assert live_ratio(found, Objective.MONEY).value is None
