"""The guarantees, by simulation: thousands of tables drawn from worlds whose truth is known.

A plan is made on one train split and certified on many validation splits. Given the plan the draws are independent,
and each may break its promise with probability delta at most, so the count of broken promises is dominated by a
binomial one: `allowed` is that binomial's 99.9 % quantile.
"""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom

from app.decision.artifact import Thresholds
from app.refit.certify import walk
from app.refit.options import Options
from app.refit.refit import certify, ledger_of, plan
from app.refit.split import Train, Validation
from tests.refit.world import Truth, World

DELTA = 0.1
PLANS, DRAWS = 10, 40

WORLDS = {
    # Knowing is visible, and reading helps: there is much to save.
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
# The question alone, and the first token of its answer, tell much: most probes can be spared or cut short.
EARLY = World(slope=(3.0, 1.0, 0.5), shared=0.9, question_noise=0.7, first_token_noise=0.5), 500


def allowed(draws: int) -> int:
    return int(binom.ppf(0.999, draws, DELTA))


@pytest.mark.parametrize("name", WORLDS)
def test_no_promise_is_broken_more_often_than_delta(name: str) -> None:
    """Over hundreds of draws, accuracy or selective risk fall short of their certificate at most delta of the time."""
    world, groups = WORLDS[name]
    truth = Truth(world)
    options = Options("w", "2026-01-01", methods=("logistic",), epsilon=0.02, delta=DELTA, risk_target=0.25)
    broken = {"graded": 0, "binary": 0, "risk": 0}
    saved, covered, certified = [], [], 0
    for number in range(PLANS):
        planned = plan(Train(world.draw(groups, seed=number)[0]), ("seq_logprob",), options)
        known: dict[Thresholds, float] = {}
        saving: dict[Thresholds, float] = {}
        risks: dict[tuple[Thresholds | None, float], tuple[float, float]] = {}
        for draw in range(DRAWS):
            verdict = certify(Validation(world.draw(groups, seed=1000 + number * DRAWS + draw)[0]), planned, options)
            for policy, fit in verdict.policies.items():
                if fit.certificate is not None:
                    if fit.thresholds not in known:
                        known[fit.thresholds] = truth.difference(planned, fit.thresholds)
                    broken[policy] += known[fit.thresholds] < -options.epsilon
            if verdict.served is not None:
                certified += 1
                if verdict.served not in saving:
                    saving[verdict.served] = 1.0 - truth.passages(planned, verdict.served)
                saved.append(saving[verdict.served])
            if verdict.abstention.certificate is not None:
                end = (verdict.served, verdict.abstention.tau)
                if end not in risks:
                    risks[end] = truth.selective(planned, end[0], planned.fallback, end[1])
                error, coverage = risks[end]
                broken["risk"] += error > options.risk_target
                covered.append(coverage)
    draws = PLANS * DRAWS
    figures = (name, draws, broken, certified, np.mean(saved or [0]), len(covered), np.mean(covered or [0]))
    print(figures)
    assert max(broken.values()) <= allowed(draws), figures
    if name == "headroom":
        # Not vacuous: nearly all draws certify, and save a good part of the passages.
        assert certified >= 0.8 * draws, figures
        assert np.mean(saved) >= 0.2, figures
        assert len(covered) >= 0.8 * draws, figures
        assert np.mean(covered) >= 0.5, figures


def test_whichever_variant_is_chosen_keeps_the_promise() -> None:
    """That any falls short, whichever costs may come to choose, happens at most delta of the time; so does risk."""
    world, groups = EARLY
    truth, names = Truth(world), ("seq_logprob", "seq_logprob@1")
    options = Options(
        "w", "2026-01-01", methods=("logistic",), objective="latency", epsilon=0.02, delta=DELTA, risk_target=0.25
    )
    promised, broken, spared = Counter[str](), Counter[str](), []
    for number in range(PLANS):
        planned = plan(Train(world.draw(groups, seed=number)[0]), names, options)
        known: dict[Thresholds, float] = {}
        probed: dict[Thresholds, float] = {}
        risks: dict[tuple[Thresholds, float], float] = {}
        for draw in range(DRAWS):
            verdict = certify(Validation(world.draw(groups, seed=1000 + number * DRAWS + draw)[0]), planned, options)
            if (served := verdict.served) is not None:
                if served not in probed:
                    probed[served] = truth.probed(planned, served)
                spared.append(1.0 - probed[served])
            worst = 0.0
            for means, variant in verdict.variants.items():
                end, tau = variant.fit.thresholds, variant.abstention.tau
                if end not in known:
                    known[end] = truth.difference(planned, end)
                worst = min(worst, known[end])
                promised[means] += 1
                broken[means] += known[end] < -options.epsilon
                if variant.abstention.certificate is not None:
                    if (end, tau) not in risks:
                        risks[end, tau], _ = truth.selective(planned, end, planned.fallback, tau)
                    broken[f"risk, {means}"] += risks[end, tau] > options.risk_target
            broken["any"] += worst < -options.epsilon
    print(promised, broken, np.mean(spared))
    # Not vacuous: most draws certify by each, and the policy in force spares a good part of the probes.
    assert len(spared) >= 0.8 * PLANS * DRAWS, len(spared)
    assert np.mean(spared) >= 0.2, np.mean(spared)
    assert sum(promised.values()) >= 2.0 * PLANS * DRAWS, promised
    assert max(broken.values()) <= allowed(PLANS * DRAWS), (promised, broken)


def test_taking_validation_at_its_word_would_break_the_promise() -> None:
    """The cheapest step that looks good enough on validation is really too bad far more often than delta."""
    world, groups = WORLDS["tight"]
    truth = Truth(world)
    options = Options("w", "2026-01-01", methods=("logistic",), epsilon=0.02, delta=DELTA)
    broken = draws = 0
    for number in range(5):
        planned = plan(Train(world.draw(groups, seed=number)[0]), ("seq_logprob",), options)
        worth = [truth.difference(planned, step.thresholds) for step in planned.graded.path]
        for draw in range(20):
            drawn = Validation(world.draw(groups, seed=5000 + number * 20 + draw)[0])
            ledger = ledger_of(drawn, planned.calibrators, options)
            walked = walk(ledger, planned.graded.path, references=(0, 1, 5), epsilon=0.02, delta=DELTA)
            broken += worth[walked.empirical] < -0.02
            draws += 1
    assert broken > 2 * DELTA * draws
