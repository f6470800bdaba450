"""The guarantees, by simulation: thousands of tables drawn from worlds whose truth is known.

A plan is made on one train split and certified on many validation splits. Given the plan the draws are independent,
and each may fail with probability delta at most, so the number of failures is dominated by a
binomial one: `allowed` is that binomial's 99.9 % quantile.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from app.core.artifact import Thresholds
from app.offline.refit.certify import walk
from app.offline.refit.choose import Guarantee
from app.offline.refit.refit import certify, choose, ledger_of
from app.offline.refit.splits import Train, Validation
from tests.offline.world import OPTIONS, Truth, World

DELTA = 0.1

WORLDS = {
    # The signal is informative, and reading helps: much can be saved.
    "headroom": (World(), 800),
    # Every passage helps a little at every confidence: each step of the path comes nearer to the edge.
    "tight": (World(level=(0.0, 0.15, 0.3), slope=(0.4, 0.4, 0.4), shared=0.3), 400),
    # Closed-book signals say nothing, and five passages are best.
    "noise": (World(level=(-0.5, 0.0, 0.5), slope=(0.0, 0.0, 0.0), shared=0.5), 400),
    # Five passages distract: always-k1 is the policy to beat, and only just.
    "distracted": (World(level=(-0.8, 0.5, 0.4), slope=(2.0, 1.0, 1.0), shared=0.9), 800),
    # Three phrasings of each fact: rows are not independent, groups are.
    "phrasings": (World(phrasings=3), 400),
    # A fifth of the questions have no signal, and one passage is best: what is read without one decides.
    "gaps": (World(level=(-0.8, 0.5, 0.4), slope=(2.0, 1.0, 1.0), shared=0.9, missing=0.2), 400),
    "small": (World(level=(0.2, 0.3, 0.4), shared=0.5), 60),
}


def allowed(draws: int) -> int:
    return int(binom.ppf(0.999, draws, DELTA))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WORLDS)
def test_no_guarantee_fails_more_often_than_delta(name: str) -> None:
    """Over hundreds of draws, accuracy or selective risk fall short of their certificate at most delta of the time."""
    simulate(name, plans=10, draws_each=40)


@pytest.mark.parametrize("name", ["headroom", "tight"])
def test_few_guarantees_fail_in_a_few_draws(name: str) -> None:
    """The same over thirty draws of the world with most to save, and of the one nearest to the edge."""
    simulate(name, plans=2, draws_each=15)


def simulate(name: str, *, plans: int, draws_each: int) -> None:
    world, groups = WORLDS[name]
    truth = Truth(world)
    options = replace(OPTIONS, epsilon=0.02, delta=DELTA, risk_target=0.25)
    broken = {"graded": 0, "binary": 0, "risk": 0}
    saved, covered, certified = [], [], 0
    for number in range(plans):
        trained = choose(Train(world.draw(groups, seed=number)[0]), ("seq_logprob",), options)
        known: dict[Thresholds, float] = {}
        saving: dict[Thresholds, float] = {}
        risks: dict[tuple[Thresholds | None, float], tuple[float, float]] = {}
        for draw in range(draws_each):
            found = certify(Validation(world.draw(groups, seed=1000 + number * draws_each + draw)[0]), trained, options)
            for policy, fit in found.policies.items():
                if fit.certificate is not None:
                    if fit.thresholds not in known:
                        known[fit.thresholds] = truth.difference(trained, fit.thresholds)
                    broken[policy] += known[fit.thresholds] < -options.epsilon
            if found.served is not None:
                certified += 1
                if found.served not in saving:
                    saving[found.served] = 1.0 - truth.passages(trained, found.served)
                saved.append(saving[found.served])
            if found.abstention.certificate is not None:
                end = (found.served, found.abstention.tau)
                if end not in risks:
                    risks[end] = truth.selective(trained, end[0], trained.fallback, end[1])
                error, coverage = risks[end]
                broken["risk"] += error > options.risk_target
                covered.append(coverage)
    draws = plans * draws_each
    figures = (name, draws, broken, certified, np.mean(saved or [0]), len(covered), np.mean(covered or [0]))
    print(figures)
    assert max(broken.values()) <= allowed(draws), figures
    if name == "headroom":
        # Not vacuous: nearly all draws certify, and save a good part of the passages.
        assert certified >= 0.8 * draws, figures
        assert np.mean(saved) >= 0.2, figures
        assert len(covered) >= 0.8 * draws, figures
        assert np.mean(covered) >= 0.5, figures


def test_the_empirical_choice_breaks_the_guarantee() -> None:
    """The cheapest step that looks good enough on validation is really too bad far more often than delta."""
    world, groups = WORLDS["tight"]
    truth = Truth(world)
    options = replace(OPTIONS, epsilon=0.02, delta=DELTA)
    broken = draws = 0
    for number in range(5):
        trained = choose(Train(world.draw(groups, seed=number)[0]), ("seq_logprob",), options)
        worth = [truth.difference(trained, step.thresholds) for step in trained.graded]
        for draw in range(10):
            drawn = Validation(world.draw(groups, seed=5000 + number * 10 + draw)[0])
            ledger = ledger_of(drawn, trained.calibrators, options)
            walked = walk(ledger, trained.graded, Guarantee((0, 1, 5), 0.02, DELTA))
            broken += worth[walked.empirical] < -0.02
            draws += 1
    assert broken > 2 * DELTA * draws
