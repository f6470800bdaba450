"""The benchmark of conversations: labels of rewrites, intervals over conversations, and the shipped weights."""

import numpy as np
import pytest

from app.core import standalone
from bench.conversations.fit import (
    FollowUp,
    fit,
    fitted_rows,
    follow_ups,
    found_first,
    needs_nothing,
    resampled,
    unchanged,
)
from bench.conversations.run import figures, rates, thresholds
from bench.ladder.tables import shared


def row(earlier: str, message: str, rewrite: str, conversation: str = "c") -> FollowUp:
    return FollowUp(conversation, (earlier,), message, rewrite)


@pytest.mark.parametrize(
    ("earlier", "message", "rewrite", "expected"),
    [
        ("What makes the shapes of the moon?", "How old is the moon?", "What is the age of the moon?", True),
        ("Is it safe?", "What is OTS?", "What does OTS stand for?", True),
        ("What is bone marrow?", "What if it fails?", "What happens if bone marrow fails?", False),
        ("Who was the viceroy?", "What did he do?", "What actions did Lord Linlithgow take?", False),
        ("Who was the viceroy?", "what was his plan?", "What was the plan of the governor?", False),
        ("Is there a housing problem?", "Renters", "What about renters?", False),
    ],
)
def test_a_rewrite_that_only_polishes_shows_that_the_message_stands_alone(
    earlier: str, message: str, rewrite: str, expected: bool
) -> None:
    """A word of the conversation, a new name, a resolved pronoun or an open reference shows that it does not."""
    assert needs_nothing(row(earlier, message, rewrite)) is expected


def test_case_and_punctuation_do_not_change_a_message() -> None:
    """The literal label compares words."""
    assert unchanged(row("a", "what is OTS", "What is OTS?"))
    assert not unchanged(row("a", "what is OTS", "What does OTS mean?"))


def test_intervals_are_over_whole_conversations() -> None:
    """One conversation has no spread, whatever its rows say; two that differ have all of it."""
    values = np.array([0.0, 1.0, 0.0, 1.0])

    def mean(at: np.ndarray) -> float:
        return float(values[at].mean())

    assert resampled([row("a", "b", "c")] * 4, mean, 50) == (0.5, 0.5, 0.5)
    apart = [row("a", "b", "c", name) for name in "xyxy"]
    assert resampled(apart, mean, 200) == (0.5, 0.0, 1.0)


def test_found_passages_are_counted_by_threshold() -> None:
    """Below the threshold the rewrite counts, else the message as typed."""
    rows = [
        {"conversation": name, "probability": p, "found": {"as typed": [typed, True], "rewrite": [new, True]}}
        for name, p, typed, new in (("a", 0.9, True, False), ("b", 0.1, False, True))
    ]
    found = thresholds(rows)
    assert found["0.5"] == [1.0, 1.0, 0.5]
    assert found["0.0"] == [0.5, 1.0, 0.0]
    assert figures(rows)["as typed"] == ["0.500 0.000 1.000", "1.000 1.000 1.000"]


def test_a_threshold_is_judged_by_what_wrong_decisions_cost() -> None:
    """A message above it is found as often as one as typed, another as often as a rewrite, by its label."""
    rows = [
        {"stands_alone": alone, "found": {"as typed": [typed, True], "rewrite": [new, True]}}
        for alone, typed, new in ((True, True, True), (True, True, False), (False, False, True))
    ]
    measured = rates(rows)
    assert measured == {"as typed": {"False": 0.0, "True": 1.0}, "rewrite": {"False": 1.0, "True": 0.5}}
    found = found_first(np.array([0.9, 0.1]), np.array([True, False]), measured)
    assert found[0.52] == (1.0, 0.5)
    assert found[0.0] == (0.5, 0.0)
    assert found[1.01] == (0.75, 1.0)


def test_the_shipped_weights_are_those_of_the_fit() -> None:
    """The numbers in the core come from the data, up to the rounding of another machine."""
    if not (shared() / "data" / "conversations").exists():
        pytest.skip("the conversations are not part of the project: BENCH_SHARED names the folder that has them")
    rows = fitted_rows(follow_ups())
    intercept, weights = fit(rows, np.array([needs_nothing(one) for one in rows]))
    assert intercept == pytest.approx(standalone.INTERCEPT, abs=0.02)
    assert weights == pytest.approx(standalone.WEIGHTS, abs=0.02)
