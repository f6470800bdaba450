"""Verdicts and sentences: they say only what the interval supports."""

import pytest

from app.certify.intervals import MIN_SAMPLE, Interval, unknown_interval, wilson
from app.economics.breakeven import Verdict, percent, sentence, share, verdict


def about(value: float, slack: float = 0.01) -> Interval:
    return Interval(value, value - slack, value + slack, 500)


UNKNOWN = unknown_interval(12, "30 questions that read five passages, 12 so far")


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (about(0.9), Verdict.SAVES),
        (about(1.1), Verdict.COSTS),
        (about(0.995), Verdict.UNCLEAR),
        (about(1.005), Verdict.UNCLEAR),
        (Interval(0.99, 0.98, 1.0, 500), Verdict.UNCLEAR),
        (Interval(1.01, 1.0, 1.02, 500), Verdict.UNCLEAR),
        (UNKNOWN, Verdict.UNKNOWN),
    ],
)
def test_verdict_needs_the_whole_interval_on_one_side(ratio: Interval, expected: Verdict) -> None:
    """An interval that contains 1 gives no verdict."""
    assert verdict(ratio) is expected


@pytest.mark.parametrize(
    ("ratio", "even", "said"),
    [
        (
            about(1.12),
            about(0.41),
            "Gating costs 12 % more time than always reading five passages; it would pay from 41 % skipped; now 23 %.",
        ),
        (
            about(0.923),
            about(0.1),
            "Gating saves 7.7 % of the time of always reading five passages; it pays from 10 % skipped; now 23 %.",
        ),
        (
            about(1.2),
            about(1.3),
            "Gating costs 20 % more time than always reading five passages; with these costs it cannot pay, however "
            "much is skipped.",
        ),
        (
            about(0.5),
            about(0.0),
            "Gating saves 50 % of the time of always reading five passages; with these costs it pays even if nothing "
            "is skipped.",
        ),
        (
            about(1.005),
            about(0.24),
            "Gating takes between 0.5 % less and 1.5 % more time than always reading five passages: too close to "
            "call; it pays from 24 % skipped; now 23 %.",
        ),
        (about(0.8), unknown_interval(0, "more"), "Gating saves 20 % of the time of always reading five passages."),
        (
            UNKNOWN,
            UNKNOWN,
            "Whether gating saves time against always reading five passages is not known yet: that needs 30 questions "
            "that read five passages, 12 so far.",
        ),
    ],
)
def test_sentence_states_the_verdict(ratio: Interval, even: Interval, said: str) -> None:
    """Each verdict has its sentence, with the break-even if it is known."""
    assert sentence("latency", 5, ratio, even, about(0.23)) == said


def test_sentence_names_the_objective_and_the_reference() -> None:
    """The sentence says tokens or money, and how many passages the reference reads."""
    assert sentence("tokens", 1, about(1.5), about(0.9), about(0.2)).startswith("Gating costs 50 % more tokens than")
    assert "money of always reading one passage" in sentence("money", 1, about(0.5), about(0.1), about(0.2))


def test_share_of_a_small_sample_is_unknown() -> None:
    """Below the minimum sample there is no figure but what is missing; above it, Wilson's interval."""
    assert share(10, 50, of="questions") == wilson(10, 50)
    assert share(5, MIN_SAMPLE - 1, of="questions") == unknown_interval(29, "30 questions, 29 so far")


def test_per_cent() -> None:
    """Small numbers have one decimal."""
    assert [percent(x) for x in (0.0, 0.004, 0.077, 0.0996, 0.266, 1.0)] == [
        "0.0 %",
        "0.4 %",
        "7.7 %",
        "10 %",
        "27 %",
        "100 %",
    ]
