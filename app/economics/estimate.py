"""Estimates the cost with and without gating, and the break-even skip rate, from a window of served traffic.

Intervals of derived figures come from many random draws of the means and shares that they depend on, with a fixed seed:
the same rows always give the same figures. Questions are treated as independent.

Means are winsorised: the top 1 % of a sample, at least one question, are capped at the largest value below them.
Latencies are skewed to the right, and one timeout must not dominate. The mean is then slightly too low, a ratio of two
such means hardly.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import add, truediv
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.certify.intervals import MIN_SAMPLE, Interval, missing, unknown_interval
from app.core.cost import Tariff, break_even_against
from app.core.policy import actions_of
from app.economics.breakeven import (
    RARE,
    BreakEven,
    Comparison,
    CostView,
    MeasuredWindow,
    passages,
    percent,
    sentence,
    share,
    verdict,
)
from app.economics.window import Rows, Traffic, actions, select

_SEED = 20_240
_DRAWS = 4_000
_TRIMMED = 0.01
_GATED = "questions that the gate decided"
_PROBED = "gated questions with a probe"
_RETRIEVING = "gated questions that read passages"
_THRESHOLDS = "a window in which only `graded` or `binary` decided"

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Estimate:
    """A value, random draws around it, and its number of questions; if they are too few, `needs` says so."""

    value: float
    draws: Floats
    n: int
    needs: str | None = None

    def requiring(self, of: str) -> "Estimate":
        """The same, with `needs` set if there are too few questions."""
        return replace(self, needs=missing(self.n, of)) if self.n < MIN_SAMPLE else self

    def estimate(self) -> Interval:
        """The value with its 95 % interval, or what is missing."""
        if self.needs is not None:
            return unknown_interval(self.n, self.needs)
        low, high = np.quantile(self.draws, (0.025, 0.975))
        return Interval(self.value, min(float(low), self.value), max(float(high), self.value), self.n)


@dataclass(frozen=True, eq=False, slots=True)
class StageCosts:
    """The cost of each stage of some questions, in one unit."""

    probe: Floats
    retrieval: Floats
    read: Floats


Count = Callable[[Rows], StageCosts]


def estimate(traffic: Traffic, *, seconds: float, reference: int, tariff: Tariff, ks: Sequence[int]) -> BreakEven:
    """The figures of `/breakeven` from one window of traffic."""
    rows = traffic.rows
    gated = select(rows, rows["gated"])
    skip = share(int((gated["reads"] == 0).sum()), len(gated), of=_GATED)
    done, above = actions(gated, ks), ks[1:]
    latency = _view("latency", "ms", rows, _latency, skip=skip, ks=above)
    headline = latency.against[f"k{reference}"].sentence
    if not len(gated):
        headline = f"The gate decided no question in the last {seconds:g} s, so there is nothing to compare."
    return BreakEven(
        window=MeasuredWindow(seconds, round(traffic.covered_seconds, 3), len(rows), len(gated), traffic.workers),
        sentence=headline,
        reference=f"k{reference}",
        skip_rate=skip,
        shares={
            name: share(int((done == index).sum()), len(gated), of=_GATED) for index, name in enumerate(actions_of(ks))
        },
        costs={
            "latency": latency,
            "tokens": _view("tokens", "tokens", rows, _tokens, skip=skip, ks=above),
            "money": None if tariff.is_free else _view("money", "price", rows, _money(tariff), skip=skip, ks=above),
        },
        caveats=_caveats(traffic, seconds, reference),
    )


def _latency(rows: Rows) -> StageCosts:
    return StageCosts(_ms(rows["probe_ms"]), _ms(rows["embed_ms"]) + _ms(rows["search_ms"]), _ms(rows["read_ms"]))


def _tokens(rows: Rows) -> StageCosts:
    probe = _float(rows["probe_prompt"]) + _float(rows["probe_completion"])
    read = _float(rows["read_prompt"]) + _float(rows["read_completion"])
    return StageCosts(probe, np.zeros(len(rows)), read)


def _money(tariff: Tariff) -> Count:
    def count(rows: Rows) -> StageCosts:
        fetched = tariff.call * _float(rows["searches"]) + tariff.passage * _float(rows["passages"])
        probe, read = (
            tariff.generation(_float(rows[f"{stage}_prompt"]), _float(rows[f"{stage}_completion"]))
            for stage in ("probe", "read")
        )
        return StageCosts(probe, fetched, read)

    return count


def _view(cost: str, unit: str, rows: Rows, count: Count, *, skip: Interval, ks: Sequence[int]) -> CostView:
    """All figures of one cost. Each cost starts with the same seed, so that it does not depend on the others."""
    rng = np.random.default_rng(_SEED)
    gated = select(rows, rows["gated"])
    spent, reading = count(gated), gated["reads"] > 0
    # What the gated questions really cost, whatever they bought.
    (gate,) = _means(rng, spent.probe + spent.retrieval + spent.read)
    (probe,) = _means(rng, spent.probe[~np.isnan(gated["probe_ms"])])
    (retrieving,) = _means(rng, (spent.retrieval + spent.read)[reading])
    gate, probe, retrieving = gate.requiring(_GATED), probe.requiring(_PROBED), retrieving.requiring(_RETRIEVING)
    # The ladder may search and read without a probe, so no skip rate says from where on it pays.
    always_probed = replace(probe, needs=_THRESHOLDS) if gated["ladder"].any() else probe
    stages, always = {"probe": probe.estimate()}, {}
    for k in ks:
        retrieval, read = _reading(rng, count(_that_read(rows, k)))
        retrieval, read = retrieval.requiring(_reading_of(k)), read.requiring(_reading_of(k))
        stages |= {f"retrieve_k{k}": retrieval.estimate(), f"read_k{k}": read.estimate()}
        always[k] = _combine(add, retrieval, read)
    against = {}
    for k in ks:
        ratio = _positive(always[k], lambda a: _combine(truediv, gate, a)).estimate()
        even = _break_even(always_probed, retrieving, always[k]).estimate()
        against[f"k{k}"] = Comparison(
            always[k].estimate(), even, ratio, verdict(ratio), sentence(cost, k, ratio, even, skip)
        )
    return CostView(unit, stages, gate.estimate(), against)


def _reading(rng: np.random.Generator, spent: StageCosts) -> tuple[Estimate, Estimate]:
    retrieval, read = _means(rng, spent.retrieval, spent.read)
    return retrieval, read


def _reading_of(k: int) -> str:
    return f"questions that read {passages(k)}"


def _that_read(rows: Rows, k: int) -> Rows:
    """The questions that read k passages and nothing else, gated or not: the cost of k without the gate."""
    return select(rows, (rows["k"] == k) & (rows["reads"] == 1))


def _break_even(probe: Estimate, retrieving: Estimate, always: Estimate) -> Estimate:
    return _positive(
        retrieving,
        lambda r: _combine(lambda *amounts: np.maximum(0.0, break_even_against(*amounts)), probe, r, always),
    )


def _positive(divisor: Estimate, quotient: Callable[[Estimate], Estimate]) -> Estimate:
    """A quotient; unknown if the divisor is 0, such as a cost without a price."""
    if divisor.needs is None and divisor.value <= 0.0:
        return Estimate(np.nan, np.empty(0), divisor.n, "a reading that costs more than 0")
    return quotient(divisor)


def _caveats(traffic: Traffic, seconds: float, reference: int) -> tuple[str, ...]:
    said = []
    reading = _that_read(traffic.rows, reference)
    chosen = float(reading["gated"].mean()) if len(reading) else 0.0
    if chosen > RARE:
        said.append(
            f"{percent(chosen)} of the questions behind the cost of k{reference} were chosen by the gate. Those "
            "are the harder ones, so reading for every question may cost less than is shown."
        )
    if traffic.overrun:
        said.append(
            f"More questions than the workers can store: the window covers the last {traffic.covered_seconds:.0f} "
            f"of {seconds:g} s."
        )
    return tuple(said)


def _ms(values: NDArray[Any]) -> Floats:
    """Milliseconds of a stage; 0 if it did not run."""
    return np.nan_to_num(_float(values))


def _float(values: NDArray[Any]) -> Floats:
    return values.astype(np.float64)


def _combine(formula: Callable[..., Any], *figures: Estimate) -> Estimate:
    """A figure computed from others; unknown if one of them is."""
    n = min(figure.n for figure in figures)
    needs = next((figure.needs for figure in figures if figure.needs is not None), None)
    if needs is not None:
        return Estimate(math.nan, np.empty(0), n, needs)
    value = float(formula(*(figure.value for figure in figures)))
    return Estimate(value, formula(*(figure.draws for figure in figures)), n)


def _means(rng: np.random.Generator, *columns: Floats) -> tuple[Estimate, ...]:
    """The winsorised mean of each column over the same questions; the draws are positive and correlated."""
    sample = np.column_stack(columns)
    n, width = sample.shape
    if n < 2:
        # One question gives the order of magnitude only.
        values = sample.sum(axis=0)
        draws = values * np.exp(rng.standard_normal((_DRAWS, 1)))
    else:
        trimmed = max(1, math.ceil(_TRIMMED * n))
        capped = np.minimum(sample, np.sort(sample, axis=0)[n - trimmed - 1])
        values = capped.mean(axis=0)
        # The error of a winsorised mean, widened for small samples about as much as Student's distribution.
        errors = capped.std(axis=0, ddof=1) / math.sqrt(n) / (1.0 - trimmed / n) * (1.0 + 1.21 / (n - 1))
        relative = np.divide(errors, values, out=np.zeros(width), where=values > 0.0)
        draws = values * np.exp(_correlated(rng, capped) * relative)
    return tuple(Estimate(float(values[column]), draws[:, column], n) for column in range(width))


def _correlated(rng: np.random.Generator, sample: Floats) -> Floats:
    """Standard normal draws, correlated like the columns of a sample; a constant column is uncorrelated."""
    centred = sample - sample.mean(axis=0)
    norms = np.sqrt((centred * centred).sum(axis=0))
    units = np.divide(centred, norms, out=np.zeros_like(centred), where=norms > 0.0)
    correlation = units.T @ units
    np.fill_diagonal(correlation, 1.0)
    return rng.multivariate_normal(np.zeros(sample.shape[1]), correlation, size=_DRAWS, method="eigh")
