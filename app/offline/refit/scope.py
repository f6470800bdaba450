"""Fit the scope test on train: below which values a question is unlike those that were collected.

Each of three statistics alarms at a third of alpha. Its floor is an order statistic of train, so the rate of false
alarms holds on average over draws of train, whatever the distribution. Nearness is measured outside a question's own
group: a question is nearer to its own variants than a new question is to anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from app.certify.intervals import Interval, binomial_upper, unknown_interval, wilson
from app.core.evidence import COSINE, COVERAGE, NEARNESS, SCRIPT
from app.core.scope import Scope
from app.offline.refit.heads import FOLDS, drawn_rows, folds_of
from app.offline.refit.splits import position
from app.offline.table import Floats, Labels

ALPHA = 0.02
MAX_CENTROIDS = 256
STATISTICS = (NEARNESS, COSINE, COVERAGE)
# Floors are this much lower: no alarm depends on the last bits of a vector, or on the rounding of a table's evidence.
_SLACK = 1e-6
_LEVEL = 0.05

Vectors = NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class FittedScope:
    """The test, and the centroids that its nearness is measured to, for the corpus statistics."""

    scope: Scope
    centroids: Vectors


@dataclass(frozen=True, slots=True)
class Realised:
    """What the test did on rows that it was not fitted on: false alarms by group, and detection by kind of question."""

    false_alarms: Interval
    # Of rows flagged as out of corpus.
    detected: Mapping[str, Interval]


def fit_scope(
    ids: Sequence[str],
    columns: Mapping[str, Floats],
    vectors: Vectors | None,
    groups: Sequence[str],
    *,
    out_of_corpus: Labels | None = None,
    alpha: float = ALPHA,
) -> FittedScope:
    """Floors from one row per group without the out-of-corpus rows, which would fill the tail.

    `vectors` are the questions' embeddings of unit length; without them there is no nearness.
    """
    rows = one_per_group(ids, groups, out_of_corpus)
    known = {name: columns[name][rows] for name in (COSINE, COVERAGE) if name in columns}
    centroids: Vectors = np.empty((0, 0), np.float32)
    # Rows may lack a vector.
    embedded = [] if vectors is None else [row for row in rows.tolist() if np.isfinite(vectors[row]).all()]
    if vectors is not None and embedded:
        taken = vectors[embedded]
        known[NEARNESS] = _nearness_outside(taken, folds_of([groups[row] for row in embedded]))
        centroids = centroids_of(taken)
    floors = {name: floor_of(known[name], alpha / len(STATISTICS)) for name in STATISTICS if name in known}
    inside = np.ones(len(ids), np.bool_) if out_of_corpus is None else ~out_of_corpus
    seen = [
        name.removeprefix(SCRIPT)
        for name, column in columns.items()
        if name.startswith(SCRIPT) and np.isfinite(column[inside]).any()
    ]
    scope = Scope(
        alpha=alpha,
        floors={name: value for name, value in floors.items() if value is not None},
        nearness_alone=floor_of(known[NEARNESS], alpha) if NEARNESS in known else None,
        scripts=tuple(sorted(seen)),
        covers=f"Questions like the {int(inside.sum()):,} that were collected, in {len(rows):,} groups.",
    )
    return FittedScope(scope, centroids)


def one_per_group(ids: Sequence[str], groups: Sequence[str], out_of_corpus: Labels | None = None) -> NDArray[np.intp]:
    """One row of each group, by a hash of its id, for at most MAX_GROUPS groups; none that is out of corpus."""
    chosen: dict[str, tuple[float, int]] = {}
    for row in drawn_rows(groups).tolist():
        if out_of_corpus is None or not out_of_corpus[row]:
            place = (position(ids[row], "scope"), row)
            chosen[groups[row]] = min(place, chosen.get(groups[row], place))
    return np.array(sorted(row for _, row in chosen.values()), dtype=np.intp)


def floor_of(values: Floats, rate: float) -> float | None:
    """The value with at most floor(rate (n + 1)) - 1 of n values below it; None if there are too few values for it.

    A new value from the same distribution is strictly below the i-th smallest with probability at most i / (n + 1).
    """
    finite = np.sort(values[np.isfinite(values)])
    # The product may be a whole number that rounding puts just below it.
    index = floor(rate * (len(finite) + 1) + 1e-9)
    return None if index == 0 else float(finite[index - 1]) - _SLACK


def centroids_of(vectors: Vectors) -> Vectors:
    """At most MAX_CENTROIDS directions of unit length, in the precision of the file that keeps them."""
    distinct = np.unique(vectors, axis=0)
    if len(distinct) > MAX_CENTROIDS:
        with threadpool_limits(limits=1):
            # Random starts: a cleverer choice takes longer than the clustering, and nearness hardly depends on it.
            model = KMeans(MAX_CENTROIDS, init="random", n_init=1, max_iter=30, random_state=0).fit(distinct)
        distinct = model.cluster_centers_
    lengths = np.linalg.norm(distinct, axis=1, keepdims=True)
    return np.asarray((distinct / np.maximum(lengths, 1e-9)).astype(np.float16), np.float32)


def nearness_of(vectors: Vectors, centroids: Vectors) -> Floats:
    """The largest cosine of each vector and a centroid, as `CorpusStats.nearness`; NaN without centroids."""
    if not centroids.size:
        return np.full(len(vectors), np.nan)
    near: Floats = (vectors @ centroids.T).max(axis=1).astype(np.float64)
    return near


def _nearness_outside(vectors: Vectors, folds: NDArray[np.intp]) -> Floats:
    """The nearness of each row to centroids of the other folds, none of which has its group."""
    near = np.full(len(vectors), np.nan)
    for fold in range(FOLDS):
        held, others = folds == fold, vectors[folds != fold]
        if held.any() and len(others):
            near[held] = nearness_of(vectors[held], centroids_of(others))
    return near


def alarms(scope: Scope, columns: Mapping[str, Floats], n: int) -> Labels:
    """Which of n rows are out of scope, as `Scope.alarm` judges them after a search."""
    found = np.zeros(n, np.bool_)
    for name, column in columns.items():
        if name.startswith(SCRIPT) and name.removeprefix(SCRIPT) not in scope.scripts:
            found |= np.isfinite(column)
    for name, floor_ in scope.floors.items():
        if name in columns:
            with np.errstate(invalid="ignore"):
                found |= columns[name] < floor_
    return found


def realised(out_of_scope: Labels, ids: Sequence[str], groups: Sequence[str], kinds: Sequence[str]) -> Realised:
    """The test on other rows. `kinds` names the kind of each out-of-corpus row, and is empty for the others."""
    of_kind = np.array(kinds)
    rows = one_per_group(ids, groups, of_kind != "")
    detected = {
        kind: wilson(int(out_of_scope[of_kind == kind].sum()), int((of_kind == kind).sum()))
        for kind in sorted(set(kinds) - {""})
    }
    return Realised(exact_interval(int(out_of_scope[rows].sum()), len(rows)), detected)


def exact_interval(successes: int, trials: int) -> Interval:
    """The share of successes with Clopper and Pearson's interval, which holds at 95 % for any share."""
    if trials == 0:
        return unknown_interval(0)
    low, high = (binomial_upper(some, trials, _LEVEL / 2) for some in (trials - successes, successes))
    return Interval(successes / trials, 1.0 - low, high, trials)
