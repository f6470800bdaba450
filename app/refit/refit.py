"""The offline job from an outcome table to an artifact; the same table and options give the same bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from app.decision.artifact import (
    Abstention,
    Artifact,
    Calibrators,
    PolicyFit,
    Thresholds,
    Variant,
    Window,
    content_version,
)
from app.decision.signals import all_names
from app.errors import DataError
from app.refit.choose import Chosen, choose_calibrator
from app.refit.early_report import early_report, in_words
from app.refit.fit import Floats, Labels, Weighted, predict_many
from app.refit.foretell import Foretellers, learn
from app.refit.holdout import confidence_at, confidences, evaluate_policy, graded_against_binary
from app.refit.ledger import ACTIONS, Foretold, Ledger, S, advances, gate_costs
from app.refit.notes import policy_notes
from app.refit.options import Options
from app.refit.paths import Step, best_fixed, lay_path
from app.refit.split import Test, Train, Validation, split, units
from app.refit.table import Outcomes
from app.refit.variants import (
    Confidences,
    Laid,
    lay,
    lay_fewer,
    served,
    walk_abstention,
    walk_policy,
    worth_having,
)

LEAST_GROUPS = 50
_DECILES = tuple(np.arange(1, 10) / 10)


# Each calibrator, the k whose signals it reads, and the k whose answer it judges.
CALIBRATORS = {"p0": (0, 0), "p1": (0, 1), "p5": (0, 5), "conf1": (1, 1), "conf5": (5, 5)}


@dataclass(frozen=True, eq=False, slots=True)
class Aside:
    """What joins a table from elsewhere: rows of other train groups, by calibrator, for fitting and nothing else."""

    weighted: Mapping[str, Weighted] = field(default_factory=dict)
    # What the artifact's report and a person should know about them, and about where the table came from.
    report: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """All that train decides: calibrators, and the paths that validation may walk."""

    ledger: Ledger[Train]
    chosen: Mapping[str, Chosen]
    calibrators: Calibrators
    foretellers: Foretellers
    # How each foreteller was chosen.
    foretelling: Mapping[str, Any]
    graded: Laid
    # The same by fewer means, and the binary policy's path.
    fewer: Sequence[Laid]
    binary: tuple[Step, ...]
    fallback: int
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Verdict:
    """All that validation decides: how far each path holds."""

    policies: Mapping[str, PolicyFit]
    abstention: Abstention
    variants: Mapping[str, Variant]

    @property
    def served(self) -> Thresholds | None:
        """The thresholds that may be served; None where the fallback action is."""
        return served(self.policies["graded"])


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
    names = _candidate_signals(outcomes, options)
    _require_enough(outcomes)
    train, validation, test = split(outcomes)
    say("choosing on train")
    chosen = plan(train, names, options, aside.weighted)
    say("certifying on validation")
    verdict = certify(validation, chosen, options)
    say("evaluating on test")
    artifact = _artifact(outcomes, chosen, verdict, options)
    report = _report(chosen, verdict, validation, test, options)
    notes = (*aside.notes, *chosen.notes, *policy_notes(verdict.policies, chosen.foretellers))
    if verdict.variants:
        notes = (*notes, f"graded: certified by each of {', '.join(verdict.variants)}, for auto to choose among")
    if "early" in report["test"]:
        notes = (*notes, f"graded: {in_words(report['test']['early'])}")
    report |= {**aside.report, "notes": list(notes)}
    artifact = replace(artifact, report=report)
    return replace(artifact, version=content_version(artifact)), Summary(notes, test)


def plan(train: Train, names: tuple[str, ...], options: Options, aside: Mapping[str, Weighted] | None = None) -> Plan:
    """Fit and choose calibrators, and lay the paths; `aside` joins the fits, by calibrator."""
    notes: list[str] = []
    aside = aside or {}
    grouping = units(train.outcomes, salt="order")
    # P0 must be had; where another calibrator cannot be, a note says why and the gateway does without.
    chosen = {}
    for name, (source, k) in CALIBRATORS.items():
        signals: Mapping[str, Floats] = train.outcomes.signals[source]
        labels: Labels = train.outcomes.correct[k]
        if source and not any(signal in signals for signal in names):
            notes.append(f"{name}: the table has no signal for k={k}, so answers read from it never abstain")
            continue
        try:
            chosen[name] = choose_calibrator(signals, labels, grouping, names, options.methods, extra=aside.get(name))
        except DataError as error:
            if name == "p0":
                raise
            notes.append(f"{name}: left out, {error}")
    foretellers, foretold, foretelling = learn(train, names, options, notes.append)
    ledger = Ledger(
        train,
        chosen["p0"].out_of_fold,
        grouping,
        gate_costs(train.outcomes, options.objective, options.tariff),
        foretold,
        advances(train.outcomes, options.objective, options.tariff, foretold.prefixes),
    )
    return Plan(
        ledger,
        chosen,
        Calibrators(**{name: fitted.calibrator for name, fitted in chosen.items()}),
        foretellers,
        foretelling,
        graded=lay(ledger, options),
        fewer=lay_fewer(ledger, options),
        binary=lay_path(ledger, graded=False, references=options.references, epsilon=options.epsilon),
        fallback=best_fixed(ledger, (1, 5)),
        notes=tuple(notes),
    )


def certify(validation: Validation, planned: Plan, options: Options) -> Verdict:
    """Walk the paths, each with the path of abstention under the policy that will really be served."""
    ledger = ledger_of(validation, planned.calibrators, options, planned.foretellers)
    confidences = Confidences(
        _out_of_fold_confidence(planned.chosen, len(planned.ledger.p)),
        confidence_at(planned.calibrators, validation.outcomes),
    )
    every = (planned.graded, *planned.fewer)
    shared = replace(options, delta=options.delta / len(every), risk_delta=options.risk_delta / len(every))
    walked = []
    for laid in every:
        fit = walk_policy(ledger, laid.path, shared)
        abstention = walk_abstention(
            planned.ledger, ledger, fit, laid.possible, confidences, fallback=planned.fallback, options=shared
        )
        walked.append((fit, abstention))
    graded, abstention = walked[0]
    policies = {"binary": walk_policy(ledger, planned.binary, options), "graded": graded}
    return Verdict(policies, abstention, worth_having(walked, ledger))


def _report(planned: Plan, verdict: Verdict, validation: Validation, test: Test, options: Options) -> dict[str, Any]:
    ledger = ledger_of(test, planned.calibrators, options, planned.foretellers)
    route = ledger.serve(verdict.served, planned.fallback)
    held_out = evaluate_policy(
        ledger,
        verdict.policies,
        served=route,
        confidence=confidences(planned.calibrators, test.outcomes, route),
        tau=verdict.abstention.tau,
        tariff=options.tariff,
    )
    thresholds, early = verdict.policies["graded"].thresholds, {}
    if thresholds.early is not None:
        gating = _gating_by_probes(planned, validation, options)
        early = {"early": early_report(ledger, thresholds, gating, options.tariff)}
    train = planned.ledger
    return {
        "splits": {
            name: {"rows": len(part.outcomes), "groups": len(set(part.outcomes.groups))}
            for name, part in (("train", train.split), ("validation", validation), ("test", test))
        },
        "chosen": {name: _describe(fitted) for name, fitted in planned.chosen.items()} | dict(planned.foretelling),
        "path": {
            policy: [_lay_open(step) for step in path]
            for policy, path in (("binary", planned.binary), ("graded", planned.graded.path))
        },
        "train_accuracy": {f"k{k}": train.mean(train.fixed(k)) for k in ACTIONS},
        "abstention_policy": "graded" if verdict.served else f"always-k{planned.fallback}",
        "test": held_out | {"graded_against_binary": graded_against_binary(train, ledger)} | early,
    }


def _gating_by_probes(planned: Plan, validation: Validation, options: Options) -> Thresholds:
    """What a policy that decides early is held against: the gate that probes every question, for the fewest passages.

    Chosen and walked like any other, and never served.
    """
    by_passages = replace(options, objective="passage")
    bare = replace(planned.ledger, costs=gate_costs(planned.ledger.split.outcomes, "passage", options.tariff))
    path = lay(replace(bare, foretold=Foretold()), by_passages).path
    return walk_policy(ledger_of(validation, planned.calibrators, by_passages), path, by_passages).thresholds


def _artifact(outcomes: Outcomes, planned: Plan, verdict: Verdict, options: Options) -> Artifact:
    train = planned.ledger.split.outcomes
    fits = (*verdict.policies.values(), *(variant.fit for variant in verdict.variants.values()))
    foretellers = planned.foretellers.used_by(fits)
    return Artifact(
        name=options.name,
        version="",
        created=options.created,
        identity=outcomes.identity,
        calibrators=planned.calibrators,
        policies=verdict.policies,
        abstention=verdict.abstention,
        fallback_action=planned.fallback,
        window=Window(len(outcomes), len(set(outcomes.groups)), options.source, outcomes.first, outcomes.last),
        cost_ms=_cost_ms(train),
        quantiles=_quantiles(_probed_whole(planned, verdict.policies["graded"].thresholds)),
        foresight=foretellers.foresight,
        exits=foretellers.exits,
        variants=verdict.variants,
    )


def _candidate_signals(outcomes: Outcomes, options: Options) -> tuple[str, ...]:
    """The signals that may be fitted on; of a table that will be served, those that the gateway can compute."""
    collected = {name for named in outcomes.signals.values() for name in named}
    servable = collected if outcomes.identity is None else collected & set(all_names())
    if options.signals is None:
        return tuple(sorted(servable))
    for name in options.signals:
        if name not in collected:
            raise DataError(f"no signal {name!r} in the table: choose among {', '.join(sorted(collected)) or 'none'}")
        if name not in servable:
            raise DataError(f"the gateway cannot compute {name!r}: choose among {', '.join(sorted(servable))}")
    return options.signals


def _require_enough(outcomes: Outcomes) -> None:
    total = len(set(outcomes.groups))
    if total < LEAST_GROUPS:
        raise DataError(
            f"{total} groups are too few to fit, certify and test on: collect at least {LEAST_GROUPS}, better 1,000"
        )


def _describe(chosen: Chosen) -> dict[str, Any]:
    return {
        "signals": list(chosen.names),
        "method": chosen.method,
        "brier_out_of_fold": chosen.brier,
        "candidates": chosen.compared,
    }


def _lay_open(step: Step) -> dict[str, Any]:
    thresholds = step.thresholds
    early = {} if thresholds.early is None else {"early": asdict(thresholds.early)}
    return {"tau0": thresholds.tau0, "tau1": thresholds.tau1, **early, "accuracy": step.accuracy, "cost": step.cost}


def ledger_of(
    part: S,
    calibrators: Calibrators,
    options: Options,
    foretellers: Foretellers = Foretellers(),  # noqa: B008
) -> Ledger[S]:
    """A split under fitted calibrators, and under what can be known before a probe is whole."""
    p = predict_many(calibrators.p0, part.outcomes.signals[0], len(part.outcomes))
    return Ledger(
        part,
        p,
        units(part.outcomes, salt="order"),
        gate_costs(part.outcomes, options.objective, options.tariff),
        foretellers.apply(part.outcomes),
        advances(part.outcomes, options.objective, options.tariff, foretellers.exits),
    )


def _out_of_fold_confidence(chosen: Mapping[str, Chosen], rows: int) -> dict[int, Floats]:
    unknown = np.full(rows, np.nan)
    named = {0: "p0", 1: "conf1", 5: "conf5"}
    return {k: chosen[name].out_of_fold if name in chosen else unknown for k, name in named.items()}


def _cost_ms(outcomes: Outcomes) -> dict[int, float]:
    return {k: float(np.nanmean(outcomes.ms[k])) for k in (1, 5) if np.isfinite(outcomes.ms[k]).any()}


def _probed_whole(planned: Plan, thresholds: Thresholds) -> Mapping[str, Floats]:
    """The closed-book signals that the gateway will see on questions like these: those of whole probes."""
    signals, early = planned.ledger.split.outcomes.signals[0], thresholds.early
    if early is None:
        return signals
    whole = planned.ledger.settled(early) < 0
    return {name: values[whole] for name, values in signals.items()}


def _quantiles(signals: Mapping[str, Floats]) -> dict[str, tuple[float, ...]]:
    return {
        name: tuple(np.nanquantile(values, _DECILES).tolist())
        for name, values in signals.items()
        if np.isfinite(values).any()
    }
