"""Evaluate what was chosen on the test split, and publish an artifact that is not worse than the one served.

A group is one unit in every mean and interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from app.calibrators.store import ArtifactStore
from app.core.artifact import Artifact, PolicyFit, mismatches
from app.core.calibrator import Calibrator
from app.core.cost import Objective, Tariff
from app.errors import ArtifactError, DataError
from app.offline.refit.certify import answers
from app.offline.refit.choose import frontier
from app.offline.refit.fit import predict_many
from app.offline.refit.metrics import RESAMPLES, Draws, divide, drawn_risk, quality, risk_of
from app.offline.refit.splits import Ledger, Route, Test, Train, gate_costs, passage_costs, read_costs, units
from app.offline.table import Floats, Outcomes

_BUDGETS = 101


def evaluate_policy(
    ledger: Ledger[Test],
    policies: Mapping[str, PolicyFit],
    *,
    served: Route,
    confidence: Floats,
    tau: float,
    tariff: Tariff,
) -> dict[str, Any]:
    """Accuracy, cost, calibration and selective risk on test, with 95 % intervals over groups."""
    draws = Draws(ledger.units, RESAMPLES)
    chosen = {name: ledger.route(fit.thresholds) for name, fit in policies.items()}
    right = {name: ledger.right(route) for name, route in chosen.items()}
    right |= {f"k{k}": ledger.fixed(k) for k in ledger.ks}
    p0 = quality(ledger.p, ledger.split.outcomes.correct[0], draws)
    return {
        "n": len(ledger.split.outcomes),
        "groups": ledger.units.count,
        "intervals": "group bootstrap, 95 %",
        "accuracy": {name: draws.interval(column) for name, column in right.items()},
        "graded_minus_fixed": {f"k{k}": draws.interval(right["graded"] - right[f"k{k}"]) for k in ledger.ks},
        "shares": {
            name: {f"k{k}": ledger.mean((route == k).astype(np.float64)) for k in ledger.ks}
            for name, route in chosen.items()
        },
        "cost": _costs(ledger, policies, tariff),
        "p0": {"ece": p0["ece"].value, "brier": p0["brier"].value, "missing": int((~np.isfinite(ledger.p)).sum())},
        "selective": _selective(ledger.right(served), confidence, tau, draws),
    }


def graded_against_binary(train: Ledger[Train], test: Ledger[Test]) -> dict[str, Any]:
    """Area between the graded and the binary frontier on the passage axis.

    At each of 101 budgets both policies use the thresholds within it that are most accurate on train. The areas are
    those of the accuracies that these thresholds have on test.
    """
    on_train = replace(train, costs=passage_costs(train.split.outcomes))
    area = {}
    for name, graded in (("graded", True), ("binary", False)):
        steps = frontier(on_train, graded=graded, most=1.0, steps=_BUDGETS)[::-1]
        budgets = np.linspace(0.0, 1.0, _BUDGETS)
        # Questions without a signal read the most, so no thresholds may fit the smallest budgets: take the cheapest.
        used = np.maximum(np.searchsorted([step.cost for step in steps], budgets + 1e-12, side="right") - 1, 0)
        strip = np.full(_BUDGETS, 1.0 / (_BUDGETS - 1))
        strip[[0, -1]] /= 2.0
        weight = np.bincount(used, weights=strip, minlength=len(steps))
        area[name] = np.sum(
            [w * test.right(test.route(step.thresholds)) for w, step in zip(weight, steps, strict=True) if w], axis=0
        )
    area["difference"] = area["graded"] - area["binary"]
    draws = Draws(test.units, RESAMPLES)
    return {"axis": "passage"} | {name: draws.interval(values) for name, values in area.items()}


def confidence_at(calibrators: Mapping[int, Calibrator], outcomes: Outcomes) -> dict[int, Floats]:
    """The confidence of every answer at each k; NaN for a k without a calibrator."""
    n = len(outcomes)
    return {
        k: predict_many(calibrators[k], outcomes.signals[k], n) if k in calibrators else np.full(n, np.nan)
        for k in outcomes.ks
    }


def _selective(right: Floats, confidence: Floats, tau: float, draws: Draws) -> dict[str, Any]:
    """Coverage and error at the threshold, and the accuracy of the most confident answers at fixed coverages."""
    answered = answers(confidence, tau).astype(np.float64)
    coverage, wrong = draws.mean(answered), draws.mean(answered * (1.0 - right))
    exact, (_, at) = risk_of(right, confidence, draws.weights), drawn_risk(right, confidence, draws)
    return {
        "tau": tau,
        "coverage": draws.spread(coverage),
        "error": draws.spread(divide(wrong, coverage)),
        "accuracy_full": draws.interval(right),
        **{
            f"accuracy_at_{share * 100:.0f}": draws.centred(exact.accuracy_at(share), values)
            for share, values in at.items()
        },
    }


def _costs(ledger: Ledger[Test], policies: Mapping[str, PolicyFit], tariff: Tariff) -> dict[str, Any]:
    """Mean cost of each policy by every objective that the table has data for, and its ratio to the largest fixed k."""
    outcomes = ledger.split.outcomes
    result: dict[str, Any] = {}
    for objective in Objective:
        try:
            gate, reads = gate_costs(outcomes, objective, tariff), read_costs(outcomes, objective, tariff)
        except DataError:
            continue  # the table has no such column
        priced = replace(ledger, costs=gate)
        most = ledger.ks[-1]
        full = ledger.mean(reads[most])
        means = {name: ledger.mean(priced.spent(fit.thresholds)) for name, fit in policies.items()}
        means |= {f"k{k}": ledger.mean(reads[k]) for k in ledger.ks}
        result[objective.value] = {
            name: {"mean": value, f"ratio_to_k{most}": value / full if full > 0.0 else None}
            for name, value in means.items()
        }
    return result


@dataclass(frozen=True, slots=True)
class Published:
    """The file of a published artifact, and whether it is served now, with the reason."""

    path: str
    current: bool
    why: str


def publish(
    artifact: Artifact,
    directory: Path | str,
    *,
    test: Test,
    epsilon: float,
    force: bool = False,
) -> Published:
    """Write the artifact, and make it CURRENT unless it is worse than the one that is served.

    Worse means not certified while the other is, or less accurate by more than epsilon on the new test split, each as
    the gateway would serve it. A group never changes its split, so the old artifact was not fitted on these rows.
    An artifact with another identity is refused. One without an identity never becomes CURRENT, because no gateway
    can serve it. `force` overrides everything but that.
    """
    store = ArtifactStore(directory)
    served, unreadable = _served(store)
    if served is not None and artifact.identity is not None and served.identity is not None and not force:
        differing = mismatches(served.identity, artifact.identity)
        if differing:
            raise DataError(
                f"{artifact.data_window.source or 'the table'}:1: collected on another system than {store.where} "
                f"serves ({'; '.join(differing)}): publish to another directory, or --force; nothing was published"
            )
    refusal = None if force or served is None else _worse(artifact, served, test, epsilon)
    if artifact.identity is None:
        refusal = "the table has no identity line, so no gateway can serve it"
    path = store.publish(artifact)
    if refusal is not None:
        return Published(path, current=False, why=refusal)
    store.promote(artifact.version, by="refit")
    return Published(
        path, current=True, why=unreadable or ("forced" if force else "not worse than the artifact served before")
    )


def _served(store: ArtifactStore) -> tuple[Artifact | None, str]:
    try:
        version = store.current()
        return (store.load(version), "") if version is not None else (None, "nothing was served before")
    except ArtifactError as error:
        return None, f"the artifact served before could not be read ({error})"


def _worse(new: Artifact, old: Artifact, test: Test, epsilon: float) -> str | None:
    if old.certified and not new.certified:
        return f"{old.version} is certified and this one is not"
    before, after = _served_accuracy(old, test), _served_accuracy(new, test)
    if after < before - epsilon:
        return f"on the test split {old.version} is right {before:.3f} of the time and this one {after:.3f}"
    return None


def _served_accuracy(artifact: Artifact, test: Test) -> float:
    """Accuracy on test of what the gateway would serve: the certified graded policy, or else the fallback."""
    thresholds = artifact.policies["graded"].thresholds if artifact.certified else None
    p = predict_many(artifact.p0, test.outcomes.signals[0], len(test.outcomes))
    ledger = Ledger(test, p, units(test.outcomes), {})
    return ledger.mean(ledger.right(ledger.serve(thresholds, artifact.fallback_k)))
