"""Cost: the published table, and each break-even checked against the cost that it is of."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.decision.cost import (
    Costs,
    Shares,
    Tariff,
    always,
    break_even_against,
    break_even_skip,
    gate_cost,
    gated,
    ratio,
)

# Milliseconds of the paper's two readers, how often each skips, and what gating then changes, in per cent.
SMALL = Costs(cb=64.6, ret1=27.5, ob1=61.4, ret5=27.5, ob5=80.0)
LARGE = Costs(cb=161.1, ret1=27.5, ob1=257.0, ret5=27.5, ob5=319.0)
PUBLISHED = ((SMALL, 0.335, 26.6, 0.601), (LARGE, 0.542, -7.7, 0.465))

parts = st.floats(0.01, 1e4)
costs = st.builds(Costs, parts, parts, parts, parts, parts)
unit = st.floats(0.0, 1.0)


def binary(skip: float) -> Shares:
    return Shares(k0=skip, k1=0.0, k5=1.0 - skip)


@st.composite
def shares(draw: st.DrawFn) -> Shares:
    low, high = sorted((draw(unit), draw(unit)))
    return Shares(low, high - low, 1.0 - high)


@pytest.mark.parametrize(("c", "skip", "change", "even"), PUBLISHED, ids=["8B", "32B"])
def test_the_published_figures(c: Costs, skip: float, change: float, even: float) -> None:
    """The gate costs against always five what the paper says, and pays from the paper's skip rate, by both formulas."""
    assert 100.0 * (ratio(gated(c, binary(skip)), c) - 1.0) == pytest.approx(change, abs=0.1)
    assert 100.0 * (gate_cost(c.cb, skip, always(c, 5)) / always(c, 5) - 1.0) == pytest.approx(change, abs=0.1)
    assert break_even_skip(c) == pytest.approx(even, abs=0.0005)
    assert break_even_against(c.cb, always(c, 5), always(c, 5)) == pytest.approx(even, abs=0.0005)


@given(costs)
@settings(deadline=None)
def test_break_even(c: Costs) -> None:
    """At its break-even the binary gate costs what always five does: less above, more below."""
    even, five = break_even_skip(c), always(c, 5)
    assume(even <= 1.0)
    assert gated(c, binary(even)) == pytest.approx(five)
    assert gated(c, binary(min(1.0, even + 0.1))) <= five * (1 + 1e-9)
    assert gated(c, binary(max(0.0, even - 0.1))) >= five * (1 - 1e-9)


@pytest.mark.parametrize("wrong", [(0.5, 0.5, 0.5), (1.5, -0.5, 0.0), (0.0, 0.0, 0.0)])
def test_shares_must_add_up(wrong: tuple[float, float, float]) -> None:
    """Shares that are negative or do not add up to one are refused."""
    with pytest.raises(ValueError, match="add up to one"):
        Shares(*wrong)


@given(costs, shares(), st.sampled_from([1, 5]))
@settings(deadline=None)
def test_at_its_break_even_the_gate_costs_what_the_reference_does(c: Costs, s: Shares, k: int) -> None:
    """Whatever the mix and the reference, at that skip rate with that mix both forms of the gate cost the same."""
    reading = s.k1 + s.k5
    assume(reading > 1e-6)
    retrieving = (s.k1 * always(c, 1) + s.k5 * always(c, 5)) / reading
    assert gate_cost(c.cb, s.k0, retrieving) == pytest.approx(gated(c, s))
    even = break_even_against(c.cb, retrieving, always(c, k))
    assert gate_cost(c.cb, even, retrieving) == pytest.approx(always(c, k), rel=1e-6, abs=1e-6)


def test_a_tariff_by_hand() -> None:
    """Tokens, calls and passages each at their own price; one without prices is free."""
    tariff = Tariff(prompt_token=1.0, completion_token=10.0, call=100.0, passage=1000.0)
    assert tariff.generation(3, 2) == 23.0
    assert [tariff.retrieval(k) for k in (0, 1, 5)] == [0.0, 1100.0, 5100.0]
    assert Tariff().is_free
    assert not tariff.is_free
