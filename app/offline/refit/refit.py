"""The refit job, from an outcome table to an artifact; the same table and options give the same bytes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from app.core.artifact import Abstention, Artifact, DataWindow, PolicyFit, Thresholds, content_version
from app.core.calibrator import Calibrator
from app.core.cost import Objective, Tariff
from app.errors import DataError
from app.offline.refit.certify import (
    GivenAnswers,
    abstention_path,
    certify_abstention,
    certify_policy,
    policy_notes,
)
from app.offline.refit.choose import (
    ChosenCalibrator,
    Guarantee,
    PathStep,
    best_fixed,
    build_path,
    candidate_signals,
    choose_calibrator,
    plausible_steps,
)
from app.offline.refit.fit import Weighted, predict_many
from app.offline.refit.holdout import confidence_at, evaluate_policy, graded_against_binary
from app.offline.refit.metrics import to_json
from app.offline.refit.splits import Ledger, S, Test, Train, Validation, gate_costs, pick, split, units
from app.offline.table import Floats, Outcomes

MIN_GROUPS = 50
EVERY = "every"
_DECILES = tuple(np.arange(1, 10) / 10)


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator chooses. `created` is an argument, so that a refit can be repeated to the byte."""

    name: str
    created: str
    source: str = ""
    objective: Objective = Objective.TOKENS
    # What accuracy is compared with: every fixed number of passages, or one of them, e.g. "k1".
    reference: str = EVERY
    epsilon: float = 0.02
    delta: float = 0.1
    risk_target: float = 0.2
    risk_delta: float = 0.1
    signals: tuple[str, ...] | None = None
    tariff: Tariff = field(default_factory=Tariff)

    def __post_init__(self) -> None:
        """Refuse levels that are not probabilities."""
        for name in ("epsilon", "delta", "risk_target", "risk_delta"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise DataError(f"{name} is {getattr(self, name)}: choose a number between 0 and 1")

    def guarantee(self, ks: tuple[int, ...]) -> Guarantee:
        """What a certified policy promises."""
        named = {f"k{k}": k for k in ks}
        if self.reference != EVERY and self.reference not in named:
            raise DataError(f"reference is {self.reference!r}: choose among {EVERY}, {', '.join(named)}")
        references = ks if self.reference == EVERY else (named[self.reference],)
        return Guarantee(references, self.epsilon, self.delta)


@dataclass(frozen=True, eq=False, slots=True)
class LoggedRows:
    """Rows of the decision log that know one answer only: they are used for fitting on train and for nothing else."""

    weighted: Mapping[int, Weighted] = field(default_factory=dict)
    # For the artifact's report, and for the person who runs the refit.
    report: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Trained:
    """Everything that train decides: a calibrator of the answers at each k, and the paths to certify on validation."""

    ledger: Ledger[Train]
    chosen: Mapping[int, ChosenCalibrator]
    calibrators: Mapping[int, Calibrator]
    graded: tuple[PathStep, ...]
    binary: tuple[PathStep, ...]
    # What the gateway may serve: the fallback (None), or a step of the graded path that is likely to be certified.
    possible: tuple[Thresholds | None, ...]
    fallback: int
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Certified:
    """Everything that validation decides: how far each path holds."""

    policies: Mapping[str, PolicyFit]
    abstention: Abstention

    @property
    def served(self) -> Thresholds | None:
        """The thresholds that may be served; None if the fallback is served."""
        graded = self.policies["graded"]
        return graded.thresholds if graded.certificate is not None else None


@dataclass(frozen=True, eq=False, slots=True)
class Summary:
    """Notes for the person who runs the refit, and the test split, on which publishing compares old with new."""

    notes: tuple[str, ...]
    test: Test


def refit(
    outcomes: Outcomes,
    options: Options,
    *,
    logged: LoggedRows | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> tuple[Artifact, Summary]:
    """Choose on train, certify on validation, report on test."""
    logged = logged or LoggedRows()
    names = candidate_signals(outcomes, options.signals)
    groups = len(set(outcomes.groups))
    if groups < MIN_GROUPS:
        raise DataError(
            f"{groups} groups are too few to fit, certify and test on: collect at least {MIN_GROUPS}, better 1,000"
        )
    train, validation, test = split(outcomes)
    on_step("choosing on train")
    trained = choose(train, names, options, logged.weighted)
    on_step("certifying on validation")
    certified = certify(validation, trained, options)
    on_step("evaluating on test")
    notes = (*logged.notes, *trained.notes, *policy_notes(certified.policies, outcomes.ks))
    report = _report(trained, certified, validation, test, options) | {**logged.report, "notes": list(notes)}
    artifact = Artifact(
        name=options.name,
        version="",
        created=options.created,
        identity=outcomes.identity,
        ks=outcomes.ks,
        calibrators=trained.calibrators,
        policies=certified.policies,
        abstention=certified.abstention,
        fallback_k=trained.fallback,
        data_window=DataWindow(len(outcomes), groups, options.source, outcomes.first, outcomes.last),
        quantiles={
            name: tuple(np.nanquantile(values, _DECILES).tolist())
            for name, values in train.outcomes.signals[0].items()
            if name in names and np.isfinite(values).any()
        },
        report=cast("dict[str, Any]", to_json(report)),
    )
    return replace(artifact, version=content_version(artifact)), Summary(notes, test)


def choose(
    train: Train, names: tuple[str, ...], options: Options, logged: Mapping[int, Weighted] | None = None
) -> Trained:
    """Choose the calibrators, and build the paths; `logged` has further rows to fit on, by k."""
    outcomes, notes = train.outcomes, list[str]()
    guarantee = options.guarantee(outcomes.ks)
    grouping = units(outcomes, salt="order")
    # The closed-book calibrator is required. Without another one the gateway works, and a note says why it is missing.
    chosen = {}
    for k in outcomes.ks:
        if k and not any(signal in outcomes.signals[k] for signal in names):
            notes.append(f"k={k}: the table has no signal for it, so answers read from it never abstain")
            continue
        try:
            chosen[k] = choose_calibrator(
                outcomes.signals[k], outcomes.correct[k], grouping, names, extra=(logged or {}).get(k)
            )
        except DataError as error:
            if k == 0:
                raise
            notes.append(f"k={k}: no calibrator, {error}")
    ledger = Ledger(train, chosen[0].out_of_fold, grouping, gate_costs(outcomes, options.objective, options.tariff))
    graded = build_path(ledger, guarantee, graded=True)
    plausible = graded[: plausible_steps(ledger, graded, guarantee)]
    return Trained(
        ledger,
        chosen,
        {k: each.calibrator for k, each in chosen.items()},
        graded=graded,
        binary=build_path(ledger, guarantee, graded=False),
        possible=(None, *(step.thresholds for step in plausible)),
        fallback=best_fixed(ledger, outcomes.ks[1:]),
        notes=tuple(notes),
    )


def certify(validation: Validation, trained: Trained, options: Options) -> Certified:
    """Certify the policies, and abstention under the policy that will be served."""
    ledger = ledger_of(validation, trained.calibrators, options)
    guarantee = options.guarantee(ledger.ks)
    policies = {
        name: certify_policy(ledger, path, guarantee, options.objective)
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

    def given(part: Ledger[S], thresholds: Thresholds | None, confidence: Mapping[int, Floats]) -> GivenAnswers:
        route = part.serve(thresholds, trained.fallback)
        return GivenAnswers(part.right(route), pick(confidence, route))

    target = options.risk_target
    path = abstention_path(
        [given(trained.ledger, end, on_train) for end in trained.possible], trained.ledger.units, target=target
    )
    ends = {end: given(ledger, end, on_validation) for end in {served, *trained.possible}}
    possible = [ends[end] for end in trained.possible]
    return certify_abstention(ends[served], possible, ledger.units, path, target=target, delta=options.risk_delta)


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
        "chosen": {
            f"k{k}": {
                "signals": list(each.names),
                "method": each.method,
                "brier_out_of_fold": each.brier,
                "candidates": each.compared,
            }
            for k, each in trained.chosen.items()
        },
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
