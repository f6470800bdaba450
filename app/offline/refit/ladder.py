"""The ladder on train: probabilities of answers, values of purchases for each price, and a path of prices.

A value depends on the price t, so it is fitted backwards from the top for every t of the path. Out-of-fold predictions
choose; the heads that are kept are fitted on all rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from app.core.artifact import ConfidenceMap
from app.core.heads import Blend, Head
from app.errors import DataError
from app.offline.refit.climb import (
    AHEAD,
    SEARCH,
    Climb,
    PricedStep,
    Probabilities,
    Values,
    answers_of,
    cheaper_steps,
    choose_once,
    climb,
    graded_states,
    have,
    purchases,
    right_of,
    states,
)
from app.offline.refit.heads import PARTS, Design, FittedHead, Part, drawn_rows, folds_of, predict_many
from app.offline.refit.regression import fit_shares
from app.offline.refit.splits import Units
from app.offline.table import Floats, Labels

# From buying whatever helps to buying almost nothing, finest where policies differ most.
PRICES = (0.0, 0.03, 0.06, 0.09, 0.12, 0.15, 0.2, 0.3, 0.5, 1.0)
# Of the confidence map, toward leaving the probability as it is.
_MAP_RIDGE = 1.0
_CLIP = 1e-9

K = TypeVar("K", int, str)


@dataclass(frozen=True, eq=False, slots=True)
class SingleAnswers:
    """Answers at one k, each with the evidence of the state it was given in; a row of a table has weight one."""

    columns: Mapping[str, Floats]
    right: Labels
    weights: Floats
    groups: Sequence[str]


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows to fit a ladder on: evidence, labels and costs of each purchase, for at most MAX_GROUPS groups."""

    ks: tuple[int, ...]
    columns: Mapping[str, Floats]
    correct: Mapping[int, Labels]
    costs: Mapping[str, Floats]
    units: Units
    folds: NDArray[np.intp]
    # Rows whose answers count in accuracies and costs; all rows train heads and confidences.
    counted: Labels
    # The place of each row in the table that it was drawn from.
    rows: NDArray[np.intp]
    # Further rows that know a single answer in a single state; they train its probability and nothing else.
    single: Mapping[tuple[str, int], SingleAnswers] = field(default_factory=dict)
    parts: Sequence[Part] = PARTS

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Floats],
        correct: Mapping[int, Labels],
        costs: Mapping[str, Floats],
        groups: Sequence[str],
        *,
        out_of_corpus: Labels | None = None,
        single: Mapping[tuple[str, int], SingleAnswers] | None = None,
        parts: Sequence[Part] = PARTS,
        per_request: bool = False,
    ) -> "Sample":
        """Draw groups by a hash; every array has one entry per row."""
        rows = drawn_rows(groups)
        names = [groups[row] for row in rows.tolist()]
        number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
        codes = np.array([number_of[name] for name in names], dtype=np.intp)
        counted = np.ones(len(rows), np.bool_) if out_of_corpus is None else ~out_of_corpus[rows]
        return cls(
            tuple(sorted(correct)),
            {name: column[rows] for name, column in columns.items()},
            {k: labels[rows] for k, labels in correct.items()},
            {name: cost[rows] for name, cost in costs.items()},
            Units(codes, np.bincount(codes).astype(np.float64), per_request),
            folds_of(names),
            counted,
            rows,
            single or {},
            parts,
        )

    def mean(self, values: Floats) -> float:
        """The mean over the groups of the counted rows."""
        weights = self.units.weights * self.counted
        return float(values @ weights / weights.sum())

    @cached_property
    def top(self) -> float:
        """The mean cost of always reading the most."""
        top = self.mean(self.costs[SEARCH] + self.costs[f"k{self.ks[-1]}"])
        if not top > 0.0:
            raise DataError("reading the most costs nothing in this objective, so nothing can be saved: choose another")
        return top

    @cached_property
    def prices(self) -> dict[str, float]:
        """The mean cost of each purchase over always-top's: c of the rule."""
        return {name: self.mean(cost) / self.top for name, cost in self.costs.items()}

    @cached_property
    def added(self) -> dict[str, float]:
        """What k passages add to the cost of an answer over always-top's: c of the one-shot rule."""
        return {f"k{k}": max(0.0, self.prices[f"k{k}"] - self.prices["k0"]) for k in self.ks}

    def always(self, k: int) -> float:
        """The mean cost of always reading k passages over always-top's."""
        return self.prices[f"k{k}"] + (self.prices[SEARCH] if k else 0.0)

    @cached_property
    def designs(self) -> dict[str, Design]:
        """The evidence of each state, shared by all heads of the state."""
        every = (*states(self.ks), *graded_states(self.ks))
        return {state: Design(self.columns, self.units.weights, self.folds, state, self.parts) for state in every}


@dataclass(frozen=True, eq=False, slots=True)
class FittedHeads:
    """Probabilities of answers: heads by state and k, and their out-of-fold predictions."""

    heads: Mapping[str, Mapping[int, Blend]]
    out_of_fold: Probabilities


@dataclass(frozen=True, eq=False, slots=True)
class FittedValues:
    """Values of purchases at one price: heads by state and purchase, and their out-of-fold predictions."""

    t: float
    heads: Mapping[str, Mapping[str, Blend]]
    out_of_fold: Values


@dataclass(frozen=True, eq=False, slots=True)
class LadderStep(PricedStep):
    """One price of the ladder's path, with everything that it needs."""

    values: FittedValues
    confidence: ConfidenceMap


def fit_probabilities(sample: Sample) -> FittedHeads:
    """P(right) of each answer that exists in a state; with a probe and a search also of every larger k.

    Chat chooses its k there at once, without reading on.
    """
    heads: dict[str, dict[int, Blend]] = {}
    predicted: dict[str, dict[int, Floats]] = {}
    for state, design in sample.designs.items():
        for k in sample.ks if state == AHEAD else answers_of(state):
            target, single = sample.correct[k].astype(np.float64), sample.single.get((state, k))
            fitted = design.fit(target, k) if single is None else _fit_joined(sample, state, k, single)
            heads.setdefault(state, {})[k] = fitted.head
            predicted.setdefault(state, {})[k] = fitted.out_of_fold[: len(target)]
    return FittedHeads(heads, predicted)


def _fit_joined(sample: Sample, state: str, k: int, single: SingleAnswers) -> FittedHead:
    """Fit on the rows of the table and on single answers."""
    missing = np.full(len(single.right), np.nan)
    columns = {
        name: np.concatenate([column, single.columns.get(name, missing)]) for name, column in sample.columns.items()
    }
    weights = np.concatenate([sample.units.weights * sample.units.count, single.weights])
    folds = np.concatenate([sample.folds, folds_of(single.groups)])
    target = np.concatenate([sample.correct[k], single.right]).astype(np.float64)
    return Design(columns, weights, folds, state, sample.parts).fit(target, k)


def fit_values(sample: Sample, p: Probabilities, t: float) -> FittedValues:
    """The value of each purchase at price t, backwards from the top: what the next state is worth out-of-fold."""
    worth: dict[str, Floats] = {}
    heads: dict[str, dict[str, Blend]] = {}
    predicted: dict[str, dict[str, Floats]] = {}
    for state in reversed(states(sample.ks)):
        options = purchases(state, sample.ks)
        for name, after in options.items():
            fitted = sample.designs[state].fit(worth[after], None, like=(state, name))
            heads.setdefault(state, {})[name] = fitted.head
            predicted.setdefault(state, {})[name] = fitted.out_of_fold
        values = [predicted[state][name] - t * sample.prices[name] for name in options]
        best = np.max([have(p, state, len(sample.folds)), *values], axis=0)
        # Where required evidence is missing, the most is read.
        most = sample.ks[-1]
        rest = 0.0 if most in answers_of(state) else t * sample.prices[f"k{most}"]
        worth[state] = np.clip(np.where(np.isnan(best), sample.correct[most] - rest, best), 0.0, 1.0)
    return FittedValues(t, heads, predicted)


def predict_all(
    heads: Mapping[str, Mapping[K, Head]], columns: Mapping[str, Floats], n: int
) -> dict[str, dict[K, Floats]]:
    """The predictions of every head for n rows, by state and answer or purchase."""
    return {
        state: {key: predict_many(head, columns, n) for key, head in named.items()} for state, named in heads.items()
    }


def fit_confidence(sample: Sample, climbed: Climb) -> ConfidenceMap:
    """One more logistic step on the probability of the answers given; it removes the optimism of taking the best."""
    known = np.flatnonzero(np.isfinite(climbed.p))
    right = right_of(climbed, sample.correct)[known]
    if right.size == 0 or right.min() == right.max():
        return ConfidenceMap()
    weights = sample.units.weights[known]
    odds = logit(np.clip(climbed.p[known], _CLIP, 1.0 - _CLIP))[:, None]
    scaled = weights * (len(known) / weights.sum())
    intercept, slope = fit_shares(odds, right, scaled, toward=1.0, ridge=_MAP_RIDGE)
    return ConfidenceMap(float(slope[0]), intercept)


def choose_path(
    sample: Sample, fitted: FittedHeads, prices: Sequence[float] = PRICES, *, below: int | None = None
) -> tuple[LadderStep, ...]:
    """The ladders of ascending prices that `cheaper_steps` keeps."""
    steps = (step_of(sample, fitted, fit_values(sample, fitted.out_of_fold, t)) for t in prices)
    return cheaper_steps(steps, None if below is None else sample.always(below))


def choose_chat_path(
    sample: Sample, fitted: FittedHeads, prices: Sequence[float] = PRICES, *, below: int | None = None
) -> tuple[PricedStep, ...]:
    """The one-shot rules of ascending prices that `cheaper_steps` keeps."""

    def step(t: float) -> PricedStep:
        found = choose_once(
            fitted.out_of_fold, t, prices=sample.added, costs=sample.costs, top=sample.top, ks=sample.ks
        )
        return PricedStep(t, found, sample.mean(right_of(found, sample.correct)), sample.mean(found.cost))

    return cheaper_steps(map(step, prices), None if below is None else sample.always(below))


def step_of(sample: Sample, fitted: FittedHeads, values: FittedValues) -> LadderStep:
    """Climb train with out-of-fold predictions at one price."""
    found = climb(
        fitted.out_of_fold,
        values.out_of_fold,
        values.t,
        prices=sample.prices,
        costs=sample.costs,
        top=sample.top,
        ks=sample.ks,
    )
    accuracy, cost = sample.mean(right_of(found, sample.correct)), sample.mean(found.cost)
    return LadderStep(values.t, found, accuracy, cost, values, fit_confidence(sample, found))
