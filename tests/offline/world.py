"""Worlds whose truth is known: outcome tables drawn from them, and what a policy is really worth there."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from app.core.artifact import ChatFit, Identity, LadderFit, Thresholds
from app.core.cost import Objective, Tariff
from app.offline.refit.abstain import answers
from app.offline.refit.choose import Guarantee
from app.offline.refit.follow import Given
from app.offline.refit.options import Options
from app.offline.refit.splits import Ledger, Test, pick
from app.offline.refit.train import Trained, fitted_on, ledger_of
from app.offline.table import Outcomes

KS = (0, 1, 5)
IDENTITY = Identity("reader", "q8", "t", "p", "w", 24, ("\n",), "top20", "embedder", "world", KS)
# The cost is the number of passages, or the number of tokens.
OPTIONS = Options("world", "2026-01-01T00:00:00Z", objective=Objective.MONEY, tariff=Tariff(passage=1.0))
BY_TOKENS = replace(OPTIONS, objective=Objective.TOKENS)

Floats = NDArray[np.float64]
Chances = dict[int, Floats]


@dataclass(frozen=True)
class World:
    """P(right with k) = sigma(level_k + slope_k s + reading t_k + support u_k).

    s is seen closed-book, t_k only after reading k passages, and u_k once both the answer and the passages are there:
    the search tells which answers to trust. Nothing that is seen tells more than this chance, so the accuracy of a
    policy is the mean chance of what it gives. `shared` is how often the answers to a question stand or fall by the
    same luck.
    """

    level: tuple[float, ...] = (-0.5, 0.2, 0.8)
    slope: tuple[float, ...] = (2.5, 1.0, 0.5)
    shared: float = 0.8
    phrasings: int = 1
    reading_signals: bool = True
    # The share of questions whose closed-book answer came without log-probabilities: the weakest, mostly.
    missing: float = 0.0
    ks: tuple[int, ...] = KS
    # 0: the signals of an answer from passages say nothing about it.
    reading: float = 1.5
    # 0: the table has no evidence beyond signals.
    support: float = 0.0
    # The share of questions that the corpus cannot answer: most are far from the others, and few answers are right.
    outside: float = 0.0

    def draw(self, groups: int, seed: int) -> tuple[Outcomes, Chances]:
        """A table of so many groups, and the true chance of each answer's being right."""
        rng = np.random.default_rng(seed)
        m, n = self.phrasings, groups * self.phrasings
        s = np.repeat(rng.normal(size=groups), m) + (0.2 * rng.normal(size=n) if m > 1 else 0.0)
        # Phrasings of one fact share most of their luck: that is why a group is one unit.
        luck = np.where(rng.random(n) < 0.7, np.repeat(rng.random(groups), m), rng.random(n))
        outside = np.repeat(rng.random(groups) < self.outside, m) if self.outside else np.zeros(n, np.bool_)
        chance, correct, signals = {}, {}, {}
        evidence: dict[str, Floats] = {}
        for k, level, slope in zip(self.ks, self.level, self.slope, strict=True):
            t = rng.normal(size=n)
            seen = level + slope * s + (1.5 * t if k else 0.0)
            score = level + slope * s + (self.reading * t if k else 0.0)
            if self.support:
                u = rng.normal(size=n)
                evidence[f"k{k}.support"] = u
                score = score + self.support * u
            chance[k] = expit(score - 4.0 * outside)
            correct[k] = np.where(rng.random(n) < self.shared, luck, rng.random(n)) < chance[k]
            signals[k] = {"seq_logprob": s if k == 0 else seen} if self.reading_signals or k == 0 else {}
        if self.missing:
            hidden = rng.random(n) < np.clip(2.0 * self.missing * expit(-2.0 * s), 0.0, 1.0)
            signals[0]["seq_logprob"] = np.where(hidden, np.nan, s)
        vectors = None
        if self.support:
            evidence["search.cosine"] = rng.normal(0.7, 0.05, n) - 0.3 * outside
            evidence["search.coverage_max"] = np.clip(rng.normal(0.8, 0.1, n) - 0.5 * outside, 0.0, 1.0)
            vectors = _vectors(outside, rng)
        evidence |= {f"k{k}.{name}": column for k, named in signals.items() for name, column in named.items()}
        unknown = {k: np.full(n, np.nan) for k in self.ks}
        table = Outcomes(
            identity=replace(IDENTITY, ks=self.ks),
            ids=[str(i) for i in range(n)],
            groups=[f"g{i // m}-{seed}" for i in range(n)],
            questions=[],
            gold=[],
            tags=[],
            ks=self.ks,
            answers={},
            correct=correct,
            signals=signals,
            prompt_tokens={k: np.full(n, 40.0 + 100.0 * k) for k in self.ks},
            completion_tokens={k: np.full(n, 4.0) for k in self.ks},
            ms=unknown,
            evidence=evidence,
            out_of_corpus=outside,
            kinds=["made up" if flag else "" for flag in outside.tolist()],
            vectors=vectors,
        )
        return table, chance


def _vectors(outside: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.float32]:
    """Questions of the corpus are near one of a few directions; the others point anywhere."""
    n = len(outside)
    topics = np.random.default_rng(0).normal(size=(10, 16))
    directions = np.where(outside[:, None], rng.normal(size=(n, 16)), topics[rng.integers(0, 10, n)])
    directions = directions + 0.3 * rng.normal(size=(n, 16))
    return np.asarray(directions / np.linalg.norm(directions, axis=1, keepdims=True), np.float32)


class Truth:
    """What is true of a fitted policy in a world, from a population far larger than any table."""

    def __init__(self, world: World, trained: Trained, options: Options, rows: int = 20_000) -> None:
        self.outcomes, self.chance = world.draw(rows // world.phrasings, seed=10**6)
        self._trained, self._options = trained, options
        self.fitted = fitted_on(Test(self.outcomes), trained, options)
        self._given: dict[tuple[str, float], Given] = {}

    def difference(self, fit: LadderFit | ChatFit, guarantee: Guarantee) -> float:
        """Accuracy minus that of the best reference, on questions in scope that the corpus can answer."""
        inside = ~self.outcomes.out_of_corpus & ~self.fitted.out_of_scope
        accuracy = pick(self.chance, self.given(fit).k)[inside].mean()
        return float(accuracy - max(self.chance[k][inside].mean() for k in guarantee.references))

    @cached_property
    def _ledger(self) -> Ledger[Test]:
        return ledger_of(Test(self.outcomes), self._trained, self._options)

    def graded_difference(self, thresholds: Thresholds, guarantee: Guarantee) -> float:
        """The same of `graded` or `binary`."""
        inside = ~self.outcomes.out_of_corpus
        route = self._ledger.route(thresholds)
        chance = {k: p[inside] for k, p in self.chance.items()}
        return float(pick(chance, route).mean() - max(chance[k].mean() for k in guarantee.references))

    def cost(self, fit: LadderFit) -> float:
        """The mean cost of a ladder over that of always reading the most."""
        climbed = self.given(fit).climb
        assert climbed is not None
        return float(climbed.cost.mean())

    def selective(self, fit: LadderFit, tau: float) -> tuple[float, float]:
        """The error among answered, and the share that is answered."""
        given = self.given(fit)
        answered = answers(given.confidence, tau)
        wrong = 1.0 - pick(self.chance, given.k)
        return float(wrong[answered].mean()) if answered.any() else 0.0, float(answered.mean())

    def given(self, fit: LadderFit | ChatFit) -> Given:
        """What is given; a fit is known by its kind and price."""
        key = type(fit).__name__, fit.t
        if key not in self._given:
            self._given[key] = self.fitted.chat(fit) if isinstance(fit, ChatFit) else self.fitted.ladder(fit)
        return self._given[key]
