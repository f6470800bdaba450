"""Cost: the published table, and each break-even checked against the schedule that it is of."""

import math
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.decision.cost import (
    Costs,
    Exit,
    Shares,
    Tariff,
    always,
    always_rag,
    break_even_against,
    break_even_skip,
    gate_cost,
    mean_retrieving,
    overlap,
    overlap_break_even_skip,
    race,
    race_break_even_skip,
    ratio,
    serial,
)

# Milliseconds of the paper's two readers, and how often each skips.
SMALL = Costs(cb=64.6, ret1=27.5, ob1=61.4, ret5=27.5, ob5=80.0)
LARGE = Costs(cb=161.1, ret1=27.5, ob1=257.0, ret5=27.5, ob5=319.0)
SMALL_SKIP, LARGE_SKIP = 0.335, 0.542
HOPELESS = Exit(caught=0.7, spent=1 / 3)

parts = st.floats(0.01, 1e4)
costs = st.builds(Costs, parts, parts, parts, parts, parts)
unit = st.floats(0.0, 1.0)


def binary(skip: float) -> Shares:
    return Shares(k0=skip, k1=0.0, k5=1.0 - skip)


@st.composite
def shares(draw: st.DrawFn) -> Shares:
    low, high = sorted((draw(unit), draw(unit)))
    return Shares(low, high - low, 1.0 - high)


@pytest.mark.parametrize(
    ("schedule", "small", "large"),
    [
        pytest.param(serial, 26.6, -7.7, id="serial"),
        pytest.param(overlap, 9.6, -11.3, id="overlap"),
        pytest.param(lambda c, s: serial(c, s, HOPELESS), 7.9, -17.6, id="early exit"),
        pytest.param(lambda c, s: overlap(c, s, HOPELESS), -6.5, -21.3, id="overlap and early exit"),
        pytest.param(race, -13.4, -29.0, id="race"),
    ],
)
def test_the_published_table(schedule: Callable[[Costs, Shares], float], small: float, large: float) -> None:
    """Every schedule costs against always-RAG what the table says, to a tenth of a per cent."""
    for c, skip, change in ((SMALL, SMALL_SKIP, small), (LARGE, LARGE_SKIP, large)):
        assert 100.0 * (ratio(schedule(c, binary(skip)), c) - 1.0) == pytest.approx(change, abs=0.1)


def test_the_published_break_even() -> None:
    """The serial gate of the two readers pays from a skip rate of .601 and .465."""
    assert break_even_skip(SMALL) == pytest.approx(0.601, abs=0.0005)
    assert break_even_skip(LARGE) == pytest.approx(0.465, abs=0.0005)


@given(costs)
@settings(deadline=None)
def test_serial_break_even(c: Costs) -> None:
    """At its break-even the serial binary gate costs what always-RAG does: less above, more below."""
    even = break_even_skip(c)
    assume(even <= 1.0)
    assert serial(c, binary(even)) == pytest.approx(always_rag(c))
    assert serial(c, binary(min(1.0, even + 0.1))) <= always_rag(c) * (1 + 1e-9)
    assert serial(c, binary(max(0.0, even - 0.1))) >= always_rag(c) * (1 - 1e-9)


@given(costs)
@settings(deadline=None)
def test_overlap_break_even(c: Costs) -> None:
    """The same where retrieval overlaps the probe; it asks for no higher a skip rate than the serial gate."""
    even = overlap_break_even_skip(c)
    if even > 1.0:
        assert overlap(c, binary(1.0)) > always_rag(c)
        return
    assert overlap(c, binary(even)) == pytest.approx(always_rag(c))
    assert overlap(c, binary(min(1.0, even + 0.1))) <= always_rag(c) * (1 + 1e-9)
    assert overlap(c, binary(max(0.0, even - 0.1))) >= always_rag(c) * (1 - 1e-9)
    assert even <= break_even_skip(c) + 1e-9


def test_overlap_that_can_save_nothing_never_breaks_even() -> None:
    """Where reading is free and the probe is slower than retrieval, no skip rate pays."""
    assert overlap_break_even_skip(Costs(cb=2.0, ret1=1.0, ob1=0.0, ret5=1.0, ob5=0.0)) == math.inf


@given(costs, unit)
@settings(deadline=None)
def test_race_break_even(c: Costs, skip: float) -> None:
    """A race costs less than always-RAG from its break-even on, so from the first skip if the probe is the faster."""
    even = race_break_even_skip(c)
    if skip > even:
        assert race(c, binary(skip)) <= always_rag(c) * (1 + 1e-9)
    if math.isinf(even):
        assert race(c, binary(skip)) > always_rag(c) * (1 - 1e-9)
        assert c.cb > always_rag(c)
    else:
        assert race(c, binary(even)) == pytest.approx(always_rag(c))


def test_race_of_equals_changes_nothing() -> None:
    """A probe exactly as slow as always-RAG costs the same at every skip rate, so it never pays before all skip."""
    c = Costs(cb=3.0, ret1=1.0, ob1=1.0, ret5=1.0, ob5=2.0)
    assert [race(c, binary(skip)) for skip in (0.0, 0.5, 1.0)] == [always_rag(c)] * 3
    assert race_break_even_skip(c) == 1.0


@given(costs, unit)
@settings(deadline=None)
def test_faster_schedules_are_never_slower(c: Costs, skip: float) -> None:
    """For a binary gate the race is no slower than the overlap, nor that than the serial schedule."""
    s, slack = binary(skip), 1 + 1e-9
    assert race(c, s) <= overlap(c, s) * slack
    assert overlap(c, s) <= serial(c, s) * slack


@given(costs, shares(), unit, unit)
@settings(deadline=None)
def test_an_early_exit_only_saves(c: Costs, s: Shares, caught: float, spent: float) -> None:
    """Cutting probes short never costs more, and an exit that catches or spares nothing changes nothing."""
    for schedule in (serial, overlap):
        assert schedule(c, s, Exit(caught, spent)) <= schedule(c, s) * (1 + 1e-9)
        assert schedule(c, s, Exit(0.0, spent)) == pytest.approx(schedule(c, s))
        assert schedule(c, s, Exit(caught, 1.0)) == pytest.approx(schedule(c, s))


def test_one_passage_by_hand() -> None:
    """A question that reads one passage costs each schedule what a hand calculation says."""
    c, s = Costs(cb=10.0, ret1=2.0, ob1=3.0, ret5=4.0, ob5=20.0), Shares(0.0, 1.0, 0.0)
    assert serial(c, s) == 15.0
    assert overlap(c, s) == 13.0
    assert race(c, s) == 13.0
    # Nine tenths caught after a fifth of the probe: 0.1 * 10 + 0.9 * 2, and while that runs, retrieval takes 4.
    assert serial(c, s, Exit(0.9, 0.2)) == pytest.approx(7.8)
    assert overlap(c, s, Exit(0.9, 0.2)) == pytest.approx(1.0 + 3.6 + 3.0)


@pytest.mark.parametrize("wrong", [(0.5, 0.5, 0.5), (1.5, -0.5, 0.0), (0.0, 0.0, 0.0)])
def test_shares_must_add_up(wrong: tuple[float, float, float]) -> None:
    """Shares that are negative or do not add up to one are refused."""
    with pytest.raises(ValueError, match="add up to one"):
        Shares(*wrong)


@given(costs, unit)
@settings(deadline=None)
def test_for_the_binary_gate_the_general_break_even_is_the_papers(c: Costs, skip: float) -> None:
    """Against always five, with none sent to one passage, both formulas say the same at any skip rate."""
    assume(skip < 1.0)
    general = break_even_against(c.cb, mean_retrieving(c, binary(skip)), always(c, 5))
    assert general == pytest.approx(break_even_skip(c), rel=1e-6, abs=1e-9)


def test_the_published_figures_by_the_general_formulas() -> None:
    """8B: pays from .601 and costs 26.6 % more; 32B: pays from .465 and saves 7.7 %."""
    for c, skip, even, change in ((SMALL, SMALL_SKIP, 0.601, 26.6), (LARGE, LARGE_SKIP, 0.465, -7.7)):
        retrieving = mean_retrieving(c, binary(skip))
        assert break_even_against(c.cb, retrieving, always(c, 5)) == pytest.approx(even, abs=0.0005)
        assert 100 * (gate_cost(c.cb, skip, retrieving) / always(c, 5) - 1) == pytest.approx(change, abs=0.1)


@given(costs, shares(), st.sampled_from([1, 5]))
@settings(deadline=None)
def test_at_its_break_even_the_gate_costs_what_the_reference_does(c: Costs, s: Shares, k: int) -> None:
    """Whatever the mix and the reference, at that skip rate with that mix the serial schedule costs the same."""
    retrieving = s.k1 + s.k5
    assume(retrieving > 1e-6)
    even = break_even_against(c.cb, mean_retrieving(c, s), always(c, k))
    assert gate_cost(c.cb, even, mean_retrieving(c, s)) == pytest.approx(always(c, k), rel=1e-6, abs=1e-6)
    if 0.0 <= even <= 1.0:
        rest = (1.0 - even) / retrieving
        moved = Shares(even, rest * s.k1, rest * s.k5)
        assert serial(c, moved) == pytest.approx(always(c, k), rel=1e-6, abs=1e-6)


@given(costs, shares())
@settings(deadline=None)
def test_the_gate_in_two_forms(c: Costs, s: Shares) -> None:
    """A probe and the mean of what retrieving questions pay add up to the serial schedule."""
    assume(s.k1 + s.k5 > 1e-6)
    assert gate_cost(c.cb, s.k0, mean_retrieving(c, s)) == pytest.approx(serial(c, s))


def test_nothing_retrieves_so_nothing_has_a_mean() -> None:
    """A gate that skips all has no mix of passages."""
    with pytest.raises(ValueError, match="no question reads"):
        mean_retrieving(SMALL, binary(1.0))


def test_a_tariff_by_hand() -> None:
    """Tokens, calls and passages each at their own price; one without prices is free."""
    tariff = Tariff(prompt_token=1.0, completion_token=10.0, call=100.0, passage=1000.0)
    assert tariff.generation(3, 2) == 23.0
    assert [tariff.retrieval(k) for k in (0, 1, 5)] == [0.0, 1100.0, 5100.0]
    assert Tariff().is_free
    assert not tariff.is_free
