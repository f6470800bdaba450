"""Signals: reference values calculated by hand, and properties of every answer."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.signals import ALL_NAMES, LOGPROB_FLOOR, NAMES, TOP, TokenLogprobs, extract

LN = math.log
# Half, a quarter, and eighteen hundredths: 0.93 seen, a tail of 0.07.
SPREAD = TokenLogprobs(LN(0.5), (LN(0.5), LN(0.25), *[LN(0.01)] * 18))
# Every alternative equally likely, and nothing beside them.
FLAT = TokenLogprobs(LN(0.05), (LN(0.05),) * TOP)
# Certain: all the others are marked impossible.
SURE = TokenLogprobs(0.0, (0.0, *[-9999.0] * 19))


@st.composite
def tokens(draw: st.DrawFn) -> TokenLogprobs:
    """A token of a real distribution over 20 to 60 words, its top 20 best first."""
    # Twenty numbers a token drawn one by one would take hypothesis seconds.
    random = Random(draw(st.integers(0, 2**32)))
    peak = draw(st.sampled_from([0.0, 1.0, 5.0, 20.0]))
    weights = [math.exp(peak * random.gauss(0.0, 1.0)) for _ in range(draw(st.integers(TOP, 60)))]
    total = math.fsum(weights)
    logprobs = sorted((LN(weight / total) for weight in weights), reverse=True)
    return TokenLogprobs(draw(st.sampled_from(logprobs[:TOP])), tuple(logprobs[:TOP]))


answers = st.lists(tokens(), min_size=1, max_size=10)


def test_reference_values_of_one_token() -> None:
    """Half, a quarter and eighteen hundredths have the log-probability, entropy and margin of a hand calculation."""
    signals = extract([SPREAD])
    assert signals["seq_logprob"] == pytest.approx(-0.693147, abs=1e-6)
    # 0.5 ln 2 + 0.25 ln 4 + 0.18 ln 100 + 0.07 ln(1 / 0.07)
    assert signals["neg_entropy"] == pytest.approx(-(0.346574 + 0.346574 + 0.828931 + 0.186148), abs=2e-6)
    assert signals["margin"] == pytest.approx(LN(2.0))


def test_reference_values_of_extremes() -> None:
    """A uniform token has entropy ln 20 and no margin; a certain one no entropy and the greatest margin."""
    assert extract([FLAT])["neg_entropy"] == pytest.approx(-LN(20.0))
    assert extract([FLAT])["margin"] == 0.0
    assert extract([SURE])["neg_entropy"] == pytest.approx(0.0, abs=1e-12)
    assert extract([SURE])["margin"] == -LOGPROB_FLOOR
    assert extract([SURE])["seq_logprob"] == 0.0


def test_signals_are_means_over_tokens() -> None:
    """Each signal of an answer is the mean of its tokens' own."""
    both, one, other = extract([SPREAD, FLAT]), extract([SPREAD]), extract([FLAT])
    for name in NAMES:
        assert both[name] == pytest.approx((one[name] + other[name]) / 2)


@pytest.mark.parametrize("sentinel", [-math.inf, -9999.0, -1e300])
def test_a_sentinel_is_clamped(sentinel: float) -> None:
    """A token marked impossible counts as the floor, so that the mean stays finite."""
    signals = extract([TokenLogprobs(sentinel, (0.0, *[sentinel] * 19)), SURE])
    assert signals["seq_logprob"] == LOGPROB_FLOOR / 2
    assert signals["margin"] == -LOGPROB_FLOOR
    assert signals["neg_entropy"] == pytest.approx(0.0, abs=1e-12)


def test_a_rounding_error_above_zero_is_clamped() -> None:
    """A log-probability a little above zero counts as certain, and gives no negative entropy."""
    signals = extract([TokenLogprobs(1e-6, (1e-6, *[-30.0] * 19))])
    assert signals["seq_logprob"] == 0.0
    assert -1e-9 <= signals["neg_entropy"] <= 0.0


def test_no_token_is_no_signal() -> None:
    """An empty answer has no signal at all, on no prefix."""
    assert extract([]) == {}


IMPOSSIBLE = {
    "NaN": TokenLogprobs(math.nan, SPREAD.top),
    "NaN without alternatives": TokenLogprobs(math.nan),
    "NaN first": TokenLogprobs(SPREAD.logprob, (math.nan, *SPREAD.top[1:])),
    "NaN second": TokenLogprobs(SPREAD.logprob, (SPREAD.top[0], math.nan, *SPREAD.top[2:])),
    "NaN far down": TokenLogprobs(SPREAD.logprob, (*SPREAD.top[:-1], math.nan)),
    "NaN of three": TokenLogprobs(SPREAD.logprob, (*SPREAD.top[:2], math.nan)),
    "positive": TokenLogprobs(5.0, SPREAD.top),
    "positive without alternatives": TokenLogprobs(0.01),
    "infinite": TokenLogprobs(math.inf, SPREAD.top),
    "a positive alternative": TokenLogprobs(5.0, (5.0, *SPREAD.top[1:])),
    "a huge alternative": TokenLogprobs(SPREAD.logprob, (*SPREAD.top[:-1], 1e300)),
    "more likely than all alternatives": TokenLogprobs(-0.01, SPREAD.top),
    "less likely than all alternatives": TokenLogprobs(-20.0, SPREAD.top),
    "alternatives that add up to more than one": TokenLogprobs(LN(0.5), (LN(0.5),) * TOP),
    "three that do": TokenLogprobs(LN(0.5), (LN(0.5),) * 3),
}


@pytest.mark.parametrize("token", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_numbers_take_every_signal_away(token: TokenLogprobs) -> None:
    """One token whose numbers no distribution has is enough, wherever it is."""
    assert extract([token]) == {}
    assert extract([SPREAD, token, FLAT]) == {}


@pytest.mark.parametrize(
    ("seen", "present"),
    [
        (0, {"seq_logprob"}),
        (1, {"seq_logprob"}),
        (2, {"seq_logprob", "margin"}),
        (19, {"seq_logprob", "margin"}),
        (20, {"seq_logprob", "margin", "neg_entropy"}),
    ],
)
def test_too_few_alternatives_are_no_signal(seen: int, present: set[str]) -> None:
    """Margin needs two alternatives and entropy twenty: one short token is enough to lose the name."""
    signals = extract([SPREAD, TokenLogprobs(SPREAD.logprob, SPREAD.top[:seen])])
    assert {name for name in signals if "@" not in name} == present


def test_alternatives_beyond_twenty_change_nothing() -> None:
    """A server that returns more than twenty gives the estimator that the calibrator was fitted on."""
    more = TokenLogprobs(SPREAD.logprob, (*SPREAD.top, LN(0.009), LN(0.008)))
    assert extract([more]) == extract([SPREAD])


def test_names_are_what_extract_returns() -> None:
    """Each signal on the whole answer, then on its first token; a full answer has all of them."""
    assert ALL_NAMES == ("seq_logprob", "neg_entropy", "margin", "seq_logprob@1", "neg_entropy@1", "margin@1")
    assert tuple(extract([SPREAD] * 9)) == ALL_NAMES


@given(answers)
def test_every_signal_is_finite_and_bounded(answer: list[TokenLogprobs]) -> None:
    """Of a real distribution all signals exist, are finite, and are within their range."""
    signals = extract(answer)
    assert set(signals) == set(ALL_NAMES)
    for name, value in signals.items():
        assert math.isfinite(value)
        if name.startswith("margin"):
            assert value >= 0.0
        else:
            assert LOGPROB_FLOOR <= value <= 0.0
        if name.startswith("neg_entropy"):
            # Twenty alternatives and one bucket for the rest cannot be flatter than twenty-one equal ones.
            assert value >= -LN(TOP + 1) - 1e-9


@given(st.lists(st.floats(1e-6, 1.0), min_size=TOP, max_size=200))
def test_entropy_understates_the_truth(weights: list[float]) -> None:
    """Taking the tail as one bucket never gives more entropy than the whole vocabulary has."""
    total = math.fsum(weights)
    p = sorted((weight / total for weight in weights), reverse=True)
    truth = -math.fsum(x * LN(x) for x in p)
    estimate = -extract([TokenLogprobs(LN(p[0]), tuple(LN(x) for x in p[:TOP]))])["neg_entropy"]
    assert 0.0 <= estimate <= truth + 1e-9
    assert truth <= LN(len(p)) + 1e-9


@given(answers)
def test_the_first_token_is_the_answer_cut_short(answer: list[TokenLogprobs]) -> None:
    """A first-token signal is the signal of an answer that ended there."""
    signals, cut = extract(answer), extract(answer[:1])
    for name in NAMES:
        assert signals[f"{name}@1"] == cut[name]


@given(answers, st.integers(0, 2**32))
def test_order_matters_only_where_it_should(answer: list[TokenLogprobs], seed: int) -> None:
    """The order of tokens changes no whole-answer signal, and the order of alternatives no entropy."""
    random = Random(seed)
    signals = extract(answer)
    shuffled = random.sample(answer, len(answer))
    assert {name: extract(shuffled)[name] for name in NAMES} == {name: signals[name] for name in NAMES}
    stirred = [TokenLogprobs(token.logprob, tuple(random.sample(token.top, TOP))) for token in answer]
    assert extract(stirred)["neg_entropy"] == signals["neg_entropy"]


@given(
    st.lists(
        st.builds(
            TokenLogprobs,
            st.floats(),
            st.lists(st.floats(), max_size=25).map(tuple),
        ),
        max_size=9,
    )
)
def test_nonsense_never_becomes_a_number(answer: list[TokenLogprobs]) -> None:
    """Whatever a server returns, `extract` returns known names with finite values."""
    signals = extract(answer)
    assert set(signals) <= set(ALL_NAMES)
    assert all(math.isfinite(value) for value in signals.values())
