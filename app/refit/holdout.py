"""What the test split says, once everything has been chosen. A group is one unit in every mean and interval."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from app.decision.artifact import Artifact, Calibrators, PolicyFit
from app.decision.cost import Tariff
from app.errors import DataError
from app.refit.bounds import answers
from app.refit.fit import predict_many
from app.refit.foretell import of_artifact, without_foresight
from app.refit.ledger import (
    ACTIONS,
    OBJECTIVES,
    Choices,
    Floats,
    Foretold,
    Ledger,
    advances,
    gate_costs,
    pick,
    read_costs,
)
from app.refit.metrics import Draws, ece, interval, losses
from app.refit.paths import frontier
from app.refit.selective import drawn, risk_of
from app.refit.split import Test, Train, Units, units
from app.refit.table import Outcomes

RESAMPLES = 1_000
# Beyond this many groups a mean is normal for all that anyone can see, and resampling only takes time.
MOST_RESAMPLED = 20_000
_BUDGETS = 101


def evaluate_policy(
    ledger: Ledger[Test],
    policies: Mapping[str, PolicyFit],
    *,
    served: Choices,
    confidence: Floats,
    tau: float,
    tariff: Tariff,
) -> dict[str, Any]:
    """Accuracy, cost, calibration and selective risk on test, with 95 % intervals over groups."""
    chosen = {name: ledger.route(fit.thresholds) for name, fit in policies.items()}
    right = {name: ledger.right(route) for name, route in chosen.items()}
    right |= {f"k{k}": ledger.fixed(k) for k in ACTIONS}
    columns = dict(right)
    columns |= {f"graded-k{k}": right["graded"] - right[f"k{k}"] for k in ACTIONS}
    answered = answers(confidence, tau)
    columns["answered"] = answered.astype(np.float64)
    columns["wrong"] = answered * (1.0 - ledger.right(served))
    means, resampled = resample(columns, ledger.units)
    return {
        "n": len(ledger.split.outcomes),
        "groups": ledger.units.count,
        "intervals": "group bootstrap, 95 %" if ledger.units.count <= MOST_RESAMPLED else "normal over groups, 95 %",
        "accuracy": {name: _interval(means[name], resampled[name]) for name in right},
        "graded_minus_fixed": {f"k{k}": _interval(means[f"graded-k{k}"], resampled[f"graded-k{k}"]) for k in ACTIONS},
        "shares": {
            name: {f"k{k}": ledger.mean((route == k).astype(np.float64)) for k in ACTIONS}
            for name, route in chosen.items()
        },
        "cost": _costs(ledger, policies, tariff),
        "p0": _calibration(ledger),
        "selective": {
            "tau": tau,
            "coverage": _interval(means["answered"], resampled["answered"]),
            "error": _interval(
                means["wrong"] / max(means["answered"], 1e-12),
                resampled["wrong"] / np.maximum(resampled["answered"], 1e-12),
            ),
            **_by_coverage(ledger.right(served), confidence, ledger.units),
        },
    }


def graded_against_binary(train: Ledger[Train], test: Ledger[Test]) -> dict[str, Any]:
    """Area between the graded and the binary frontier on the passage axis.

    At each of 101 budgets either policy uses the thresholds that are most accurate on train within it, so both are
    enveloped on train; the areas are those of the accuracies that these thresholds have on test.
    """
    tariff = Tariff()
    on_train = replace(train, costs=gate_costs(train.split.outcomes, "passage", tariff), foretold=Foretold())
    area = {}
    for name, graded in (("graded", True), ("binary", False)):
        steps = frontier(on_train, graded=graded, most=1.0, steps=_BUDGETS)[::-1]
        budgets = np.linspace(0.0, 1.0, _BUDGETS)
        # Questions without a signal read five, so the smallest budgets may be out of reach: there, the cheapest step.
        used = np.maximum(np.searchsorted([step.cost for step in steps], budgets + 1e-12, side="right") - 1, 0)
        strip = np.full(_BUDGETS, 1.0 / (_BUDGETS - 1))
        strip[[0, -1]] /= 2.0
        weight = np.bincount(used, weights=strip, minlength=len(steps))
        area[name] = np.sum(
            [w * test.right(test.route(step.thresholds)) for w, step in zip(weight, steps, strict=True) if w], axis=0
        )
    area["difference"] = area["graded"] - area["binary"]
    means, resampled = resample(area, test.units)
    return {"axis": "passage"} | {name: _interval(means[name], resampled[name]) for name in area}


def served_accuracy(artifact: Artifact, test: Test) -> float:
    """Accuracy on test of what the gateway would serve: the certified graded policy, or else the fallback action."""
    fit = artifact.policies.get("graded")
    thresholds = fit.thresholds if fit is not None and fit.certificate is not None else None
    p = predict_many(artifact.calibrators.p0, test.outcomes.signals[0], len(test.outcomes))
    foretold = of_artifact(artifact).apply(test.outcomes)
    if thresholds is not None and foretold.p0 is None:
        # Without embedded questions every one is probed, as where the gateway cannot embed.
        thresholds = without_foresight(thresholds)
    ledger = Ledger(test, p, units(test.outcomes), {}, foretold)
    return ledger.mean(ledger.right(ledger.serve(thresholds, artifact.fallback_action)))


def confidences(calibrators: Calibrators, outcomes: Outcomes, chosen: Choices) -> Floats:
    """The confidence of the answer really given: p0 where nothing was read, conf_k where k passages were."""
    return pick(confidence_at(calibrators, outcomes), chosen)


def confidence_at(calibrators: Calibrators, outcomes: Outcomes) -> dict[int, Floats]:
    """The confidence of every answer at each k; NaN where there is no calibrator for it."""
    n, fitted = len(outcomes), {0: calibrators.p0, 1: calibrators.conf1, 5: calibrators.conf5}
    return {
        k: np.full(n, np.nan) if calibrator is None else predict_many(calibrator, outcomes.signals[k], n)
        for k, calibrator in fitted.items()
    }


def resample(columns: Mapping[str, Floats], grouping: Units) -> tuple[dict[str, float], dict[str, Floats]]:
    """Means over groups, and what they might as well have been: a thousand draws of each, drawn together."""
    table = np.column_stack([grouping.means(values.astype(np.float64)) for values in columns.values()])
    rng = np.random.default_rng(0)
    count, means = grouping.count, table.mean(axis=0)
    if count <= MOST_RESAMPLED:
        weights = (np.bincount(rng.integers(0, count, count), minlength=count) for _ in range(RESAMPLES))
        draws = np.stack([weight @ table / count for weight in weights])
    else:
        spread = np.cov(table, rowvar=False).reshape(len(columns), len(columns)) / count
        draws = rng.multivariate_normal(means, spread, RESAMPLES, method="eigh")
    names = list(columns)
    return dict(zip(names, means.tolist(), strict=True)), {name: draws[:, i] for i, name in enumerate(names)}


def _calibration(ledger: Ledger[Test]) -> dict[str, Any]:
    """ECE and Brier score of p0 where there is one; null where there is none at all."""
    known, labels = np.isfinite(ledger.p), ledger.split.outcomes.correct[0]
    found: dict[str, Any] = {"ece": None, "brier": None, "missing": int((~known).sum())}
    if known.any():
        weights = ledger.units.weights[known]
        found["ece"] = ece(ledger.p[known], labels[known], weights)
        found["brier"] = float(np.average(losses(ledger.p[known], labels[known])["brier"], weights=weights))
    return found


def _by_coverage(right: Floats, confidence: Floats, grouping: Units) -> dict[str, Any]:
    """Accuracy of all answers, and of the surest that make up a coverage; always by group bootstrap."""
    draws = Draws(grouping, RESAMPLES)
    exact, (_, at) = risk_of(right, confidence, grouping.weights), drawn(right, confidence, draws)
    return {"accuracy_full": draws.interval(right)} | {
        f"accuracy_at_{share * 100:.0f}": interval(exact.accuracy_at(share), values) for share, values in at.items()
    }


def _interval(value: float, resampled: Floats) -> dict[str, float]:
    low, high = np.percentile(resampled, [2.5, 97.5])
    return {"value": float(value), "low": float(low), "high": float(high)}


def _costs(ledger: Ledger[Test], policies: Mapping[str, PolicyFit], tariff: Tariff) -> dict[str, Any]:
    """Mean cost of each policy on every axis that the table can tell, and its ratio to always reading five.

    On the serial schedule: a question is embedded, then probed, then read for, each only where it must be.
    """
    outcomes = ledger.split.outcomes
    result: dict[str, Any] = {}
    for objective in OBJECTIVES:
        try:
            gate, reads = gate_costs(outcomes, objective, tariff), read_costs(outcomes, objective, tariff)
        except DataError:
            continue  # the table has no such column
        paid_early = advances(outcomes, objective, tariff, ledger.foretold.prefixes)
        axis = replace(ledger, costs=gate, advances=paid_early)
        full = ledger.mean(reads[5])
        means = {name: ledger.mean(axis.spent(fit.thresholds)) for name, fit in policies.items()}
        means |= {f"k{k}": ledger.mean(reads[k]) for k in ACTIONS}
        result[objective] = {
            name: {"mean": value, "ratio_to_k5": value / full if full > 0.0 else None} for name, value in means.items()
        }
    return result
