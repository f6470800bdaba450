"""The promises in worlds whose truth is known, on the level of outcomes."""

import pytest
from scipy.stats import binom

from bench.guarantee.worlds import WORLDS, simulate

COVERED = [name for name, world in WORLDS.items() if world.covered]
# Worlds in which an assumption fails so clearly that a few draws show it.
BROKEN = [
    "a judge lenient to closed-book answers",
    "paraphrases not declared as one group",
    "six refits of one table, each with all of delta",
    "late confirmations, in the order of verdicts",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", COVERED)
def test_a_promise_is_broken_at_most_delta_of_the_time(name: str) -> None:
    """Where labels are the truth and groups are independent, also at the boundary and after many refits."""
    found = simulate(name, 200)
    assert found.broken <= binom.ppf(0.999, found.runs, found.delta), found


@pytest.mark.slow
def test_the_tests_have_power() -> None:
    """At the boundary they spend most of what they may, so that the worlds above can fail."""
    assert simulate("10 % of the answers differ", 200).share > 0.03
    assert simulate("few questions are answered", 200).share > 0.03


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_promise_is_broken_where_its_assumptions_fail(name: str) -> None:
    """The documentation says so, with these figures."""
    found = simulate(name, 200)
    assert found.broken > binom.ppf(0.999, found.runs, found.delta), found


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_gives_the_same_draws_again(name: str) -> None:
    """Figures can be repeated, and another seed is another draw."""
    assert simulate(name, 3, seed=1) == simulate(name, 3, seed=1)
