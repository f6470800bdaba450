"""The sequential test of confidences: few false alarms, early detection, and no alarm from a single key."""

import math
import random
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from app.certify.bets import Bettor
from app.certify.drift import DriftTest

TOLERANCE = DELTA = 0.05
Feedback = tuple[float, bool]


def traffic(chance: random.Random, gap: float) -> Iterator[Feedback]:
    """An endless stream of confidences that exceed the probability of being right by exactly `gap`."""
    while True:
        known = math.sqrt(chance.random())
        yield gap + (1.0 - gap) * known, chance.random() < (1.0 - gap) * known


def first_alarm(feedback: Iterator[Feedback], most: int) -> int | None:
    """The number of judged answers after which the alarm came."""
    test = DriftTest(tolerance=TOLERANCE, delta=DELTA)
    for number, (p, correct) in enumerate(islice(feedback, most), start=1):
        test.update(p, correct=correct)
        if test.alarm:
            return number
    return None


def by_chance(streams: int) -> int:
    """How many alarms a test at exactly delta would exceed once in a thousand runs."""
    return int(binom.ppf(0.999, streams, DELTA))


@pytest.mark.slow
def test_false_alarms_are_rare_however_often_one_looks() -> None:
    """Over 1,000 streams of 2,000 feedbacks with all the drift that is tolerated, at most delta ever alarm.

    An alarm stays, as the next test shows, so that a look at the end is a look after each.
    """
    chance = random.Random(20)
    alarms = 0
    for _ in range(1000):
        bettor = Bettor(TOLERANCE)
        for p, correct in islice(traffic(chance, TOLERANCE), 2000):
            bettor.bet(p - correct)
        alarms += bettor.peak >= 1.0 / DELTA
    assert alarms <= by_chance(1000)


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans(), st.sampled_from([None, "a", "b"])), max_size=60))
def test_an_alarm_stays(after: list[tuple[float, bool, str | None]]) -> None:
    """No later feedback cancels an alarm."""
    test = DriftTest(tolerance=TOLERANCE, delta=DELTA)
    while not test.alarm:
        for liar in ("a", "c"):
            test.update(0.9, correct=False, key=liar)
    for p, correct, key in after:
        test.update(p, correct=correct, key=key)
        assert test.alarm


@pytest.mark.parametrize(("gap", "half", "most"), [(0.15, 180, 420), (0.25, 60, 110)])
def test_drift_is_found_soon(gap: float, half: int, most: int) -> None:
    """The median and the 90th percentile of the delay are below these limits."""
    chance = random.Random(21)
    delays = sorted(first_alarm(traffic(chance, gap), 5000) or 5001 for _ in range(200))
    assert delays[100] <= half
    assert delays[180] <= most


def test_drift_is_found_after_a_long_calm() -> None:
    """5,000 judged answers without drift delay the alarm only a little."""
    chance = random.Random(22)
    delays = []
    for _ in range(20):
        test = DriftTest(tolerance=TOLERANCE, delta=DELTA)
        for p, correct in islice(traffic(chance, 0.0), 5000):
            test.update(p, correct=correct)
        calm = test.alarm
        assert not calm
        for p, correct in traffic(chance, 0.25):
            test.update(p, correct=correct)
            if test.alarm:
                break
        delays.append(test.seen - 5000)
    assert sorted(delays)[18] <= 220


def test_one_key_cannot_raise_the_alarm_alone() -> None:
    """One key alone raises no alarm, however strong its evidence."""
    test = DriftTest(tolerance=TOLERANCE, delta=DELTA)
    for _ in range(500):
        test.update(0.9, correct=False, key="liar")
    assert test.evidence >= 1.0
    assert test.evidence_without_any_key == 0.0
    assert not test.alarm


def test_a_liar_among_the_honest_is_left_out() -> None:
    """A third of the feedback is one key's, all of it negative: alarms stay as rare as without it."""
    chance = random.Random(23)
    streams, alarms = 100, 0
    for _ in range(streams):
        test = DriftTest(tolerance=TOLERANCE, delta=DELTA)
        for number, (p, correct) in enumerate(islice(traffic(chance, TOLERANCE), 400)):
            if number % 2 == 0:
                test.update(p, correct=False, key="liar")
            test.update(p, correct=correct, key=f"honest {number % 5}")
        assert test.evidence >= 1.0
        alarms += test.alarm
    assert alarms <= by_chance(streams)


def test_two_keys_that_agree_raise_it() -> None:
    """Two keys that agree raise the alarm; a new third key does not prevent it."""
    test = DriftTest(tolerance=TOLERANCE, delta=DELTA)
    for _ in range(60):
        for key in ("one", "two"):
            test.update(0.9, correct=False, key=key)
    assert test.alarm
    test.update(0.9, correct=True, key="three")
    assert test.alarm


def test_without_keys_the_rule_does_not_apply() -> None:
    """Without keys there is no feedback to leave out, and the evidence decides."""
    test = DriftTest(tolerance=TOLERANCE, delta=DELTA)
    for _ in range(60):
        test.update(0.9, correct=False)
    assert test.evidence_without_any_key == test.evidence >= 1.0
    assert test.alarm


feedbacks = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.booleans(), st.sampled_from([None, "a", "b", "c"])), min_size=1, max_size=60
)


@given(feedbacks)
def test_leaving_a_key_out_is_never_having_heard_it(feedback: list[tuple[float, bool, str | None]]) -> None:
    """The evidence without any key is the smallest evidence of the tests that never saw one of them."""
    test = DriftTest()
    for p, correct, key in feedback:
        test.update(p, correct=correct, key=key)
    evidence = []
    for left_out in {key for _, _, key in feedback if key is not None}:
        deaf = DriftTest()
        for p, correct, key in feedback:
            if key != left_out:
                deaf.update(p, correct=correct)
        evidence.append(deaf.evidence)
    assert test.evidence_without_any_key == min(evidence, default=test.evidence)


@given(st.lists(st.floats(-1.0, 1.0), max_size=300), st.floats(0.0, 0.5))
def test_capital_is_never_gone_and_never_endless(gaps: list[float], tolerance: float) -> None:
    """For any values, the capital stays positive and finite."""
    bettor = Bettor(tolerance)
    for gap in gaps:
        bettor.bet(gap)
        assert 0.0 < bettor.at_stake <= 1e12
        assert bettor.variance >= 0.0
        assert bettor.peak >= 1.0


def test_the_game_is_fair_at_best() -> None:
    """At the edge of the hypothesis the mean capital does not change, whatever came before."""
    chance = random.Random(24)
    for _ in range(200):
        won, lost = Bettor(TOLERANCE), Bettor(TOLERANCE)
        for p, correct in islice(traffic(chance, 0.3), chance.randrange(50)):
            won.bet(p - correct)
            lost.bet(p - correct)
        before = won.at_stake + won.reserve
        # p = 0.55 and right half of the time: the mean of p - y is the tolerance.
        won.bet(0.55)
        lost.bet(-0.45)
        after = (won.at_stake + lost.at_stake) / 2.0 + won.reserve
        assert after == pytest.approx(before, rel=1e-12)


def test_a_year_of_failure_does_not_overflow() -> None:
    """The evidence is bounded."""
    test = DriftTest(tolerance=TOLERANCE, delta=DELTA)
    for _ in range(5000):
        test.update(1.0, correct=False)
    assert 1.0 <= test.evidence < 10.0
    assert test.recent_gap == pytest.approx(1.0)


@pytest.mark.parametrize(("tolerance", "delta"), [(-0.1, 0.05), (1.0, 0.05), (0.05, 0.0), (0.05, 1.0)])
def test_invalid_limits_are_refused(tolerance: float, delta: float) -> None:
    """Neither a negative tolerance nor a certain false alarm."""
    with pytest.raises(ValueError, match="tolerance must lie"):
        DriftTest(tolerance=tolerance, delta=delta)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(p: float) -> None:
    """The bound on a bet needs p to be a probability."""
    with pytest.raises(ValueError, match="a probability lies in"):
        DriftTest().update(p, correct=True)
