"""The sequential test of a calibrator: few false alarms, early detection, no alarm by a key with few questions."""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from app.certify.drift import Bettor, DriftTest
from app.core.feedback import Asked

TOLERANCE = DELTA = 0.05
KS = (0, 1, 5)


def a_test() -> DriftTest:
    return DriftTest(KS, references=(5,), epsilon=0.02, tolerance=TOLERANCE, delta=DELTA)


def asked(p: float = 0.9, *, correct: bool | None = False, key: str | None = None, k: int = 0) -> Asked:
    return Asked(1, k, p, correct, key)


def traffic(
    chance: random.Random, gap: float, *, key: Callable[[], str | None] = lambda: None, by_references: bool = False
) -> Iterator[Asked]:
    """An endless stream of confidences that exceed the probability of being right by exactly `gap`."""
    while True:
        known, k = math.sqrt(chance.random()), chance.choice(KS)
        correct = chance.random() < (1.0 - gap) * known
        yield Asked(1, k, gap + (1.0 - gap) * known, correct, key(), by_references=by_references)


def first_alarm(stream: Iterable[Asked], most: int, test: DriftTest | None = None) -> int | None:
    """The number of judged answers after which the alarm came."""
    test = test or a_test()
    for number, one in enumerate(islice(stream, most), start=1):
        test.update(one)
        if test.alarm:
            return number
    return None


def by_chance(streams: int) -> int:
    """How many alarms a test at exactly delta would exceed once in a thousand runs."""
    return int(binom.ppf(0.999, streams, DELTA))


@pytest.mark.slow
def test_false_alarms_are_rare_however_often_one_looks() -> None:
    """Over 200 streams of 2,000 verdicts with all the drift that is tolerated, at most delta ever alarm.

    References judge, so that every bettor sees them. An alarm stays, so a look at the end is a look after each.
    """
    chance = random.Random(20)
    alarms = 0
    for _ in range(200):
        test = a_test()
        for one in islice(traffic(chance, TOLERANCE, by_references=True), 2000):
            test.update(one)
        alarms += test.alarm
    assert alarms <= by_chance(200)


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans(), st.sampled_from([None, "b", "d"])), max_size=60))
def test_evidence_stays(after: list[tuple[float, bool, str | None]]) -> None:
    """No later verdict takes evidence back."""
    test = a_test()
    while not test.alarm:
        for liar in ("a", "c"):
            test.update(asked(key=liar))
    for p, correct, key in after:
        test.update(asked(p, correct=correct, key=key))
        assert test.alarm


@pytest.mark.parametrize(("gap", "half", "most"), [(0.15, 220, 480), (0.25, 70, 130)])
def test_drift_is_found_soon(gap: float, half: int, most: int) -> None:
    """The median and the 90th percentile of the delay are below these limits."""
    chance = random.Random(21)
    delays = sorted(first_alarm(traffic(chance, gap), 5000) or 5001 for _ in range(100))
    assert delays[50] <= half
    assert delays[90] <= most


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.97])
def test_a_drop_of_a_tenth_is_found_within_the_documented_number(share: float) -> None:
    """Half of the time within 900 verdicts, nine times out of ten within 2,300; also if one key has 97 % of them."""
    chance = random.Random(25)

    def key() -> str | None:
        return None if share == 0.0 else "large" if chance.random() < share else f"small {chance.randrange(3)}"

    delays = sorted(first_alarm(traffic(chance, 0.1, key=key), 5000) or 5001 for _ in range(100))
    assert delays[50] <= 900
    assert delays[90] <= 2300


def test_drift_is_found_after_a_long_calm() -> None:
    """5,000 judged answers without drift delay the alarm only a little."""
    chance = random.Random(22)
    delays = []
    for _ in range(10):
        test = a_test()
        assert first_alarm(traffic(chance, 0.0), 5000, test) is None
        delays.append(first_alarm(traffic(chance, 0.25), 1000, test) or 1001)
    assert sorted(delays)[8] <= 240


def test_drift_at_one_k_is_found_and_named() -> None:
    """The others are right, so that the mean over all answers stays within the tolerance."""
    chance = random.Random(26)

    def stream() -> Iterator[Asked]:
        sound, drifted = traffic(chance, 0.0), traffic(chance, 0.3)
        while True:
            yield replace(next(sound), k=chance.choice((1, 5)))
            for _ in range(8):
                yield replace(next(sound), k=chance.choice((1, 5)))
            yield replace(next(drifted), k=0)

    test = a_test()
    assert first_alarm(stream(), 5000, test) is not None
    assert test.finding.startswith("recent confidences exceed the share of right answers at k=0 by 0.")


@pytest.mark.parametrize("by_references", [True, False])
def test_confidences_that_are_too_low_are_found_by_references_alone(by_references: bool) -> None:
    """A caller's opinion may be more lenient than the label rule; references judge by the rule itself."""
    test = a_test()
    stream = [Asked(1, 1, 0.5, number % 5 != 0, by_references=by_references) for number in range(400)]
    found = first_alarm(stream, 400, test)
    assert (found is not None) == by_references
    if by_references:
        assert test.finding.startswith("the share of right answers recently exceeds the confidences by 0.")


def test_a_reference_that_became_better_is_found_by_shadow_runs() -> None:
    """Confidences still hold, but always reading is better by more than the certificate allows."""
    chance = random.Random(27)

    def stream(gain: float) -> Iterator[Asked]:
        while True:
            given = chance.random() < 0.7
            read = given or chance.random() < gain / 0.3
            yield Asked(1, 0, 0.7, given, by_references=True, shadow={0: given, 1: given, 5: read})

    test = a_test()
    assert first_alarm(stream(0.2), 1000, test) is not None
    assert test.finding.startswith("always reading k=5 is recently more accurate than the certified policy by 0.")
    streams, alarms = 60, 0
    for _ in range(streams):
        alarms += first_alarm(stream(0.07), 500) is not None
    assert alarms <= by_chance(streams)


def test_a_shadow_run_without_the_answer_given_says_nothing() -> None:
    """An answer that was not kept cannot be compared."""
    test = a_test()
    for shadow in ({5: True}, {0: False}):
        test.update(Asked(1, 0, 0.7, correct=True, by_references=True, shadow=shadow))
    assert set(test.state.everyone.bettors) == {"high", "high:0", "low", "low:0"}


def test_a_key_with_few_questions_cannot_raise_the_alarm_alone() -> None:
    """However strong its evidence, and however seldom the others reply."""
    test = a_test()
    for _ in range(500):
        test.update(asked(key="liar"))
        for other in ("one", "two"):
            test.update(asked(correct=None, key=other))
    assert test.evidence >= 1.0
    assert not test.alarm


def test_a_key_with_most_questions_can() -> None:
    """The calibrator serves mostly this key, whether or not there are others."""
    test = a_test()
    for number in range(100):
        test.update(asked(key="large"))
        if number % 30 == 0:
            test.update(asked(correct=True, key="small"))
    assert test.alarm


def test_a_liar_among_the_honest_is_left_out() -> None:
    """A third of the verdicts is one key's, all of them negative: alarms stay as rare as without it."""
    chance = random.Random(23)
    streams, alarms = 60, 0
    for _ in range(streams):
        test = a_test()
        for number, one in enumerate(islice(traffic(chance, TOLERANCE), 400)):
            if number % 2 == 0:
                test.update(replace(one, correct=False, key="liar"))
            test.update(replace(one, key=f"honest {number % 5}"))
        assert test.evidence >= 1.0
        alarms += test.alarm
    assert alarms <= by_chance(streams)


def test_two_keys_that_agree_raise_it() -> None:
    """Two keys that agree raise the alarm; a new third key does not prevent it."""
    test = a_test()
    for _ in range(60):
        for key in ("one", "two"):
            test.update(asked(key=key))
    assert test.alarm
    test.update(asked(correct=True, key="three"))
    assert test.alarm


def test_without_keys_the_rule_does_not_apply() -> None:
    """Without keys there is no feedback to leave out, and the evidence decides."""
    test = a_test()
    for _ in range(60):
        test.update(asked())
    assert test.alarm


def test_the_state_is_bounded_for_any_number_of_keys() -> None:
    """Later keys are left out in groups, and a liar among them is still left out."""
    test = a_test()
    for number in range(2000):
        test.update(asked(correct=True, key=f"key {number % 500}"))
        if number % 2:
            test.update(asked(key="key 499"))
    assert len(test.state.without) == 64
    assert test.evidence >= 1.0
    assert not test.alarm


verdicts = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.sampled_from([True, False, None]), st.sampled_from([None, "a", "b", "c"])),
    min_size=1,
    max_size=60,
)


@given(verdicts)
def test_leaving_a_key_out_is_never_having_heard_it(
    heard: list[tuple[float, bool | None, str | None]],
) -> None:
    """The bets without a key are those of a test that never saw its verdicts."""
    test = a_test()
    for p, correct, key in heard:
        test.update(asked(p, correct=correct, key=key))
    for group, bets in test.state.without.items():
        deaf = a_test()
        for p, correct, key in heard:
            if f"={key}" != group:
                deaf.update(asked(p, correct=correct))
        assert deaf.state.everyone == bets


@given(st.lists(st.floats(-1.0, 1.0), max_size=300), st.floats(0.0, 0.5))
def test_capital_is_never_gone_and_never_endless(gaps: list[float], tolerance: float) -> None:
    """For any values, the capital stays positive and finite."""
    bettor = Bettor(tolerance)
    for gap in gaps:
        bettor.bet(gap)
        assert 0.0 < bettor.at_stake <= 1e12
        assert bettor.variance >= 0.0


def test_the_game_is_fair_at_best() -> None:
    """At the edge of the hypothesis the mean capital does not change, whatever came before."""
    chance = random.Random(24)
    for _ in range(200):
        won, lost = Bettor(TOLERANCE), Bettor(TOLERANCE)
        for one in islice(traffic(chance, 0.3), chance.randrange(50)):
            won.bet(one.p - bool(one.correct))
            lost.bet(one.p - bool(one.correct))
        before = won.capital
        # p = 0.55 and right half of the time: the mean of p - y is the tolerance.
        won.bet(0.55)
        lost.bet(-0.45)
        assert (won.capital + lost.capital) / 2.0 == pytest.approx(before, rel=1e-12)


def test_a_year_of_failure_does_not_overflow() -> None:
    """The evidence is bounded."""
    test = a_test()
    for _ in range(5000):
        test.update(asked(1.0))
    assert 1.0 <= test.evidence < 10.0
    assert test.finding == "recent confidences exceed the share of right answers by 1.00"


@pytest.mark.parametrize(("tolerance", "delta"), [(-0.1, 0.05), (1.0, 0.05), (0.05, 0.0), (0.05, 1.0)])
def test_invalid_limits_are_refused(tolerance: float, delta: float) -> None:
    """Neither a negative tolerance nor a certain false alarm."""
    with pytest.raises(ValueError, match="tolerance must lie"):
        DriftTest(KS, tolerance=tolerance, delta=delta)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(p: float) -> None:
    """The bound on a bet needs p to be a probability."""
    with pytest.raises(ValueError, match="a probability lies in"):
        a_test().update(asked(p))
