"""Everything that train decides: heads, scope, and the paths to certify on validation."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from app.core.artifact import ChatFit, LadderFit
from app.core.signals import NAMES
from app.offline.refit.choose import PathStep, best_fixed, build_path
from app.offline.refit.climb import P, PricedStep, most_accurate, purchase_costs
from app.offline.refit.follow import Fitted
from app.offline.refit.heads import predict_many
from app.offline.refit.ladder import (
    FittedHeads,
    LadderStep,
    Sample,
    SingleAnswers,
    choose_chat_path,
    choose_path,
    fit_probabilities,
)
from app.offline.refit.options import Options
from app.offline.refit.scope import FittedScope, fit_scope
from app.offline.refit.splits import Ledger, S, Train, gate_costs, units

_DECILES = tuple(np.arange(1, 10) / 10)


@dataclass(frozen=True, eq=False, slots=True)
class Trained:
    """Everything that train decides: heads, scope, and the paths to certify on validation."""

    sample: Sample
    heads: FittedHeads
    scope: FittedScope
    # Prices in ascending order; for `gain` the one step that was chosen.
    path: tuple[LadderStep, ...]
    # The same for the one-shot rule of chat.
    chat: tuple[PricedStep, ...]
    # In-corpus rows with P(the closed-book answer is right), for `graded` and `binary`.
    ledger: Ledger[Train]
    graded: tuple[PathStep, ...]
    binary: tuple[PathStep, ...]
    fallback: int
    notes: tuple[str, ...]


def choose(train: Train, options: Options, single: Mapping[tuple[str, int], SingleAnswers] | None = None) -> Trained:
    """Fit heads and scope, and build the paths; `single` has further answers to fit on."""
    outcomes = train.outcomes
    guarantee = options.guarantee(outcomes.ks)
    sample = Sample.of(
        outcomes.evidence,
        {k: outcomes.correct[k] for k in outcomes.ks},
        purchase_costs(outcomes, options.objective, options.tariff),
        outcomes.groups,
        out_of_corpus=outcomes.out_of_corpus,
        single=single,
        per_request=outcomes.per_request,
    )
    heads = fit_probabilities(sample)
    below, notes = options.saves_below(outcomes.ks), list[str]()
    path = choose_path(sample, heads, options.prices, below=below)
    chat = choose_chat_path(sample, heads, options.prices, below=below)
    if options.goal == "gain":
        path, chat = _best("ladder", path, options, notes), _best("chat", chat, options, notes)
    scope = fit_scope(
        outcomes.ids,
        outcomes.evidence,
        outcomes.vectors,
        outcomes.groups,
        out_of_corpus=outcomes.out_of_corpus,
        alpha=options.alpha,
    )
    inside = np.flatnonzero(~outcomes.out_of_corpus[sample.rows])
    known = Train(outcomes.take(sample.rows[inside]))
    ledger = Ledger(
        known,
        heads.out_of_fold["k0"][0][inside],
        units(known.outcomes, salt="order"),
        gate_costs(known.outcomes, options.objective, options.tariff),
    )
    return Trained(
        sample,
        heads,
        scope,
        path,
        chat,
        ledger,
        graded=build_path(ledger, guarantee, graded=True),
        binary=build_path(ledger, guarantee, graded=False),
        fallback=guarantee.fixed or best_fixed(ledger, outcomes.ks[1:]),
        notes=tuple(notes),
    )


def _best(name: str, path: tuple[P, ...], options: Options, notes: list[str]) -> tuple[P]:
    """The most accurate step within the budget, else the cheapest."""
    best = most_accurate(path, options.budget)
    if best is None:
        notes.append(f"{name}: no price keeps the cost within {options.budget:g} of always-largest's on train")
    return (best or path[-1],)


def quantiles(sample: Sample) -> dict[str, tuple[float, ...]]:
    """Deciles of the evidence that drift is watched by: cosines and coverage, and the signals of each answer."""
    watched = {f"k{k}.{name}" for k in sample.ks for name in NAMES}
    return {
        name: tuple(np.nanquantile(column, _DECILES).tolist())
        for name, column in sample.columns.items()
        if (name in watched or name.startswith("search.")) and np.isfinite(column).any()
    }


def fit_of(trained: Trained, step: LadderStep, options: Options) -> LadderFit:
    """A step of the path as it is served; validation adds its certificate."""
    return LadderFit(
        t=step.t,
        costs=trained.sample.prices,
        values=step.values.heads,
        confidence=step.confidence,
        objective=options.objective,
        goal=options.goal,
    )


def chat_of(trained: Trained, step: PricedStep, options: Options) -> ChatFit:
    """A step of chat's path as it is served; validation adds its certificate."""
    return ChatFit(t=step.t, costs=trained.sample.added, objective=options.objective, goal=options.goal)


def fitted_on(part: S, trained: Trained, options: Options) -> Fitted:
    """A split with what train fitted."""
    scope = trained.scope
    return Fitted.of(part.outcomes, trained.heads.heads, scope.scope, scope.centroids, options.tariff)


def ledger_of(part: S, trained: Trained, options: Options) -> Ledger[S]:
    """The in-corpus rows of a split, with the probability of each closed-book answer."""
    outcomes = part.outcomes.take(np.flatnonzero(~part.outcomes.out_of_corpus))
    p = predict_many(trained.heads.heads["k0"][0], outcomes.evidence, len(outcomes))
    costs = gate_costs(outcomes, options.objective, options.tariff)
    return Ledger(replace(part, outcomes=outcomes), p, units(outcomes, salt="order"), costs)
