"""The figures of one policy on one division of a table, and their means over divisions."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from app.offline.refit.metrics import auroc, ece, risk_of
from app.offline.refit.splits import Units
from bench.ladder.policies import Rows, Run
from bench.ladder.tables import Table

_Z = 1.96
_NULL_DRAWS = 200


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a policy on one division; `numbers` may have NaN."""

    table: str
    split: str
    policy: str
    n: int
    numbers: dict[str, float]

    @classmethod
    def of(cls, table: Table, split: str, policy: str, rows: Rows, run: Run) -> "Figures":
        """Measure a run, each group once."""
        codes = np.unique([table.groups[row] for row in rows], return_inverse=True)[1]
        units = Units(codes, np.bincount(codes).astype(np.float64))
        weights = units.weights
        top = table.ks[-1]
        numbers = {
            "accuracy": float(weights @ run.right),
            "tokens": float(weights @ run.tokens) / _fixed(table, rows, weights, top, "tokens"),
            "time": float(weights @ run.ms) / _fixed(table, rows, weights, top, "ms"),
        }
        for k in table.ks[1:]:
            differences = units.means(run.right - table.correct[k][rows])
            middle, half = float(differences.mean()), _Z * float(differences.std()) / np.sqrt(units.count)
            numbers |= {f"k{k}": middle, f"k{k}.low": middle - half, f"k{k}.high": middle + half}
        labels = run.right > 0.5
        if np.isfinite(run.p0).all():
            numbers["auroc_k0"] = auroc(run.p0, table.correct[0][rows], weights)
        if np.isfinite(run.confidence).any():
            risk = risk_of(run.right, run.confidence, weights)
            held = np.flatnonzero(risk.risk <= 0.05)
            numbers |= {
                "auroc_confidence": auroc(run.confidence, labels, weights),
                "accuracy_at_80": risk.accuracy_at(0.8),
                "coverage_at_5": float(risk.coverage[held[-1]]) if held.size else 0.0,
                "ece": ece(run.confidence, labels, weights),
                "ece_null": _ece_null(run, weights),
                "overconfidence": float(weights @ (run.confidence - run.right)),
            }
        return cls(table.name, split, policy, units.count, numbers)


def _fixed(table: Table, rows: Rows, weights: np.ndarray, top: int, what: str) -> float:
    """Always-top's cost with each group once; runs divide by its mean over rows."""
    column = getattr(table, what)[top][rows]
    return float(weights @ column / column.mean())


def _ece_null(run: Run, weights: np.ndarray) -> float:
    """The median ECE if every confidence were the truth: noise alone gives this much."""
    rng = np.random.default_rng(0)
    drawn = [ece(run.confidence, rng.random(len(weights)) < run.confidence, weights) for _ in range(_NULL_DRAWS)]
    return float(np.median(drawn))


def mean_of(figures: Iterable[Figures]) -> list[dict[str, object]]:
    """One row per table, split and policy: means over the divisions."""
    key = lambda one: (one.table, one.split, one.policy)  # noqa: E731
    rows: list[dict[str, object]] = []
    for (table, split, policy), some in itertools.groupby(sorted(figures, key=key), key=key):
        every = list(some)
        names = every[0].numbers
        means = {name: float(np.mean([one.numbers[name] for one in every])) for name in names}
        vs = {name: [means.pop(name), means.pop(f"{name}.low"), means.pop(f"{name}.high")] for name in ("k1", "k5")}
        n = round(float(np.mean([one.n for one in every])))
        rows.append({"table": table, "split": split, "policy": policy, "n": n, **means, "vs": vs})
    return rows
