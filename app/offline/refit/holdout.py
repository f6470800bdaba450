"""Evaluate what was chosen on the test split, and publish an artifact that is not worse than the one served.

A group is one unit in every mean and interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from app.calibrators.store import ArtifactStore
from app.certify.intervals import Interval, wilson
from app.core.artifact import Artifact, ChatFit, LadderFit, PolicyFit, mismatches
from app.core.corpus_stats import CorpusStats
from app.core.cost import Objective
from app.errors import ArtifactError, DataError
from app.offline.refit.abstain import answers
from app.offline.refit.choose import frontier
from app.offline.refit.climb import AHEAD
from app.offline.refit.follow import Fitted, Given, serve
from app.offline.refit.metrics import RESAMPLES, Draws, divide, drawn_risk, quality, risk_of
from app.offline.refit.scope import realised
from app.offline.refit.splits import Ledger, Test, Train, gate_costs, passage_costs, read_costs, units
from app.offline.table import Floats, Labels

_BUDGETS = 101


def evaluate_policies(
    ledger: Ledger[Test],
    policies: Mapping[str, PolicyFit],
    ladder: LadderFit,
    chat: ChatFit,
    fitted: Fitted,
    *,
    tau: float,
) -> dict[str, Any]:
    """Accuracy, cost, calibration and selective risk on test, with 95 % intervals over groups.

    `ledger` has the questions that the corpus can answer, `fitted` has all: selective risk counts the others at their
    share, and those out of scope as withheld.
    """
    outcomes, given, once = fitted.outcomes, fitted.ladder(ladder), fitted.chat(chat)
    inside = np.flatnonzero(~outcomes.out_of_corpus)
    draws, whole = Draws(ledger.units, RESAMPLES), Draws(units(outcomes, salt="order"), RESAMPLES)
    chosen = {name: ledger.route(fit.thresholds) for name, fit in policies.items()}
    right = {name: ledger.right(route) for name, route in chosen.items()}
    right |= {f"k{k}": ledger.fixed(k) for k in outcomes.ks}
    right |= {"ladder": given.right[inside], "chat": once.right[inside]}
    shares = {
        name: {f"k{k}": ledger.mean((route == k).astype(np.float64)) for k in outcomes.ks}
        for name, route in (chosen | {"ladder": given.k[inside], "chat": once.k[inside]}).items()
    }
    with np.errstate(invalid="ignore"):
        withheld = given.confidence < tau
    shown = np.where(fitted.out_of_scope, np.nan, given.confidence)
    return {
        "n": len(outcomes),
        "groups": whole.count,
        "in_corpus": ledger.units.count,
        "intervals": "group bootstrap, 95 %",
        "accuracy": {name: draws.interval(column) for name, column in right.items()},
        **{
            f"{name}_minus_fixed": {f"k{k}": draws.interval(right[name] - right[f"k{k}"]) for k in outcomes.ks}
            for name in ("ladder", "graded", "chat")
        },
        "shares": shares | {"served": _served_shares(given, withheld, outcomes.ks, whole)},
        "cost": _costs(ledger, policies, ladder, chat, fitted),
        "p0": quality(ledger.p, ledger.split.outcomes.correct[0], draws),
        "ahead": {f"k{k}": quality(fitted.probability(AHEAD, k), outcomes.correct[k], whole) for k in outcomes.ks},
        "confidence": quality(shown, given.right > 0.5, whole),
        "selective": _selective(given.right, given.confidence, tau, whole),
        "out_of_corpus": _by_kind(fitted, withheld),
    }


def _served_shares(given: Given, withheld: Labels, ks: tuple[int, ...], draws: Draws) -> dict[str, float]:
    """The share of each action on the whole split: abstain, or the k of the answer given."""
    weights = draws.weights
    found = {f"k{k}": float(weights @ (~withheld & (given.k == k))) for k in ks}
    return found | {"abstain": float(weights @ withheld)}


def _by_kind(fitted: Fitted, withheld: Labels) -> dict[str, dict[str, Any]]:
    """Out-of-corpus questions by kind: how many, and the share that is withheld, with Wilson's interval."""
    outcomes = fitted.outcomes
    rows: dict[str, list[int]] = {}
    for row in np.flatnonzero(outcomes.out_of_corpus).tolist():
        rows.setdefault(outcomes.kinds[row] or "unnamed", []).append(row)
    return {
        kind: {
            "n": len(some),
            "withheld": wilson(int(withheld[some].sum()), len(some)),
            "out_of_scope": int(fitted.out_of_scope[some].sum()),
        }
        for kind, some in sorted(rows.items())
    }


def evaluate_scope(fitted: Fitted, alpha: float) -> dict[str, Any]:
    """False alarms on validation, and how many out-of-corpus questions of each kind the test finds."""
    outcomes = fitted.outcomes
    flagged = zip(outcomes.kinds, outcomes.out_of_corpus.tolist(), strict=True)
    kinds = [(kind or "unnamed") if flag else "" for kind, flag in flagged]
    found = realised(fitted.out_of_scope, outcomes.ids, outcomes.groups, kinds)
    return {"alpha": alpha, "false_alarms": found.false_alarms, "detected": found.detected}


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


def _costs(
    ledger: Ledger[Test], policies: Mapping[str, PolicyFit], ladder: LadderFit, chat: ChatFit, fitted: Fitted
) -> dict[str, Any]:
    """Mean cost of each policy by every objective that the table has data for, and its ratio to the largest fixed k."""
    outcomes, tariff = fitted.outcomes, fitted.tariff
    inside = np.flatnonzero(~outcomes.out_of_corpus)
    result: dict[str, Any] = {}
    for objective in Objective:
        try:
            gate = gate_costs(ledger.split.outcomes, objective, tariff)
            reads = read_costs(ledger.split.outcomes, objective, tariff)
            climbed = {"ladder": fitted.ladder(ladder, objective).climb, "chat": fitted.chat(chat, objective).climb}
        except DataError:
            continue  # the table has no such column
        result["searches"] = {name: ledger.mean(one.searches[inside]) for name, one in climbed.items() if one}
        result["passages"] = {name: ledger.mean(one.passages[inside]) for name, one in climbed.items() if one}
        priced = replace(ledger, costs=gate)
        most = outcomes.ks[-1]
        full = ledger.mean(reads[most])
        means = {name: ledger.mean(priced.spent(fit.thresholds)) for name, fit in policies.items()}
        means |= {f"k{k}": ledger.mean(reads[k]) for k in outcomes.ks}
        means |= {name: ledger.mean(one.spent[inside]) for name, one in climbed.items() if one}
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
    stats: CorpusStats,
    directory: Path | str,
    *,
    test: Test,
    force: bool = False,
) -> Published:
    """Write the artifact, and make it CURRENT unless it is worse than the one that is served.

    Worse means not certified while the other is, or less accurate on the new test split, each as the gateway would
    serve it: the 95 % interval of the paired difference is below zero. A group never leaves the test split, so the old
    artifact was not fitted on these rows.
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
    refusal, compared = None, unreadable
    if served is not None and not force:
        difference = _difference((artifact, stats), (served, store.load_stats(served)), test)
        compared = f"on the test split its accuracy minus that of {served.version} is {_said(difference)}"
        if served.certified and not artifact.certified:
            refusal = f"{served.version} is certified and this one is not"
        elif difference.high is not None and difference.high < 0.0:
            refusal = compared
    if artifact.identity is None:
        refusal = "the table has no identity line, so no gateway can serve it"
    path = store.publish(artifact, stats)
    if refusal is not None:
        return Published(path, current=False, why=refusal)
    store.promote(artifact.version, by="refit")
    return Published(path, current=True, why="forced" if force else compared)


def _served(store: ArtifactStore) -> tuple[Artifact | None, str]:
    try:
        version = store.current()
        return (store.load(version), "") if version is not None else (None, "nothing was served before")
    except ArtifactError as error:
        return None, f"the artifact served before could not be read ({error})"


def _difference(new: tuple[Artifact, CorpusStats], old: tuple[Artifact, CorpusStats], test: Test) -> Interval:
    """Accuracy of the new artifact minus that of the old one, as served, on questions that the corpus can answer."""
    inside = test.outcomes.take(np.flatnonzero(~test.outcomes.out_of_corpus))
    right = [serve(inside, artifact, stats.centroids).right for artifact, stats in (new, old)]
    return Draws(units(inside), RESAMPLES).interval(right[0] - right[1])


def _said(difference: Interval) -> str:
    if difference.value is None:
        return "unknown"
    return f"{difference.value:+.3f} (95 % interval {difference.low:+.3f} to {difference.high:+.3f})"
