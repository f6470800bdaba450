"""The offline job from an outcome table to an artifact; the same table and options give the same bytes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from app.core.artifact import (
    Abstention,
    Artifact,
    DataWindow,
    PolicyFit,
    Thresholds,
    content_version,
)
from app.core.calibrator import Calibrator
from app.core.cost import Objective, Tariff
from app.errors import DataError
from app.offline.refit.abstention import Given, certify_abstention, lay_abstention
from app.offline.refit.certify import certify_policy, policy_notes
from app.offline.refit.choose import ChosenCalibrator, candidate_signals, choose_calibrator
from app.offline.refit.fit import Weighted, predict_many
from app.offline.refit.holdout import confidence_at, evaluate_policy, graded_against_binary
from app.offline.refit.ledger import Ledger, S, gate_costs, pick
from app.offline.refit.metrics import plain
from app.offline.refit.paths import PathStep, best_fixed, foreseen, lay_path
from app.offline.refit.split import Test, Train, Validation, split, units
from app.offline.table import Floats, Outcomes

LEAST_GROUPS = 50
EVERY = "every"
_DECILES = tuple(np.arange(1, 10) / 10)


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator chooses. `created` is passed in, so that a refit can be repeated to the byte."""

    name: str
    created: str
    source: str = ""
    objective: Objective = Objective.TOKENS
    # What accuracy is held against: every fixed number of passages, or one of them, e.g. "k1".
    reference: str = EVERY
    epsilon: float = 0.02
    delta: float = 0.1
    risk_target: float = 0.2
    risk_delta: float = 0.1
    signals: tuple[str, ...] | None = None
    tariff: Tariff = field(default_factory=Tariff)

    def __post_init__(self) -> None:
        """Refuse levels that are no probabilities."""
        for name in ("epsilon", "delta", "risk_target", "risk_delta"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise DataError(f"{name} is {getattr(self, name)}: choose a number between 0 and 1")

    def references(self, ks: tuple[int, ...]) -> tuple[int, ...]:
        """The fixed actions that a certified policy must not fall short of."""
        if self.reference == EVERY:
            return ks
        named = {f"k{k}": k for k in ks}
        if self.reference not in named:
            raise DataError(f"reference is {self.reference!r}: choose among {EVERY}, {', '.join(named)}")
        return (named[self.reference],)


@dataclass(frozen=True, eq=False, slots=True)
class Aside:
    """What joins a table from elsewhere: rows of other train groups, by k, for fitting and nothing else."""

    weighted: Mapping[int, Weighted] = field(default_factory=dict)
    # What the artifact's report and a person should know about them, and about where the table came from.
    report: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Trained:
    """All that train decides: a calibrator of the answers at each k, and the paths that validation may walk."""

    ledger: Ledger[Train]
    chosen: Mapping[int, ChosenCalibrator]
    calibrators: Mapping[int, Calibrator]
    graded: tuple[PathStep, ...]
    binary: tuple[PathStep, ...]
    # What the gateway may come to serve: the fallback (None), or a step of the graded path that train foresees.
    possible: tuple[Thresholds | None, ...]
    fallback: int
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Certified:
    """All that validation decides: how far each path holds."""

    policies: Mapping[str, PolicyFit]
    abstention: Abstention

    @property
    def served(self) -> Thresholds | None:
        """The thresholds that may be served; None where the fallback action is."""
        graded = self.policies["graded"]
        return graded.thresholds if graded.certificate is not None else None


@dataclass(frozen=True, eq=False, slots=True)
class Summary:
    """What a person wants to hear, and the test split, on which publishing compares old with new."""

    notes: tuple[str, ...]
    test: Test


def refit(
    outcomes: Outcomes,
    options: Options,
    *,
    aside: Aside | None = None,
    on_step: Callable[[str], None] | None = None,
) -> tuple[Artifact, Summary]:
    """Choose on train, certify on validation, report on test."""
    say = on_step or (lambda _: None)
    aside = aside or Aside()
    names = candidate_signals(outcomes, options.signals)
    _require_enough(outcomes)
    train, validation, test = split(outcomes)
    say("choosing on train")
    trained = choose(train, names, options, aside.weighted)
    say("certifying on validation")
    certified = certify(validation, trained, options)
    say("evaluating on test")
    notes = (*aside.notes, *trained.notes, *policy_notes(certified.policies, outcomes.ks))
    report = _report(trained, certified, validation, test, options) | {**aside.report, "notes": list(notes)}
    artifact = _artifact(outcomes, names, trained, certified, options)
    artifact = replace(artifact, report=cast("dict[str, Any]", plain(report)))
    return replace(artifact, version=content_version(artifact)), Summary(notes, test)


def choose(
    train: Train, names: tuple[str, ...], options: Options, aside: Mapping[int, Weighted] | None = None
) -> Trained:
    """Fit and choose the calibrators, and lay the paths; `aside` joins the fits, by k."""
    outcomes, notes = train.outcomes, list[str]()
    ks, references = outcomes.ks, options.references(outcomes.ks)
    grouping = units(outcomes, salt="order")
    # The closed-book one must be had; where another cannot be, a note says why and the gateway does without.
    chosen = {}
    for k in ks:
        if k and not any(signal in outcomes.signals[k] for signal in names):
            notes.append(f"k={k}: the table has no signal for it, so answers read from it never abstain")
            continue
        try:
            chosen[k] = choose_calibrator(
                outcomes.signals[k], outcomes.correct[k], grouping, names, extra=(aside or {}).get(k)
            )
        except DataError as error:
            if k == 0:
                raise
            notes.append(f"k={k}: no calibrator, {error}")
    ledger = Ledger(train, chosen[0].out_of_fold, grouping, gate_costs(outcomes, options.objective, options.tariff))
    graded = lay_path(ledger, graded=True, references=references, epsilon=options.epsilon)
    ahead = foreseen(ledger, graded, references, options.epsilon)
    return Trained(
        ledger,
        chosen,
        {k: each.calibrator for k, each in chosen.items()},
        graded=graded,
        binary=lay_path(ledger, graded=False, references=references, epsilon=options.epsilon),
        possible=(None, *(step.thresholds for step in graded[:ahead])),
        fallback=best_fixed(ledger, ks[1:]),
        notes=tuple(notes),
    )


def certify(validation: Validation, trained: Trained, options: Options) -> Certified:
    """Walk the paths, and that of abstention under the policy that will really be served."""
    ledger = ledger_of(validation, trained.calibrators, options)
    policies = {
        name: certify_policy(
            ledger,
            path,
            references=options.references(ledger.ks),
            epsilon=options.epsilon,
            delta=options.delta,
            objective=options.objective,
        )
        for name, path in (("binary", trained.binary), ("graded", trained.graded))
    }
    certified = Certified(policies, Abstention(0.0, options.risk_target))
    return replace(certified, abstention=_certify_abstention(ledger, trained, certified.served, options))


def _certify_abstention(
    ledger: Ledger[Validation], trained: Trained, served: Thresholds | None, options: Options
) -> Abstention:
    unknown = np.full(len(trained.ledger.p), np.nan)
    on_train = {k: trained.chosen[k].out_of_fold if k in trained.chosen else unknown for k in ledger.ks}
    on_validation = confidence_at(trained.calibrators, ledger.split.outcomes)

    def given(part: Ledger[S], end: Thresholds | None, confidence: Mapping[int, Floats]) -> Given:
        route = part.serve(end, trained.fallback)
        return Given(part.right(route), pick(confidence, route))

    path = lay_abstention(
        [given(trained.ledger, end, on_train) for end in trained.possible],
        trained.ledger.units,
        target=options.risk_target,
    )
    ends = {end: given(ledger, end, on_validation) for end in {served, *trained.possible}}
    return certify_abstention(
        ends[served],
        [ends[end] for end in trained.possible],
        ledger.units,
        path,
        target=options.risk_target,
        delta=options.risk_delta,
    )


def ledger_of(part: S, calibrators: Mapping[int, Calibrator], options: Options) -> Ledger[S]:
    """A split under fitted calibrators."""
    outcomes = part.outcomes
    p = predict_many(calibrators[0], outcomes.signals[0], len(outcomes))
    costs = gate_costs(outcomes, options.objective, options.tariff)
    return Ledger(part, p, units(outcomes, salt="order"), costs)


def _report(
    trained: Trained, certified: Certified, validation: Validation, test: Test, options: Options
) -> dict[str, Any]:
    ledger = ledger_of(test, trained.calibrators, options)
    route = ledger.serve(certified.served, trained.fallback)
    held_out = evaluate_policy(
        ledger,
        certified.policies,
        served=route,
        confidence=pick(confidence_at(trained.calibrators, test.outcomes), route),
        tau=certified.abstention.tau,
        tariff=options.tariff,
    )
    train = trained.ledger
    return {
        "splits": {
            name: {"rows": len(part.outcomes), "groups": len(set(part.outcomes.groups))}
            for name, part in (("train", train.split), ("validation", validation), ("test", test))
        },
        "chosen": {f"k{k}": _describe(fitted) for k, fitted in trained.chosen.items()},
        "path": {
            policy: [
                {"tau0": s.thresholds.tau0, "tau1": s.thresholds.tau1, "accuracy": s.accuracy, "cost": s.cost}
                for s in path
            ]
            for policy, path in (("binary", trained.binary), ("graded", trained.graded))
        },
        "train_accuracy": {f"k{k}": train.mean(train.fixed(k)) for k in train.ks},
        "abstention_policy": "graded" if certified.served else f"always-k{trained.fallback}",
        "test": held_out | {"graded_against_binary": graded_against_binary(train, ledger)},
    }


def _artifact(
    outcomes: Outcomes, names: tuple[str, ...], trained: Trained, certified: Certified, options: Options
) -> Artifact:
    return Artifact(
        name=options.name,
        version="",
        created=options.created,
        identity=outcomes.identity,
        ks=outcomes.ks,
        calibrators=trained.calibrators,
        policies=certified.policies,
        abstention=certified.abstention,
        fallback_action=trained.fallback,
        window=DataWindow(len(outcomes), len(set(outcomes.groups)), options.source, outcomes.first, outcomes.last),
        quantiles={
            name: tuple(np.nanquantile(values, _DECILES).tolist())
            for name, values in trained.ledger.split.outcomes.signals[0].items()
            if name in names and np.isfinite(values).any()
        },
    )


def _require_enough(outcomes: Outcomes) -> None:
    total = len(set(outcomes.groups))
    if total < LEAST_GROUPS:
        raise DataError(
            f"{total} groups are too few to fit, certify and test on: collect at least {LEAST_GROUPS}, better 1,000"
        )


def _describe(chosen: ChosenCalibrator) -> dict[str, Any]:
    return {
        "signals": list(chosen.names),
        "method": chosen.method,
        "brier_out_of_fold": chosen.brier,
        "candidates": chosen.compared,
    }
