"""Cost: the published figures, and the break-even checked against the cost formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.cost import Tariff, break_even_against

amount = st.floats(0.01, 1e4)


def gate_cost(cb: float, skip: float, retrieving: float) -> float:
    """Mean cost of a gated question: a probe, and `retrieving` unless retrieval is skipped."""
    return cb + (1.0 - skip) * retrieving


@pytest.mark.parametrize(
    ("cb", "five", "skip", "change", "even"),
    [
        pytest.param(64.6, 27.5 + 80.0, 0.335, 26.6, 0.601, id="8B"),
        pytest.param(161.1, 27.5 + 319.0, 0.542, -7.7, 0.465, id="32B"),
    ],
)
def test_the_published_figures(cb: float, five: float, skip: float, change: float, even: float) -> None:
    """Cost of the binary gate against always five, in per cent, and its break-even, as in the paper."""
    assert 100.0 * (gate_cost(cb, skip, five) / five - 1.0) == pytest.approx(change, abs=0.1)
    assert break_even_against(cb, five, five) == pytest.approx(even, abs=0.0005)


@given(amount, amount, amount)
def test_break_even(cb: float, retrieving: float, reference: float) -> None:
    """At its break-even the gate costs what the reference does: less above, more below."""
    even = break_even_against(cb, retrieving, reference)
    assert gate_cost(cb, even, retrieving) == pytest.approx(reference, rel=1e-6, abs=1e-6)
    assert gate_cost(cb, even + 0.1, retrieving) < gate_cost(cb, even - 0.1, retrieving)


def test_a_tariff_by_hand() -> None:
    """Tokens, calls and passages each at their own price; one without prices is free."""
    tariff = Tariff(prompt_token=1.0, completion_token=10.0, call=100.0, passage=1000.0)
    assert tariff.generation(3, 2) == 23.0
    assert [tariff.retrieval(k) for k in (0, 1, 5)] == [0.0, 1100.0, 5100.0]
    assert Tariff().is_free
    assert not tariff.is_free
