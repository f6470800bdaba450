"""Fit heads: a logistic model and boosted trees on the evidence of one state, blended by out-of-fold log-odds.

Targets lie in [0, 1]: labels for the probability of an answer, values of the next state for a purchase. A group's rows
are in one fold, and the fold is a hash of the group's name, so neither the order of rows nor new rows change it.
`predict_many` is the gateway's arithmetic on numpy columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from threadpoolctl import threadpool_limits

from app.core import evidence
from app.core.heads import MAX_LOGIT, Blend, Head, Trees
from app.offline.refit import fit
from app.offline.refit.regression import fit_shares, regress
from app.offline.refit.splits import position
from app.offline.refit.trees import score_many, to_trees
from app.offline.table import Floats, Labels

# Served heads blend both; the benchmark also measures each alone.
Part = Literal["linear", "trees"]
PARTS: tuple[Part, ...] = get_args(Part)
FOLDS = 5
# More groups than this would not make a head of 40 small trees better.
MAX_GROUPS = 10_000
_SALT = "heads"
# Of the blend, toward equal shares: few rows must not give one part all the weight.
_BLEND_RIDGE = 10.0
_ROUNDS = 40
_TREES = {
    "objective": "cross_entropy",
    "num_leaves": 6,
    "learning_rate": 0.1,
    "min_data_in_leaf": 10,
    "lambda_l2": 1.0,
    # Trees of six leaves do not need finer cuts, and histograms of 255 take twice the time.
    "max_bin": 63,
    # Heads with different targets share one binned table.
    "feature_pre_filter": False,
    "num_threads": 1,
    "force_row_wise": True,
    "deterministic": True,
    "seed": 0,
    "verbose": -1,
}


@dataclass(frozen=True, eq=False, slots=True)
class FittedHead:
    """A head, and what heads fitted on the other folds predict for each row; NaN without required evidence."""

    head: Blend
    out_of_fold: Floats


def folds_of(groups: Sequence[str]) -> NDArray[np.intp]:
    """The fold of each row, by a hash of its group."""
    fold = {group: int(position(group, _SALT) * FOLDS) for group in set(groups)}
    return np.array([fold[group] for group in groups], dtype=np.intp)


def drawn_rows(groups: Sequence[str]) -> NDArray[np.intp]:
    """The rows of at most MAX_GROUPS groups, drawn by a hash, in the order of the table."""
    drawn = set(sorted(set(groups), key=lambda group: (position(group, "draw"), group))[:MAX_GROUPS])
    return np.array([row for row, group in enumerate(groups) if group in drawn], dtype=np.intp)


def fit_head(
    columns: Mapping[str, Floats],
    target: Floats,
    weights: Floats,
    folds: NDArray[np.intp],
    *,
    state: str,
    k: int | None,
) -> FittedHead:
    """Fit a head for a state: the probability that the answer at k is right, or the value of a purchase (k is None)."""
    return Design(columns, weights, folds, state).fit(target, k)


class Design:
    """The evidence of one state in the shapes that fitting needs, shared by all heads of the state.

    Standardising and binning use all rows: they look at no target, and so every fold and target can share them.
    """

    def __init__(
        self,
        columns: Mapping[str, Floats],
        weights: Floats,
        folds: NDArray[np.intp],
        state: str,
        parts: Sequence[Part] = PARTS,
    ) -> None:
        self.parts = parts
        known = {name for name, column in columns.items() if np.isfinite(column).any()}
        self.required = tuple(name for name in evidence.required(state) if name in known)
        whole = np.ones(len(weights), dtype=np.bool_)
        for name in self.required:
            whole &= np.isfinite(columns[name])
        # Without required evidence nothing is predicted, so such rows are not fitted on either.
        self.rows = np.flatnonzero(whole)
        self.size = len(weights)
        taken = weights[self.rows]
        self.weights = taken * (len(taken) / taken.sum()) if len(taken) else taken
        self.folds = folds[self.rows]
        self.features = tuple(
            name for name in sorted(known) if evidence.belongs(name, state) and _varies(columns[name][self.rows])
        )
        self.matrix = np.column_stack(
            [columns[name][self.rows] for name in self.features] or [np.empty((len(taken), 0))]
        )
        # By target, where a similar target's weights are a good start.
        self._starts: dict[object, tuple[Floats, Floats | None]] = {}

    @cached_property
    def _linear(self) -> tuple[Floats, Floats, Floats, NDArray[np.intp]]:
        """Means, scales, the matrix for the regression, and which features may be absent."""
        present = np.isfinite(self.matrix)
        share = np.where(present, self.weights[:, None], 0.0)
        total = share.sum(axis=0)
        filled = np.where(present, self.matrix, 0.0)
        means = (share * filled).sum(axis=0) / total
        scales = np.sqrt((share * np.where(present, filled - means, 0.0) ** 2).sum(axis=0) / total)
        scales = np.where(scales > 1e-12 * np.maximum(1.0, np.abs(means)), scales, 1.0)
        absent = np.flatnonzero(~present.all(axis=0))
        standard = np.where(present, (self.matrix - means) / scales, 0.0)
        design = np.column_stack([standard, ~present[:, absent], np.ones(len(standard))])
        return means, scales, design, absent

    @cached_property
    def _binned(self) -> list[lgb.Dataset]:
        """The rows outside each fold, then all rows, binned alike."""
        every = lgb.Dataset(self.matrix, params=_TREES, free_raw_data=False).construct()
        return [every.subset(rows.tolist()).construct() for rows in self._seen[:-1]] + [every]

    @cached_property
    def _seen(self) -> list[NDArray[np.intp]]:
        """The rows that each fold's models are fitted on, then all rows."""
        return [np.flatnonzero(self.folds != fold) for fold in range(FOLDS)] + [np.arange(len(self.rows))]

    def fit(self, target: Floats, k: int | None, *, like: object = None) -> FittedHead:
        """Fit one head. Heads with an equal `like` have similar targets; it saves time and changes nothing else."""
        # The matrices are small: several threads would mostly wait for each other.
        with threadpool_limits(limits=1):
            return self._fit(target[self.rows], k, like)

    def _fit(self, target: Floats, k: int | None, like: object) -> FittedHead:
        out_of_fold = np.full(self.size, np.nan)
        held = [np.flatnonzero(self.folds == fold) for fold in range(FOLDS)]
        one_fold = sum(bool(len(rows)) for rows in held) < 2
        if not self.features or one_fold or float(np.ptp(target)) < 1e-9:
            return self._constant(target, held, out_of_fold)
        means, scales, design, absent = self._linear
        start, information = self._starts.get(like, (None, None))
        beta, information = regress(design, target, self.weights, start, information)
        if like is not None:
            self._starts[like] = beta, information
        parts = {part: np.empty(len(target)) for part in self.parts}
        for fold, rows in enumerate(held):
            if len(rows) and "linear" in parts:
                seen = self._seen[fold]
                near, _ = regress(design[seen], target[seen], self.weights[seen], beta, information)
                parts["linear"][rows] = design[rows] @ near
            if len(rows) and "trees" in parts:
                boosted = self._boost(fold, target, k)
                parts["trees"][rows] = boosted.predict(self.matrix[rows], raw_score=True, num_threads=1)
        odds = np.clip(np.column_stack(list(parts.values())), -MAX_LOGIT, MAX_LOGIT)
        bias, fitted = fit_shares(odds, target, self.weights, toward=1.0 / len(parts), ridge=_BLEND_RIDGE)
        out_of_fold[self.rows] = expit(bias + odds @ fitted)
        shares = dict(zip(parts, fitted.tolist(), strict=True))
        width = len(self.features)
        indicator = np.zeros(width)
        indicator[absent] = beta[width:-1]
        head = Blend(
            features=self.features,
            required=self.required,
            means=tuple(means.tolist()),
            scales=tuple(scales.tolist()),
            weights=tuple(beta[:width].tolist()),
            absent=tuple(indicator.tolist()),
            intercept=float(beta[-1]),
            trees=to_trees(self._boost(FOLDS, target, k)) if "trees" in parts else Trees(),
            bias=bias,
            linear_share=shares.get("linear", 0.0),
            tree_share=shares.get("trees", 0.0),
        )
        return FittedHead(head, out_of_fold)

    def _boost(self, fold: int, target: Floats, k: int | None) -> lgb.Booster:
        seen, binned = self._seen[fold], self._binned[fold]
        binned.set_label(target[seen])
        binned.set_weight(self.weights[seen])
        rising = [int(k is not None and evidence.is_rising(name, k)) for name in self.features]
        booster = lgb.Booster(_TREES | {"monotone_constraints": rising}, binned)
        for _ in range(_ROUNDS):
            booster.update()
        return booster

    def _constant(self, target: Floats, held: list[NDArray[np.intp]], out_of_fold: Floats) -> FittedHead:
        """Without evidence, or with nothing to learn from it: the mean, with one row of value 1/2 added."""

        def mean(rows: NDArray[np.intp]) -> float:
            return float((self.weights[rows] @ target[rows] + 0.5) / (self.weights[rows].sum() + 1.0))

        for fold, rows in enumerate(held):
            out_of_fold[self.rows[rows]] = mean(self._seen[fold]) if len(self._seen[fold]) else mean(self._seen[-1])
        none: tuple[float, ...] = ()
        bias = float(logit(mean(self._seen[-1])))
        return FittedHead(Blend((), self.required, none, none, none, none, 0.0, Trees(), bias, 0.0, 0.0), out_of_fold)


def _varies(column: Floats) -> bool:
    """Whether a column can tell rows apart: by different values, or by some that are absent."""
    present = column[np.isfinite(column)]
    return present.size > 0 and (present.size < column.size or float(np.ptp(present)) > 0.0)


def predict_many(head: Head, columns: Mapping[str, Floats], n: int) -> Floats:
    """The predictions of n rows, NaN without required evidence; a calibrator's signals are looked up by their names."""
    if not isinstance(head, Blend):
        return fit.predict_many(head, columns, n)
    missing = np.full(n, np.nan)
    known: Labels = np.ones(n, dtype=np.bool_)
    for name in head.required:
        known &= np.isfinite(columns.get(name, missing))
    linear = np.full(n, head.intercept)
    rows = np.column_stack([columns.get(name, missing) for name in head.features] or [np.empty((n, 0))])
    for at in range(len(head.features)):
        x = rows[:, at]
        moved = head.weights[at] * (x - head.means[at]) / head.scales[at]
        linear = linear + np.where(np.isnan(x), head.absent[at], moved)
    linear, trees = (np.clip(part, -MAX_LOGIT, MAX_LOGIT) for part in (linear, score_many(head.trees, rows)))
    return np.where(known, expit(head.bias + head.linear_share * linear + head.tree_share * trees), np.nan)
