"""Calibrators: reference values, properties of every method, and invalid parameters."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.calibrator import (
    Calibrator,
    Curved,
    Fused,
    Isotonic,
    Logistic,
    MinMax,
    Temperature,
    sigmoid,
)

S = "seq_logprob"
CURVE = Isotonic(S, x=(-2.0, -1.0, 0.0), y=(0.25, 0.25, 0.75))
numbers = st.floats(-1e3, 1e3)
positive = st.floats(1e-3, 1e3)
# Log-probabilities and margins lie within what the clamp lets through.
signal_values = st.floats(-100.0, 100.0)


@st.composite
def isotonics(draw: st.DrawFn) -> Isotonic:
    x = sorted(draw(st.sets(st.integers(-10_000, 0), min_size=1, max_size=12)))
    y = sorted(draw(st.lists(st.floats(0.0, 1.0), min_size=len(x), max_size=len(x))))
    return Isotonic(S, tuple(value / 100.0 for value in x), tuple(y))


rising: st.SearchStrategy[Calibrator] = st.one_of(
    st.builds(Logistic, st.just(S), numbers, positive, st.floats(0.0, 1e3), numbers),
    isotonics(),
    st.builds(Temperature, st.just(S), positive, numbers),
    st.builds(MinMax, st.just(S), st.floats(-1e3, -1.0), st.floats(0.0, 1e3)),
    st.builds(
        Fused,
        st.just((S, "margin")),
        st.tuples(numbers, numbers),
        st.tuples(positive, positive),
        st.tuples(st.floats(0.0, 1e3), numbers),
        numbers,
    ),
)
EACH: tuple[Calibrator, ...] = (
    Logistic(S, mean=-1.0, scale=0.5, slope=2.0, intercept=0.25),
    CURVE,
    Temperature(S, temperature=0.5, bias=1.0),
    MinMax(S, low=-4.0, high=0.0),
    Fused((S, "margin"), means=(-1.0, 2.0), scales=(0.5, 1.0), weights=(1.0, 0.5), intercept=0.0),
    Curved((S, "margin"), (-1.0, 2.0), (0.5, 1.0), weights=(1.0, 0.5), curves=(0.5, -0.25), intercept=0.0),
)


@given(rising, signal_values, signal_values, signal_values)
def test_monotone_within_the_unit_interval(calibrator: Calibrator, one: float, other: float, margin: float) -> None:
    """A higher signal never has a lower probability, and every probability lies in [0, 1]."""
    low, high = (calibrator.predict({S: s, "margin": margin}) for s in sorted((one, other)))
    assert low is not None
    assert high is not None
    # Between two knots the last bit may be rounded either way.
    assert 0.0 <= low <= high + 1e-15
    assert high <= 1.0


@pytest.mark.parametrize("calibrator", EACH, ids=lambda calibrator: calibrator.method)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_a_missing_signal_has_no_probability(calibrator: Calibrator, value: float | None) -> None:
    """An absent signal, a NaN or an infinity is None, never 0.5."""
    signals = {"margin": 1.0, "neg_entropy": -1.0} | ({} if value is None else {S: value})
    assert calibrator.predict(signals) is None


def test_fused_needs_all_of_its_signals() -> None:
    """One missing signal of several is enough for None, whichever it is."""
    for fused in EACH[-2:]:
        assert fused.predict({S: -1.0, "margin": 2.0}) == 0.5
        assert fused.predict({S: -1.0}) is None
        assert fused.predict({"margin": 2.0}) is None


def test_reference_values() -> None:
    """Each method gives the value of a hand calculation."""
    logistic, _, temperature, minmax, fused, curved = EACH
    # sigma(2 (-0.5 + 1) / 0.5 + 0.25) = sigma(2.25)
    assert logistic.predict({S: -0.5}) == pytest.approx(0.904651, abs=1e-6)
    # sigma(-1 / 0.5 + 1) = sigma(-1)
    assert temperature.predict({S: -1.0}) == pytest.approx(0.268941, abs=1e-6)
    assert minmax.predict({S: -1.0}) == 0.75
    assert minmax.predict({S: -5.0}) == 0.0
    assert minmax.predict({S: 1.0}) == 1.0
    # sigma(1 (-0.5 + 1) / 0.5 + 0.5 (4 - 2) / 1) = sigma(2)
    assert fused.predict({S: -0.5, "margin": 4.0}) == pytest.approx(0.880797, abs=1e-6)
    # sigma(1 + 0.5 + 0.5 2 - 0.25 4) = sigma(1.5)
    assert curved.predict({S: -0.5, "margin": 4.0}) == pytest.approx(0.817574, abs=1e-6)
    # Beyond its reach a signal counts as at it: sigma(3 + 4.5) whether it is at 3 or at 30.
    assert curved.predict({S: 14.0, "margin": 2.0}) == curved.predict({S: 0.5, "margin": 2.0})


@pytest.mark.parametrize(
    ("s", "p"),
    [(-2.0, 0.25), (-1.0, 0.25), (0.0, 0.75), (-1.5, 0.25), (-0.5, 0.5), (-0.25, 0.625), (-9.0, 0.25), (3.0, 0.75)],
)
def test_isotonic_at_between_and_outside_knots(s: float, p: float) -> None:
    """The curve passes through its knots, is straight between them and flat outside."""
    assert CURVE.predict({S: s}) == p


def test_isotonic_with_one_knot_is_constant() -> None:
    """A single knot gives the same probability everywhere."""
    constant = Isotonic(S, (-1.0,), (0.5,))
    assert [constant.predict({S: s}) for s in (-2.0, -1.0, 0.0)] == [0.5] * 3


@given(isotonics(), st.floats(-110.0, 10.0))
def test_isotonic_is_numpys_interpolation(curve: Isotonic, s: float) -> None:
    """The served curve is numpy.interp on the same knots."""
    assert curve.predict({S: s}) == pytest.approx(float(np.interp(s, curve.x, curve.y)), abs=1e-12)


@given(st.floats(-800.0, 800.0))
def test_sigmoid_is_symmetric(x: float) -> None:
    """P and 1 - p swap where the sign does, without overflow far out."""
    assert sigmoid(x) + sigmoid(-x) == pytest.approx(1.0, abs=1e-15)


def test_sigmoid_at_its_ends() -> None:
    """One half at 0; exactly 0 and 1 far out."""
    assert (sigmoid(0.0), sigmoid(-1e9), sigmoid(1e9)) == (0.5, 0.0, 1.0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Logistic(S, 0.0, 0.0, 1.0, 0.0), "scale > 0"),
        (lambda: Logistic(S, 0.0, 0.0, 0.1, 0.0), "scale > 0"),
        (lambda: Logistic(S, math.nan, 1.0, 1.0, 0.0), "finite"),
        (lambda: Isotonic(S, (), ()), "at least one"),
        (lambda: Isotonic(S, (0.0, 1.0), (0.5,)), "as many y as x"),
        (lambda: Isotonic(S, (0.0, 0.0), (0.1, 0.2)), "increasing x"),
        (lambda: Isotonic(S, (0.0, 1.0), (0.2, 0.1)), "non-decreasing"),
        (lambda: Isotonic(S, (0.0, 1.0), (-0.1, 0.2)), r"within \[0, 1\]"),
        (lambda: Isotonic(S, (0.0, 1.0), (0.1, 1.1)), r"within \[0, 1\]"),
        (lambda: Isotonic(S, (0.0, math.inf), (0.1, 0.2)), "finite"),
        (lambda: Isotonic(S, (0.0, 1.0), (0.1, math.nan)), "finite"),
        (lambda: Temperature(S, 0.0, 0.0), "positive"),
        (lambda: Temperature(S, math.inf, 0.0), "finite"),
        (lambda: MinMax(S, 1.0, 1.0), "low < high"),
        (lambda: MinMax(S, -math.inf, 1.0), "finite"),
        (lambda: Fused((), (), (), (), 0.0), "per signal"),
        (lambda: Fused((S,), (0.0, 0.0), (1.0,), (1.0,), 0.0), "per signal"),
        (lambda: Fused((S,), (0.0,), (1.0, 1.0), (1.0,), 0.0), "per signal"),
        (lambda: Fused((S,), (0.0,), (1.0,), (1.0, 1.0), 0.0), "per signal"),
        (lambda: Fused((S,), (0.0,), (0.0,), (1.0,), 0.0), "positive"),
        (lambda: Fused((S,), (0.0,), (1.0,), (1.0,), math.nan), "finite"),
        (lambda: Curved((S,), (0.0,), (1.0,), (1.0,), (), 0.0), "per signal"),
        (lambda: Curved((S,), (0.0,), (0.0,), (1.0,), (1.0,), 0.0), "positive"),
    ],
)
def test_invalid_parameters_are_refused(build: Callable[[], Any], message: str) -> None:
    """Parameters that could not be applied are refused."""
    with pytest.raises(ValueError, match=message):
        build()
