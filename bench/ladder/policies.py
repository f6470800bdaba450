"""The policies of the ladder's benchmark, fitted on some rows of a table and run on others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.core.available import state_of
from app.core.signals import ALL_NAMES
from app.offline.refit.climb import (
    BUDGET,
    SEARCH,
    answers_of,
    cheaper_steps,
    climb,
    have,
    most_accurate,
    purchases,
    right_of,
    states,
)
from app.offline.refit.heads import PARTS, Part, fit_head, predict_many
from app.offline.refit.ladder import (
    PRICES,
    FittedHeads,
    FittedValues,
    LadderStep,
    Sample,
    choose_path,
    predict_all,
    step_of,
)
from app.offline.table import Floats
from bench.ladder.tables import Table

Rows = NDArray[np.intp]
# Thresholds of the gate that are tried on either side.
_CUTS = 60


@dataclass(frozen=True, eq=False)
class Run:
    """What a policy did with each row: right or wrong, its cost and time over always-top, and the confidence shown."""

    right: Floats
    tokens: Floats
    ms: Floats
    # NaN where a policy shows none.
    confidence: Floats
    # P(the closed-book answer is right) after a search.
    p0: Floats
    largest: Floats


def take(columns: Mapping, rows: Rows) -> dict:
    """These rows of each column."""
    return {name: column[rows] for name, column in columns.items()}


def sample_of(table: Table, rows: Rows, parts: Sequence[Part] = PARTS) -> Sample:
    """Rows of a table to fit on; tokens are the cost, and a search has none."""
    groups = [table.groups[row] for row in rows]
    costs = _costs(take(table.tokens, rows), len(rows))
    outside = table.outside[rows]
    return Sample.of(
        take(table.columns, rows), take(table.correct, rows), costs, groups, out_of_corpus=outside, parts=parts
    )


def _costs(reads: Mapping[int, Floats], n: int) -> dict[str, Floats]:
    return {SEARCH: np.zeros(n)} | {f"k{k}": cost for k, cost in reads.items()}


def fixed(table: Table, rows: Rows, k: int) -> Run:
    """Always the same number of passages."""
    nothing = np.full(len(rows), np.nan)
    tokens, ms = (_share(column, rows, k, table.ks[-1]) for column in (table.tokens, table.ms))
    right = table.correct[k][rows].astype(np.float64)
    return Run(right, tokens, ms, nothing, nothing, np.full(len(rows), float(k)))


def _share(column: Mapping[int, Floats], rows: Rows, k: int, top: int) -> Floats:
    shares: Floats = column[k][rows] / column[top][rows].mean()
    return shares


def fit_one_ahead(sample: Sample, fitted: FittedHeads) -> list[FittedValues]:
    """Values that look one purchase ahead: the best answer right after it, as if nothing could be bought then."""
    p, n = fitted.out_of_fold, len(sample.folds)
    heads: dict[str, dict] = {}
    predicted: dict[str, dict] = {}
    for state in states(sample.ks):
        for name, after in purchases(state, sample.ks).items():
            # A search alone gives no answer: its worth is that of the next read.
            best = have(p, after, n) if answers_of(after) else have(p, state_of(sample.ks[1:2], searched=True), n)
            found = sample.designs[state].fit(best, None)
            heads.setdefault(state, {})[name] = found.head
            predicted.setdefault(state, {})[name] = found.out_of_fold
    return [FittedValues(t, heads, predicted) for t in PRICES]


def ladder_path(sample: Sample, fitted: FittedHeads, *, ahead: bool) -> tuple[LadderStep, ...]:
    """The path of prices by the value of buying, or one purchase ahead."""
    if not ahead:
        return choose_path(sample, fitted)
    return cheaper_steps(step_of(sample, fitted, values) for values in fit_one_ahead(sample, fitted))


def within_budget(path: Sequence[LadderStep], budget: float = BUDGET) -> LadderStep:
    """The most accurate step within the budget, or the cheapest of all."""
    return most_accurate(path, budget) or path[-1]


def ladder(table: Table, rows: Rows, sample: Sample, fitted: FittedHeads, step: LadderStep) -> Run:
    """Climb other rows with the kept heads."""
    n, columns, ks = len(rows), take(table.columns, rows), table.ks
    p, q = predict_all(fitted.heads, columns, n), predict_all(step.values.heads, columns, n)
    spent = {}
    for name, reads in (("tokens", table.tokens), ("ms", table.ms)):
        costs, top = _costs(take(reads, rows), n), float(reads[ks[-1]][rows].mean())
        found = climb(p, q, step.t, prices=sample.prices, costs=costs, top=top, ks=ks)
        spent[name] = found.cost
    shown = np.array([step.confidence.apply(one) if np.isfinite(one) else np.nan for one in found.p])
    largest = np.array([max(answers_of(states(ks)[place]), default=0) for place in found.state], np.float64)
    right = right_of(found, take(table.correct, rows))
    p0 = p[state_of((0,), searched=True)][0]
    return Run(right, spent["tokens"], spent["ms"], shown, p0, largest)


def graded(table: Table, rows: Rows, sample: Sample, budget: float = BUDGET) -> Run:
    """The gate by log-probabilities alone: two thresholds on p0, the most accurate on train within the budget."""
    none, few, many = table.ks[0], table.ks[1], table.ks[-1]
    signals = {
        k: {name: column for name, column in sample.columns.items() if name in {f"k{k}.{one}" for one in ALL_NAMES}}
        for k in (none, few, many)
    }
    heads = {
        k: fit_head(
            signals[k], sample.correct[k].astype(np.float64), sample.units.weights, sample.folds, state=f"k{k}", k=k
        )
        for k in signals
    }
    p = heads[none].out_of_fold
    cuts = np.concatenate([[0.0], np.quantile(p, np.linspace(0.0, 1.0, _CUTS)), [2.0]])
    best, chosen = -np.inf, (2.0, 2.0)
    for tau0 in cuts:
        for tau1 in cuts[cuts <= tau0]:
            route = np.where(p >= tau0, none, np.where(p >= tau1, few, many))
            cost = sample.mean(_gate_cost(route, {k: sample.costs[f"k{k}"] for k in signals}, none)) / sample.top
            right = sample.mean(np.select([route == k for k in signals], [sample.correct[k] for k in signals]) * 1.0)
            if cost <= budget and right > best:
                best, chosen = right, (float(tau0), float(tau1))
    columns, n = take(table.columns, rows), len(rows)
    shown = {k: predict_many(fitted.head, columns, n) for k, fitted in heads.items()}
    route = np.where(shown[none] >= chosen[0], none, np.where(shown[none] >= chosen[1], few, many))
    pick = lambda values: np.select([route == k for k in signals], [values[k] for k in signals])  # noqa: E731
    right = pick(take(table.correct, rows)).astype(np.float64)
    spent = [
        _gate_cost(route, take(reads, rows), none) / reads[many][rows].mean() for reads in (table.tokens, table.ms)
    ]
    return Run(right, spent[0], spent[1], pick(shown), shown[none], route.astype(np.float64))


def _gate_cost(route: NDArray[np.intp], reads: Mapping[int, Floats], none: int) -> Floats:
    """The probe, and what is read after it."""
    return reads[none] + np.select(
        [route == k for k in reads if k != none], [reads[k] for k in reads if k != none], 0.0
    )
