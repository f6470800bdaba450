"""The refit job, from an outcome table to an artifact; the same table and options give the same bytes."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from app.certify.plan import spent
from app.core.artifact import (
    Abstention,
    Artifact,
    Certificate,
    ChatFit,
    DataWindow,
    LadderFit,
    PolicyFit,
    content_version,
)
from app.core.corpus_stats import CorpusStats
from app.core.policy import Policy
from app.errors import DataError
from app.offline.refit.abstain import WITHHELD, GivenAnswers, abstention_path, certify_abstention
from app.offline.refit.certify import F, Population, certify_ladder, certify_policy, policy_notes
from app.offline.refit.choose import Guarantee, PathStep, plausible_steps
from app.offline.refit.climb import PricedStep, right_of
from app.offline.refit.follow import Fitted, Given
from app.offline.refit.holdout import evaluate_policies, evaluate_scope, graded_against_binary
from app.offline.refit.ladder import Sample, SingleAnswers
from app.offline.refit.metrics import to_json
from app.offline.refit.options import Options
from app.offline.refit.scope import alarms
from app.offline.refit.splits import Test, Validation, split, units
from app.offline.refit.train import Trained, chat_of, choose, fit_of, fitted_on, ledger_of, quantiles
from app.offline.table import Outcomes

MIN_GROUPS = 50


@dataclass(frozen=True, eq=False, slots=True)
class LoggedRows:
    """Rows of the decision log that know one answer only: they are used for fitting on train and for nothing else."""

    # By state and k.
    single: Mapping[tuple[str, int], SingleAnswers] = field(default_factory=dict)
    # For the artifact's report, and for the person who runs the refit.
    report: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Certified:
    """Everything that validation decides."""

    ladder: LadderFit
    abstention: Abstention
    chat: ChatFit
    policies: Mapping[str, PolicyFit]


@dataclass(frozen=True, eq=False, slots=True)
class Summary:
    """Notes for the person who runs the refit, the statistics to publish, and the test split."""

    notes: tuple[str, ...]
    test: Test
    stats: CorpusStats


def refit(
    outcomes: Outcomes,
    options: Options,
    *,
    logged: LoggedRows | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> tuple[Artifact, Summary]:
    """Choose on train, certify on validation, report on test."""
    logged = logged or LoggedRows()
    outcomes = replace(outcomes, per_request=options.per == "request")
    groups = len(set(outcomes.groups))
    if groups < MIN_GROUPS:
        raise DataError(
            f"{groups} groups are too few to fit, certify and test on: collect at least {MIN_GROUPS}, better 1,000"
        )
    train, validation, test = split(outcomes)
    for name, part in (("train", train), ("test", test)):
        part.outcomes.require_labels(name)
    validation.outcomes.require_labels("validation", unless_alike=True)
    on_step("fitting on train")
    trained = choose(train, options, logged.single)
    on_step("certifying on validation")
    certified = certify(validation, trained, options)
    on_step("evaluating on test")
    notes = (*logged.notes, *trained.notes, *_notes(certified, outcomes.ks, trained.fallback, options))
    report = _report(trained, certified, validation, test, options) | {**logged.report, "notes": list(notes)}
    stats = replace(outcomes.stats, centroids=trained.scope.centroids)
    artifact = Artifact(
        name=options.name,
        version="",
        created=options.created,
        identity=outcomes.identity,
        ks=outcomes.ks,
        heads=trained.heads.heads,
        policies=certified.policies,
        abstention=certified.abstention,
        fallback_k=trained.fallback,
        data_window=DataWindow(
            len(outcomes),
            groups,
            options.source,
            outcomes.first,
            outcomes.last,
            refit=options.refit,
            digest=digest_of(outcomes, options, logged),
        ),
        ladder=certified.ladder if options.policy is Policy.LADDER else None,
        chat=certified.chat if options.policy is Policy.LADDER else None,
        scope=trained.scope.scope,
        stats=stats.digest,
        quantiles=quantiles(trained.sample),
        report=cast("dict[str, Any]", to_json(report)),
    )
    return replace(artifact, version=content_version(artifact)), Summary(notes, test, stats)


def digest_of(outcomes: Outcomes, options: Options, logged: LoggedRows | None = None) -> str:
    """A digest of what a refit sees and is asked for: the same twice is one look at the labels, not two."""
    found = hashlib.sha256(json.dumps([outcomes.ids, outcomes.groups]).encode() + outcomes.out_of_corpus.tobytes())
    by_k = (outcomes.correct, outcomes.unlabelled, outcomes.prompt_tokens, outcomes.completion_tokens, outcomes.ms)
    tables: list[Mapping[Any, NDArray[Any]]] = [*by_k, outcomes.evidence]
    for key, single in sorted((logged or LoggedRows()).single.items()):
        found.update(json.dumps([key, *single.groups]).encode())
        tables += [single.columns, {"right": single.right, "weights": single.weights}]
    for table in tables:
        for name, column in sorted(table.items()):
            found.update(str(name).encode() + column.tobytes())
    asked = replace(options, name="", created="", source="", refit=1)
    found.update(repr(asked).encode())
    return found.hexdigest()[:16]


def certify(validation: Validation, trained: Trained, options: Options) -> Certified:
    """Certify one policy, abstention under it, and the one-shot rule of chat; the others get what train prefers.

    Each of the three promises holds at its own delta, and all together with probability 1 minus their sum.
    """
    ledger = ledger_of(validation, trained, options)
    guarantee = options.guarantee(validation.outcomes.ks)
    paths = {"binary": trained.binary, "graded": trained.graded}
    if options.policy is Policy.GRADED:
        policies = {name: certify_policy(ledger, path, guarantee, options.objective) for name, path in paths.items()}
    else:
        policies = {name: _compared_only(trained, path, guarantee, options) for name, path in paths.items()}
    fitted = fitted_on(validation, trained, options)
    given = {step.t: fitted.ladder(fit_of(trained, step, options)) for step in trained.path}
    once = {step.t: fitted.chat(chat_of(trained, step, options)) for step in trained.chat}
    return Certified(
        *certify_answers(fitted, given, trained, options), certify_chat(fitted, once, trained, options), policies
    )


def certify_chat(fitted: Fitted, given: Mapping[float, Given], trained: Trained, options: Options) -> ChatFit:
    """Certify the one-shot rule, whose answers at each price are given."""
    path = [(chat_of(trained, step, options), given[step.t]) for step in trained.chat]
    return _certify_path(fitted, path, trained.chat[0], trained.sample, options)


def certify_answers(
    fitted: Fitted, given: Mapping[float, Given], trained: Trained, options: Options
) -> tuple[LadderFit, Abstention]:
    """Certify the ladder, whose answers at each price are given, and abstention under the policy that is served."""
    path = [(fit_of(trained, step, options), given[step.t]) for step in trained.path]
    ladder = _certify_path(fitted, path, trained.path[0], trained.sample, options)
    served = given[ladder.t] if options.policy is Policy.LADDER else fitted.fixed(trained.fallback)
    return ladder, _certify_abstention(fitted, trained, ladder, served, options)


def _certify_path(
    fitted: Fitted, path: Sequence[tuple[F, Given]], first: PricedStep, sample: Sample, options: Options
) -> F:
    """Test the path, unless train shows no saving."""
    below = options.saves_below(fitted.outcomes.ks)
    if below is not None and first.cost >= sample.always(below):
        why = f"at no price is it cheaper than always-k{below} on train. Next: refit with --goal gain"
        return replace(path[0][0], uncertified_reason=why)
    return certify_ladder(fitted, path, options.guarantee(fitted.outcomes.ks))


def _compared_only(trained: Trained, path: tuple[PathStep, ...], guarantee: Guarantee, options: Options) -> PolicyFit:
    """The cheapest thresholds that train expects to hold; validation is not asked, so that it keeps its whole delta."""
    at = max(0, plausible_steps(trained.ledger, path, guarantee) - 1)
    why = "only the ladder was tested on validation: refit with --policy graded to certify this one instead"
    return PolicyFit(path[at].thresholds, options.objective, None, why)


def _certify_abstention(
    fitted: Fitted, trained: Trained, ladder: LadderFit, served: Given, options: Options
) -> Abstention:
    """The error among answered, out-of-corpus questions included; questions out of scope count as withheld.

    For `save`, validation chose the step, so the thresholds of each step have their share of delta.
    """
    sample, k = trained.sample, trained.fallback
    why = "" if ladder.certificate is not None else "the ladder is not certified, so its answers are not given"
    if fitted.outcomes.lacking.any():
        why = "validation lacks labels of questions whose answers are all equal. Next: label these, too"
    share = float(fitted.outcomes.out_of_corpus @ units(fitted.outcomes).weights)
    tested = Population.of(fitted.outcomes, f"questions in scope, {share:.0%} of them out of corpus")
    if options.policy is Policy.LADDER:
        step = next(step for step in trained.path if step.t == ladder.t)
        right, p = right_of(step.climb, sample.correct), step.climb.p
        shown = np.array([np.nan if np.isnan(one) else step.confidence.apply(one) for one in p.tolist()])
    else:
        why = "abstention is certified for the ladder only"
        right, shown = sample.correct[k].astype(np.float64), trained.heads.out_of_fold[f"search+k{k}"][k]
    outside = alarms(trained.scope.scope, sample.columns, len(right))
    on_train = GivenAnswers(right, np.where(outside, WITHHELD, shown))
    found = certify_abstention(
        *tested.answers(served.right, served.confidence),
        abstention_path(on_train, sample.units, target=options.risk_target),
        target=options.risk_target,
        promise=Certificate(
            options.risk_target,
            options.risk_delta,
            "error among answered",
            tested.units.count,
            bound=1.0,
            spent=spent(options.risk_delta, options.refit) / len(trained.path),
            labels=fitted.outcomes.labels,
            population=tested.name,
            refit=options.refit,
        ),
    )
    return replace(found, certificate=None, uncertified_reason=why) if why else found


def _notes(certified: Certified, ks: tuple[int, ...], fallback: int, options: Options) -> list[str]:
    """What serves now, and why."""
    if options.policy is not Policy.LADDER:
        return policy_notes(certified.policies, (ks[0], ks[1], ks[-1]))
    looked = f"refit {options.refit} into this folder: it may spend {spent(options.delta, options.refit):.2g} of delta"
    looks = [f"{looked} = {options.delta:g}"] if options.refit > 1 else []
    return [*looks, _served("ladder", certified.ladder, fallback), _served("rule of chat", certified.chat, fallback)]


def _served(name: str, fit: LadderFit | ChatFit, fallback: int) -> str:
    if fit.certificate is None:
        return f"always-k{fallback} serves, the {name} is not certified: {fit.uncertified_reason}"
    shown = (
        f"more accurate than {fit.certificate.reference} by at least {fit.certificate.bound:.3f}"
        if fit.goal == "gain"
        else f"at most {fit.certificate.epsilon:g} less accurate than {fit.certificate.reference}"
    )
    return f"{name}: certified on {fit.certificate.n} groups at price t = {fit.t:g}: {shown}"


def _report(
    trained: Trained, certified: Certified, validation: Validation, test: Test, options: Options
) -> dict[str, Any]:
    ledger = ledger_of(test, trained, options)
    train, fitted = trained.ledger, fitted_on(test, trained, options)
    return {
        "per": options.per,
        "splits": {
            name: {"rows": len(part.outcomes), "groups": len(set(part.outcomes.groups))}
            for name, part in (("train", train.split), ("validation", validation), ("test", test))
        },
        "path": {
            **{
                name: [{"t": step.t, "accuracy": step.accuracy, "cost": step.cost} for step in priced]
                for name, priced in (("ladder", trained.path), ("chat", trained.chat))
            },
            **{
                policy: [
                    {"tau0": s.thresholds.tau0, "tau1": s.thresholds.tau1, "accuracy": s.accuracy, "cost": s.cost}
                    for s in path
                ]
                for policy, path in (("binary", trained.binary), ("graded", trained.graded))
            },
        },
        "train_accuracy": {f"k{k}": train.mean(train.fixed(k)) for k in train.ks},
        "scope": evaluate_scope(fitted_on(validation, trained, options), trained.scope.scope.alpha),
        "test": evaluate_policies(
            ledger, certified.policies, certified.ladder, certified.chat, fitted, tau=certified.abstention.tau
        )
        | {"graded_against_binary": graded_against_binary(train, ledger)},
    }
