"""Figures from a sample with all that the sample allows them to be, and arithmetic on them.

Means are winsorised: the top 1 % of a sample, at least one question, count as the largest below them. Latencies are
skewed to the right, and one timeout must not rule. That makes a mean a little too low, and a ratio of two such means
hardly so.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.decision.intervals import MIN_SAMPLE, Interval, lacking, missing

DRAWS = 4_000
_TRIMMED = 0.01

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Drawn:
    """A figure, draws of what it may be as well, and the questions behind it; `needs` where those are too few."""

    value: float
    draws: Floats
    n: int
    needs: str | None = None

    def wanting(self, of: str) -> "Drawn":
        """The same; too few questions are named as what is missing."""
        return replace(self, needs=missing(self.n, of)) if self.n < MIN_SAMPLE else self

    def estimate(self) -> Interval:
        """The figure with its 95 % interval, or what it lacks."""
        if self.needs is not None:
            return lacking(self.n, self.needs)
        low, high = np.quantile(self.draws, (0.025, 0.975))
        return Interval(self.value, min(float(low), self.value), max(float(high), self.value), self.n)


def combine(formula: Callable[..., Any], *figures: Drawn) -> Drawn:
    """A figure made of others; it lacks what any of them lacks."""
    n = min(figure.n for figure in figures)
    needs = next((figure.needs for figure in figures if figure.needs is not None), None)
    if needs is not None:
        return Drawn(math.nan, np.empty(0), n, needs)
    value = float(formula(*(figure.value for figure in figures)))
    return Drawn(value, formula(*(figure.draws for figure in figures)), n)


def means(rng: np.random.Generator, *columns: Floats) -> tuple[Drawn, ...]:
    """The winsorised mean of each column over the same questions; draws keep it positive, and keep correlations."""
    sample = np.column_stack(columns)
    n, width = sample.shape
    if n < 2:
        # One question tells the order of magnitude and no more.
        values = sample.sum(axis=0)
        draws = values * np.exp(rng.standard_normal((DRAWS, 1)))
    else:
        trimmed = max(1, math.ceil(_TRIMMED * n))
        capped = np.minimum(sample, np.sort(sample, axis=0)[n - trimmed - 1])
        values = capped.mean(axis=0)
        # The error of a winsorised mean, widened for a small sample about as Student's distribution is.
        errors = capped.std(axis=0, ddof=1) / math.sqrt(n) / (1.0 - trimmed / n) * (1.0 + 1.21 / (n - 1))
        relative = np.divide(errors, values, out=np.zeros(width), where=values > 0.0)
        draws = values * np.exp(_correlated(rng, capped) * relative)
    return tuple(Drawn(float(values[column]), draws[:, column], n) for column in range(width))


def _correlated(rng: np.random.Generator, sample: Floats) -> Floats:
    """Standard normal draws, correlated as the columns of a sample are; a constant column correlates with nothing."""
    centred = sample - sample.mean(axis=0)
    norms = np.sqrt((centred * centred).sum(axis=0))
    units = np.divide(centred, norms, out=np.zeros_like(centred), where=norms > 0.0)
    correlation = units.T @ units
    np.fill_diagonal(correlation, 1.0)
    return rng.multivariate_normal(np.zeros(sample.shape[1]), correlation, size=DRAWS, method="eigh")


def shares(rng: np.random.Generator, counts: Sequence[int]) -> tuple[Drawn, ...]:
    """How often each thing happened; what never did is never drawn, for nothing is known of what it would cost."""
    seen = np.array(counts) > 0
    total = sum(counts)
    draws = np.zeros((DRAWS, len(counts)))
    if total:
        draws[:, seen] = rng.dirichlet(np.array(counts)[seen] + 0.5, size=DRAWS)
    return tuple(Drawn(count / max(total, 1), draws[:, index], total) for index, count in enumerate(counts))
