"""A random action stands in as often as it is told to, among what is allowed, and its chances are kept."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.decision.policy import Ask, Decision, Reason, Retrieval
from app.explore import explore

KS = (0, 1, 5)
DECIDED = Decision(0, Reason.CONFIDENT, p0=0.9, certified=True)


@given(share=st.floats(0.01, 1.0), u=st.floats(0.0, 1.0, exclude_max=True), k=st.sampled_from((0, 1, 5)))
def test_chances_add_up_and_cover_what_was_done(share: float, u: float, k: int) -> None:
    """Whatever the dice say, the action taken had a chance above zero, and all chances add up to one."""
    decision = explore(Ask(), Decision(k, Reason.BORDERLINE, p0=0.5), KS, share=share, u=u)
    assert decision.propensities is not None
    assert sum(decision.propensities.values()) == pytest.approx(1.0)
    assert decision.propensities[f"k{decision.k}"] > 0.0
    assert decision.explored is (u < share)


def test_actions_come_up_as_often_as_their_chances_say() -> None:
    """Over evenly spaced dice the three actions share the explored part evenly."""
    draws = [explore(Ask(), DECIDED, KS, share=0.3, u=(i + 0.5) / 3000) for i in range(3000)]
    counted = Counter(draw.k for draw in draws)
    assert counted == {0: 2400, 1: 300, 5: 300}
    assert draws[0].propensities == pytest.approx({"k0": 0.8, "k1": 0.1, "k5": 0.1})


def test_what_is_explored_is_not_certified_and_says_so() -> None:
    """The reason names it, and no certificate covers it."""
    explored = explore(Ask(), DECIDED, KS, share=1.0, u=0.99)
    assert (explored.k, explored.reason, explored.certified) == (5, Reason.EXPLORED, False)
    spared = explore(Ask(), DECIDED, KS, share=0.5, u=0.6)
    assert (spared.k, spared.reason, spared.certified, spared.explored) == (0, Reason.CONFIDENT, True, False)


def test_required_evidence_is_never_explored_away() -> None:
    """Under `required` chance chooses between one passage and five."""
    decision = Decision(1, Reason.RETRIEVAL_REQUIRED, p0=0.9)
    drawn = {explore(Ask(retrieval=Retrieval.REQUIRED), decision, KS, share=1.0, u=i / 100).k for i in range(100)}
    assert drawn == {1, 5}


@pytest.mark.parametrize(
    "decision",
    [
        Decision(5, Reason.NOT_CALIBRATED),
        Decision(5, Reason.NO_SIGNAL),
        Decision(1, Reason.NOT_CERTIFIED, p0=0.4),
        Decision(0, Reason.RETRIEVAL_FORBIDDEN, p0=0.4),
        Decision(5, Reason.RETRIEVAL_REQUIRED),
        Decision(1, Reason.BYPASSED),
    ],
)
def test_what_no_probability_decided_stays(decision: Decision) -> None:
    """A caller's wish, a missing calibrator, a refusal to answer: chance has no part in these."""
    assert explore(Ask(), decision, KS, share=1.0, u=0.5) is decision
