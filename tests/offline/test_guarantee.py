"""The guarantees of whole refits, by simulation: hundreds of tables drawn from worlds whose truth is known.

Worlds on the level of outcomes, which are faster, are in `bench/guarantee`.

Everything is fitted on one train split and certified on many validation splits. Given the fit the draws are
independent, and each may fail with probability LEVEL at most, so the number of failures is dominated by a binomial
one: `allowed` is that binomial's 99.9 % quantile. In worlds at the boundary nothing that is seen tells anything, so the
truth is exact: there a certificate of the boundary itself counts as a failure.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.stats import binom

from app.certify.plan import spent
from app.core.artifact import Thresholds
from app.offline.refit.certify import certify_policy, holding
from app.offline.refit.choose import Guarantee
from app.offline.refit.follow import Fitted, Given
from app.offline.refit.options import Options
from app.offline.refit.refit import certify_answers, certify_chat
from app.offline.refit.splits import Train, Validation
from app.offline.refit.train import Trained, chat_of, choose, fit_of, fitted_on, ledger_of
from tests.offline.world import BY_TOKENS, OPTIONS, Truth, World

DELTA = 0.2
# What the first refit spends of it: certificates may fail so often.
LEVEL = spent(DELTA, 1)
SAVE = replace(BY_TOKENS, reference="k5", epsilon=0.05, delta=DELTA, risk_delta=DELTA, prices=(0.03, 0.12, 0.5))
GAIN = replace(SAVE, reference="every", goal="gain", budget=1.0)
NOISE = World(level=(0.0, 0.0, 0.0), slope=(0.0, 0.0, 0.0), reading=0.0, shared=0.5)


def log_odds(p: float) -> float:
    return float(np.log(p / (1.0 - p)))


# By name: the world, the groups of each split, and the options.
LADDERS: dict[str, tuple[World, int, Options]] = {
    # All answers are equally good, and nothing tells them apart: no gain, at any price.
    "no gain": (NOISE, 300, replace(GAIN, reference="k5")),
    # Five passages are worth exactly epsilon more: whoever never reads them is at the boundary.
    "lost epsilon": (replace(NOISE, level=(log_odds(0.55), log_odds(0.55), log_odds(0.6)), shared=0.9), 300, SAVE),
    # Three of four answers are right, whatever is withheld, and one of four may be wrong.
    "wrong at target": (
        replace(NOISE, level=(log_odds(0.75),) * 3, shared=0.9),
        300,
        replace(SAVE, risk_target=0.25, epsilon=0.1, prices=(0.12,)),
    ),
    # Evidence helps, some questions are out of corpus, and the target is near what can be reached.
    "headroom": (World(support=2.0, outside=0.1), 300, replace(SAVE, epsilon=0.02, risk_target=0.15)),
    # Three phrasings of each fact: rows are not independent, groups are.
    "phrasings": (World(phrasings=3, support=1.0), 150, replace(GAIN, risk_target=0.3)),
    # A fifth of the questions have no signal, and one passage is best: what is read without one decides.
    "gaps": (World(level=(-0.8, 0.5, 0.4), slope=(2.0, 1.0, 1.0), shared=0.9, missing=0.2), 300, SAVE),
}
GRADED: dict[str, tuple[World, int]] = {
    # The signal is informative, and reading helps: much can be saved.
    "headroom": (World(), 500),
    # Every passage helps a little at every confidence: each step of the path comes nearer to the edge.
    "tight": (World(level=(0.0, 0.15, 0.3), slope=(0.4, 0.4, 0.4), shared=0.3), 400),
}


def allowed(draws: int) -> int:
    return int(binom.ppf(0.999, draws, LEVEL))


@dataclass
class Counts:
    """What happened in all draws of a world."""

    draws: int = 0
    certified: int = 0
    broken: int = 0
    chats: int = 0
    chats_broken: int = 0
    abstaining: int = 0
    too_wrong: int = 0
    cost: float = 0.0
    coverage: float = 0.0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LADDERS)
def test_no_guarantee_of_the_ladder_fails_more_often_than_delta(name: str) -> None:
    """Over hundreds of draws, accuracy or selective risk fall short of their certificate at most delta of the time."""
    check(name, simulate(*LADDERS[name], plans=4, draws=50))


@pytest.mark.parametrize("name", ["no gain", "lost epsilon", "wrong at target"])
def test_few_guarantees_fail_at_the_boundary_in_a_few_draws(name: str) -> None:
    """The same over forty draws where a certificate is always a mistake."""
    check(name, simulate(*LADDERS[name], plans=2, draws=20))


def check(name: str, found: Counts) -> None:
    assert found.broken <= allowed(found.draws), found
    assert found.chats_broken <= allowed(found.draws), found
    assert found.too_wrong <= allowed(found.draws), found
    if name == "headroom":
        # Not vacuous: nearly all draws certify, save half of the cost, and answer many questions.
        assert found.certified >= 0.8 * found.draws, found
        assert found.chats >= 0.5 * found.draws, found
        assert found.cost <= 0.6 * found.certified, found
        assert found.abstaining >= 0.8 * found.draws, found
        assert found.coverage >= 0.4 * found.abstaining, found


def simulate(world: World, groups: int, options: Options, *, plans: int, draws: int) -> Counts:
    counts = Counts()
    guarantee = options.guarantee(world.ks)
    bound = 0.0 if options.goal == "gain" else -options.epsilon
    for number in range(plans):
        trained = choose(Train(world.draw(groups, seed=number)[0]), options)
        truth = Truth(world, trained, options, rows=9_000)
        for fitted, given, once in validations(world, groups, trained, options, draws=draws, seed=1000 + number):
            ladder, abstention = certify_answers(fitted, given, trained, options)
            chat = certify_chat(fitted, once, trained, options)
            counts.draws += 1
            if chat.certificate is not None:
                counts.chats += 1
                counts.chats_broken += truth.difference(chat, guarantee) <= bound + 1e-9
            if ladder.certificate is None:
                assert abstention.certificate is None
                continue
            counts.certified += 1
            counts.cost += truth.cost(ladder)
            counts.broken += truth.difference(ladder, guarantee) <= bound + 1e-9
            if abstention.certificate is not None:
                error, coverage = truth.selective(ladder, abstention.tau)
                counts.abstaining += 1
                counts.coverage += coverage
                counts.too_wrong += error >= options.risk_target - 1e-9
    return counts


def validations(
    world: World, groups: int, trained: Trained, options: Options, *, draws: int, seed: int
) -> list[tuple[Fitted, dict[float, Given], dict[float, Given]]]:
    """Many validation splits, on which the ladder climbs and chats choose at once."""
    whole = fitted_on(Validation(world.draw(groups * draws, seed)[0]), trained, options)
    given = {step.t: whole.ladder(fit_of(trained, step, options)) for step in trained.path}
    once = {step.t: whole.chat(chat_of(trained, step, options)) for step in trained.chat}
    n = groups * world.phrasings
    parts = []
    for rows in np.arange(draws * n).reshape(draws, n):
        fitted = replace(whole, outcomes=whole.outcomes.take(rows), columns={}, out_of_scope=whole.out_of_scope[rows])
        ladders, chats = (
            {t: Given(g.k[rows], g.right[rows], g.confidence[rows]) for t, g in every.items()}
            for every in (given, once)
        )
        parts.append((fitted, ladders, chats))
    return parts


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", GRADED)
def test_no_guarantee_of_thresholds_fails_more_often_than_delta(name: str) -> None:
    """The same for `graded` and `binary`."""
    simulate_graded(name, plans=4, draws_each=25)


@pytest.mark.parametrize("name", ["tight"])
def test_few_guarantees_of_thresholds_fail_in_a_few_draws(name: str) -> None:
    """The same over thirty draws of the world nearest to the edge."""
    simulate_graded(name, plans=2, draws_each=15)


def simulate_graded(name: str, *, plans: int, draws_each: int) -> None:
    world, groups = GRADED[name]
    options = replace(OPTIONS, reference="every", epsilon=0.02, delta=DELTA, prices=(0.12,))
    guarantee = options.guarantee(world.ks)
    broken, certified = {"graded": 0, "binary": 0}, 0
    for number in range(plans):
        trained = choose(Train(world.draw(groups, seed=number)[0]), options)
        truth, known = Truth(world, trained, options, rows=60_000), dict[Thresholds, float]()
        for draw in range(draws_each):
            drawn = Validation(world.draw(groups, seed=1000 + number * draws_each + draw)[0])
            ledger = ledger_of(drawn, trained, options)
            for policy, path in (("graded", trained.graded), ("binary", trained.binary)):
                fit = certify_policy(ledger, path, guarantee, options.objective)
                if fit.certificate is None:
                    continue
                if fit.thresholds not in known:
                    known[fit.thresholds] = truth.graded_difference(fit.thresholds, guarantee)
                broken[policy] += known[fit.thresholds] < -options.epsilon
                certified += policy == "graded"
    draws = plans * draws_each
    assert max(broken.values()) <= allowed(draws), (name, draws, broken, certified)
    if name == "headroom":
        assert certified >= 0.8 * draws


def test_the_empirical_choice_breaks_the_guarantee() -> None:
    """The cheapest step that looks good enough on validation is really too bad far more often than delta."""
    world, groups = GRADED["tight"]
    options = replace(OPTIONS, reference="every", epsilon=0.02, delta=DELTA, prices=(0.12,))
    guarantee = Guarantee((0, 1, 5), 0.02, DELTA)
    broken = draws = 0
    for number in range(5):
        trained = choose(Train(world.draw(groups, seed=number)[0]), options)
        truth = Truth(world, trained, options)
        worth = [truth.graded_difference(step.thresholds, guarantee) for step in trained.graded]
        for draw in range(10):
            drawn = Validation(world.draw(groups, seed=5000 + number * 10 + draw)[0])
            chosen = holding(ledger_of(drawn, trained, options), trained.graded, guarantee)
            broken += worth[chosen] < -0.02
            draws += 1
    assert broken > 2 * LEVEL * draws
