"""What schedules spend beside time, and what a pre-gate changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.decision.cost import NO_EXIT, Costs, Exit, Shares, always, overlap, race, serial
from app.decision.spending import CALLS, Pregate, begun_at_probe_end, overlap_spent, pregated, race_spent

SMALL = Costs(cb=64.6, ret1=27.5, ob1=61.4, ret5=27.5, ob5=80.0)
HALF = Shares(0.5, 0.2, 0.3)
ROUND = Costs(cb=10.0, ret1=1.0, ob1=20.0, ret5=2.0, ob5=100.0)

parts = st.floats(0.01, 1e4)
costs = st.builds(Costs, parts, parts, parts, parts, parts)
unit = st.floats(0.0, 1.0)
exits = st.builds(Exit, unit, unit, unit)


@st.composite
def shares(draw: st.DrawFn) -> Shares:
    low, high = sorted((draw(unit), draw(unit)))
    return Shares(low, high - low, 1.0 - high)


def test_a_race_costs_the_small_reader_63_per_cent_more_generation() -> None:
    """By the published times: the probe, every read that wins, and of each loser what had been read by then."""
    reading = Costs(cb=SMALL.cb, ret1=0.0, ob1=SMALL.ob1, ret5=0.0, ob5=SMALL.ob5)
    work = race_spent(reading, Shares(0.335, 0.0, 0.665), begun=begun_at_probe_end(SMALL))
    assert work / SMALL.ob5 == pytest.approx(1.63, abs=0.005)


def test_spending_by_hand() -> None:
    """An overlap searches for all; a race reads for all, too, and throws away what a skip or one passage leaves."""
    assert overlap_spent(ROUND, HALF) == pytest.approx(10 + 2 + 0.2 * 20 + 0.3 * 100)
    assert race_spent(ROUND, HALF) == pytest.approx(10 + 2 + 0.2 * 20 + 0.3 * 100 + 0.7 * 100)
    assert race_spent(ROUND, HALF, begun=0.0) == overlap_spent(ROUND, HALF)
    # Half of the rest's probes stop after a tenth: 0.5 * 0.5 * 0.9 of ten is spared.
    assert overlap_spent(ROUND, HALF, Exit(0.5, 0.1)) == pytest.approx(overlap_spent(ROUND, HALF) - 2.25)


def test_calls_by_hand() -> None:
    """A serial gate calls for what it reads, the others for every question."""
    assert serial(CALLS, HALF) == pytest.approx(0.5)
    assert overlap_spent(CALLS, HALF) == race_spent(CALLS, HALF) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("c", "begun"),
    [
        (Costs(5.0, 9.0, 1.0, 9.0, 1.0), 0.0),
        (Costs(10.0, 2.0, 1.0, 2.0, 16.0), 0.5),
        (Costs(99.0, 2.0, 1.0, 2.0, 4.0), 1.0),
        (Costs(99.0, 2.0, 1.0, 2.0, 0.0), 0.0),
    ],
)
def test_how_much_of_a_read_is_done(c: Costs, begun: float) -> None:
    """None before retrieval ends, all of it at most; of nothing, none."""
    assert begun_at_probe_end(c) == begun


@given(costs, shares(), exits)
@settings(deadline=None)
def test_a_pre_gate_that_sends_nothing_changes_nothing(c: Costs, s: Shares, exit_: Exit) -> None:
    """Where no question is sent and embedding is free, what is left is the schedule itself."""
    for cost in (serial, overlap, race, overlap_spent, race_spent):
        assert pregated(cost, c, s, Pregate(0.0, then=exit_)) == pytest.approx(cost(c, s, exit_))


@given(costs, shares(), unit)
@settings(deadline=None)
def test_a_pre_gate_that_sends_all_is_no_gate(c: Costs, s: Shares, one: float) -> None:
    """All questions read passages and none is probed: one or five, as the pre-gate says."""
    expected = one * always(c, 1) + (1.0 - one) * always(c, 5)
    assert pregated(serial, c, s, Pregate(1.0, lost=1.0, one=one)) == pytest.approx(expected)


@given(costs, shares(), unit)
@settings(deadline=None)
def test_a_pre_gate_that_knows_only_saves(c: Costs, s: Shares, caught: float) -> None:
    """If it sends only questions that would have read five anyway, each spares the serial gate its probe."""
    five = Shares(s.k0, 0.0, s.k1 + s.k5)
    saved = serial(c, five) - pregated(serial, c, five, Pregate(caught))
    assert saved == pytest.approx(five.k5 * caught * c.cb, rel=1e-6, abs=1e-6)


def test_an_embedding_before_the_probe_by_hand() -> None:
    """It delays the probe, and retrieval has it already: a skip pays for it, a serial retrieval does not pay twice."""
    c, gate = Costs(cb=10.0, ret1=4.0, ob1=5.0, ret5=4.0, ob5=20.0), Pregate(0.0, embed=3.0)
    assert pregated(serial, c, Shares(1.0, 0.0, 0.0), gate) == 13.0
    assert pregated(serial, c, Shares(0.0, 0.0, 1.0), gate) == serial(c, Shares(0.0, 0.0, 1.0), NO_EXIT)
    assert pregated(overlap, c, Shares(0.0, 0.0, 1.0), gate) == 33.0
