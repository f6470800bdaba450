"""Bypass: given up only when gating surely loses, taken up only when it surely saves, and never at one look."""

from hypothesis import given
from hypothesis import strategies as st

from app.certify.intervals import Interval, unknown_interval
from app.economics.bypass import MARGIN, PATIENCE, Bypass

LOSES, SAVES = Interval(1.2, 1.1, 1.3, 900), Interval(0.8, 0.75, 0.85, 900)
UNSURE = Interval(1.1, 0.95, 1.25, 40)


def after(*agreeing: Interval, start: Bypass | None = None) -> Bypass:
    state = start or Bypass()
    for update in agreeing:
        state = state.update(update)
    return state


def test_it_takes_several_sure_looks_in_a_row() -> None:
    """One look fewer leaves it off; a look that is not sure begins the count again."""
    assert not after(*[LOSES] * (PATIENCE - 1)).on
    assert after(*[LOSES] * PATIENCE).on
    assert not after(*[LOSES] * (PATIENCE - 1), UNSURE, LOSES).on


def test_it_returns_by_itself() -> None:
    """When gating surely pays again for as many looks."""
    bypassed = after(*[LOSES] * PATIENCE)
    assert after(*[SAVES] * (PATIENCE - 1), start=bypassed).on
    assert after(*[SAVES] * PATIENCE, start=bypassed) == Bypass()


def test_a_saving_smaller_than_the_margin_changes_nothing() -> None:
    """Between giving up and taking up lies a gap, in which either state stays."""
    between = Interval(0.99, 1.0 - MARGIN / 2, 1.0, 900)
    for state in (Bypass(), Bypass(on=True)):
        assert after(*[between] * 10, start=state).on is state.on


def test_without_an_estimate_nothing_changes() -> None:
    """Too few questions say nothing, and what was said before them no longer counts."""
    assert after(*[LOSES] * (PATIENCE - 1), unknown_interval(3, "more"), LOSES) == Bypass(agreeing=1)


@given(st.lists(st.sampled_from([LOSES, SAVES, UNSURE, unknown_interval(0, "more")]), max_size=60))
def test_it_never_changes_twice_within_its_patience(agreeing: list[Interval]) -> None:
    """Whatever is seen, a change is followed by at least so many looks without one."""
    state, since = Bypass(), PATIENCE
    for update in agreeing:
        before, state = state, state.update(update)
        since += 1
        if state.on is not before.on:
            assert since >= PATIENCE
            since = 0
