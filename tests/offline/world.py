"""Worlds whose truth is known: outcome tables drawn from them, and what a policy is really worth there."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from app.core.artifact import Identity, LadderFit, Thresholds
from app.core.cost import Objective, Tariff
from app.offline.refit.certify import answers
from app.offline.refit.follow import Fitted, Given
from app.offline.refit.heads import predict_many
from app.offline.refit.refit import Options, Trained
from app.offline.refit.splits import Ledger, Route, Test, pick, units
from app.offline.table import Outcomes

IDENTITY = Identity("reader", "q8", "t", "p", 24, ("\n",), "top20", "embedder", "world", (0, 1, 5))
# These worlds have no tokens and no times: the cost is the number of passages.
OPTIONS = Options("world", "2026-01-01T00:00:00Z", objective=Objective.MONEY, tariff=Tariff(passage=1.0))


@dataclass(frozen=True)
class World:
    """P(right with k) = sigma(level_k + slope_k s + 1.5 t_k), where s is seen closed-book and t_k only after reading.

    `shared` is how often the three answers to a question stand or fall by the same luck.
    """

    level: tuple[float, float, float] = (-0.5, 0.2, 0.8)
    slope: tuple[float, float, float] = (2.5, 1.0, 0.5)
    shared: float = 0.8
    phrasings: int = 1
    reading_signals: bool = True
    # The share of questions whose closed-book answer came without log-probabilities: the weakest, mostly.
    missing: float = 0.0

    def draw(self, groups: int, seed: int) -> tuple[Outcomes, dict[int, NDArray[np.float64]]]:
        """A table of so many groups, and the true chance of each answer's being right."""
        rng = np.random.default_rng(seed)
        m, n = self.phrasings, groups * self.phrasings
        s = np.repeat(rng.normal(size=groups), m) + (0.2 * rng.normal(size=n) if m > 1 else 0.0)
        # Phrasings of one fact share most of their luck: that is why a group is one unit.
        luck = np.where(rng.random(n) < 0.7, np.repeat(rng.random(groups), m), rng.random(n))
        chance, correct, signals = {}, {}, {}
        for k, level, slope in zip((0, 1, 5), self.level, self.slope, strict=True):
            t = rng.normal(size=n)
            score = level + slope * s + (1.5 * t if k else 0.0)
            chance[k] = expit(score)
            correct[k] = np.where(rng.random(n) < self.shared, luck, rng.random(n)) < chance[k]
            signals[k] = {"seq_logprob": s if k == 0 else score} if self.reading_signals or k == 0 else {}
        if self.missing:
            hidden = rng.random(n) < np.clip(2.0 * self.missing * expit(-2.0 * s), 0.0, 1.0)
            signals[0]["seq_logprob"] = np.where(hidden, np.nan, s)
        none = {k: np.full(n, np.nan) for k in (0, 1, 5)}
        table = Outcomes(
            identity=IDENTITY,
            ids=[str(i) for i in range(n)],
            groups=[f"g{i // m}-{seed}" for i in range(n)],
            questions=[],
            gold=[],
            tags=[],
            ks=(0, 1, 5),
            answers={},
            correct=correct,
            signals=signals,
            prompt_tokens=none,
            completion_tokens=none,
            ms=none,
            evidence={f"k{k}.{name}": column for k, named in signals.items() for name, column in named.items()},
            out_of_corpus=np.zeros(n, dtype=np.bool_),
            kinds=[""] * n,
        )
        return table, chance


class Truth:
    """What is true of a policy in a world, from a population far larger than any table."""

    def __init__(self, world: World, rows: int = 60_000) -> None:
        self.outcomes, self.chance = world.draw(rows // world.phrasings, seed=10**6)
        self.accuracy = {k: float(p.mean()) for k, p in self.chance.items()}
        self.units = units(self.outcomes)

    def difference(self, trained: Trained, thresholds: Thresholds) -> float:
        """Accuracy of a policy minus that of the best fixed action."""
        return float(self._chances(self._ledger(trained).route(thresholds)).mean()) - max(self.accuracy.values())

    def passages(self, trained: Trained, thresholds: Thresholds) -> float:
        """The share of five passages that a policy reads."""
        return float(self._ledger(trained).route(thresholds).mean()) / 5.0

    def ladder(self, trained: Trained, fit: LadderFit) -> Given:
        """What a fitted ladder gives in this world."""
        scope = trained.scope
        return Fitted.of(self.outcomes, trained.heads.heads, scope.scope, scope.centroids, OPTIONS.tariff).ladder(fit)

    def ladder_difference(self, given: Given) -> float:
        """Accuracy of the answers given minus that of the best fixed action."""
        return float(self._chances(given.k.astype(np.int64)).mean()) - max(self.accuracy.values())

    def selective(self, given: Given, tau: float) -> tuple[float, float]:
        """The error among answered, and the share that is answered."""
        answered, wrong = answers(given.confidence, tau), 1.0 - self._chances(given.k.astype(np.int64))
        return float(wrong[answered].mean()) if answered.any() else 0.0, float(answered.mean())

    def _ledger(self, trained: Trained) -> Ledger[Test]:
        p = predict_many(trained.heads.heads["k0"][0], self.outcomes.evidence, len(self.outcomes))
        return Ledger(Test(self.outcomes), p, self.units, {})

    def _chances(self, route: Route) -> NDArray[np.float64]:
        return pick(self.chance, route)
