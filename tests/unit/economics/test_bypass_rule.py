"""The bypass rule: on only when gating surely loses, off only when it surely saves, never after one estimate."""

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


def test_bypass_needs_several_sure_estimates_in_a_row() -> None:
    """One estimate fewer leaves it off; an unsure estimate resets the count."""
    assert not after(*[LOSES] * (PATIENCE - 1)).on
    assert after(*[LOSES] * PATIENCE).on
    assert not after(*[LOSES] * (PATIENCE - 1), UNSURE, LOSES).on


def test_bypass_turns_off_by_itself() -> None:
    """It turns off when gating surely pays again for as many estimates."""
    bypassed = after(*[LOSES] * PATIENCE)
    assert after(*[SAVES] * (PATIENCE - 1), start=bypassed).on
    assert after(*[SAVES] * PATIENCE, start=bypassed) == Bypass()


def test_saving_below_the_margin_changes_nothing() -> None:
    """Between the two limits lies a gap in which either state stays."""
    between = Interval(0.99, 1.0 - MARGIN / 2, 1.0, 900)
    for state in (Bypass(), Bypass(on=True)):
        assert after(*[between] * 10, start=state).on is state.on


def test_missing_estimate_changes_nothing() -> None:
    """A missing estimate changes nothing and resets the count."""
    assert after(*[LOSES] * (PATIENCE - 1), unknown_interval(3, "more"), LOSES) == Bypass(agreeing=1)


@given(st.lists(st.sampled_from([LOSES, SAVES, UNSURE, unknown_interval(0, "more")]), max_size=60))
def test_bypass_never_changes_twice_within_its_patience(agreeing: list[Interval]) -> None:
    """For any estimates, at least this many follow a change without another change."""
    state, since = Bypass(), PATIENCE
    for update in agreeing:
        before, state = state, state.update(update)
        since += 1
        if state.on is not before.on:
            assert since >= PATIENCE
            since = 0
