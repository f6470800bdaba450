"""What a fitted policy does on a table: the answers it gives, their confidences, and what it spends."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.core.artifact import Artifact, LadderFit
from app.core.available import state_of
from app.core.cost import Objective, Tariff
from app.core.evidence import NEARNESS
from app.core.heads import Head, Heads
from app.core.scope import Scope
from app.offline.refit.climb import Climb, climb, purchase_costs, right_of
from app.offline.refit.heads import predict_many
from app.offline.refit.ladder import predict_all
from app.offline.refit.scope import Vectors, alarms, nearness_of
from app.offline.table import Floats, Labels, Outcomes

# Below every threshold: a question out of scope is withheld whatever tau is.
WITHHELD = -1.0


@dataclass(frozen=True, eq=False, slots=True)
class Given:
    """The answers that a policy gives on a table: the k of each, whether it is right, and its confidence."""

    k: Floats
    right: Floats
    confidence: Floats
    # Rows that the scope test would withhold.
    out_of_scope: Labels
    # None for a fixed k.
    climb: Climb | None = None


def columns_of(outcomes: Outcomes, centroids: Vectors) -> dict[str, Floats]:
    """The evidence of a table with nearness to the centroids, which are known only after a fit."""
    columns = dict(outcomes.evidence)
    if outcomes.vectors is not None and centroids.size:
        columns[NEARNESS] = nearness_of(outcomes.vectors, centroids)
    return columns


def follow_ladder(
    outcomes: Outcomes,
    columns: Mapping[str, Floats],
    heads: Heads,
    fit: LadderFit,
    scope: Scope | None,
    *,
    objective: Objective | None = None,
    tariff: Tariff | None = None,
) -> Given:
    """Climb every row with fitted heads; costs are those of `objective`, by default the one that the fit minimised."""
    n = len(outcomes)
    costs = purchase_costs(outcomes, objective or fit.objective, tariff or Tariff())
    top = float((costs["search"] + costs[f"k{outcomes.ks[-1]}"]).mean())
    found = climb(
        predict_all(heads, columns, n),
        predict_all(fit.values, columns, n),
        fit.t,
        prices=fit.costs,
        costs=costs,
        top=top,
        ks=outcomes.ks,
    )
    confidence = np.array([np.nan if np.isnan(p) else fit.confidence.apply(p) for p in found.p.tolist()])
    return _given(outcomes, found.given, right_of(found, outcomes.correct), confidence, columns, scope, found)


def follow_fixed(outcomes: Outcomes, columns: Mapping[str, Floats], heads: Heads, k: int, scope: Scope | None) -> Given:
    """Always read k passages; the confidence is that of its state, where the heads have it."""
    head: Head | None = heads.get(state_of((k,), searched=k > 0), {}).get(k)
    n = len(outcomes)
    confidence = np.full(n, np.nan) if head is None else predict_many(head, columns, n)
    return _given(outcomes, np.full(n, k), outcomes.correct[k].astype(np.float64), confidence, columns, scope, None)


def _given(
    outcomes: Outcomes,
    k: Floats,
    right: Floats,
    confidence: Floats,
    columns: Mapping[str, Floats],
    scope: Scope | None,
    climbed: Climb | None,
) -> Given:
    n = len(outcomes)
    outside = alarms(scope, columns, n) if scope is not None else np.zeros(n, np.bool_)
    return Given(k, right, np.where(outside, WITHHELD, confidence), outside, climbed)


def follow_artifact(outcomes: Outcomes, artifact: Artifact, centroids: Vectors) -> Given:
    """What the gateway would serve by default on a table: the certified ladder, or else the fallback."""
    columns = columns_of(outcomes, centroids)
    if artifact.ladder is not None and artifact.ladder.certificate is not None:
        return follow_ladder(outcomes, columns, artifact.heads, artifact.ladder, artifact.scope)
    return follow_fixed(outcomes, columns, artifact.heads, artifact.fallback_k, artifact.scope)
