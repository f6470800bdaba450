"""What a fitted policy does on a table: the answers it gives, their confidences, and what it spends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.core.artifact import Artifact, ChatFit, LadderFit, Thresholds
from app.core.available import state_of
from app.core.cost import Objective, Tariff
from app.core.evidence import NEARNESS
from app.core.heads import Heads
from app.core.policy import Policy
from app.core.scope import Scope
from app.offline.refit.abstain import WITHHELD
from app.offline.refit.climb import SEARCH, Climb, Probabilities, choose_once, climb, purchase_costs, right_of
from app.offline.refit.ladder import predict_all
from app.offline.refit.scope import Vectors, alarms, nearness_of
from app.offline.refit.splits import Ledger, Test, pick, units
from app.offline.table import Floats, Labels, Outcomes


@dataclass(frozen=True, eq=False, slots=True)
class Given:
    """The answers that a policy gives on a table: the k of each, whether it is right, and its confidence."""

    k: NDArray[np.intp]
    right: Floats
    # WITHHELD out of scope, NaN where it is not known.
    confidence: Floats
    # None for a fixed k.
    climb: Climb | None = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """A table with fitted heads and scope, to follow policies on."""

    outcomes: Outcomes
    # The evidence of the table, with nearness to the fitted centroids.
    columns: Mapping[str, Floats]
    heads: Heads
    out_of_scope: Labels
    tariff: Tariff = field(default_factory=Tariff)

    @classmethod
    def of(
        cls, outcomes: Outcomes, heads: Heads, scope: Scope | None, centroids: Vectors, tariff: Tariff | None = None
    ) -> "Fitted":
        """Nearness is known only now: the centroids are part of the fit."""
        columns = dict(outcomes.evidence)
        if outcomes.vectors is not None and centroids.size:
            columns[NEARNESS] = nearness_of(outcomes.vectors, centroids)
        n = len(outcomes)
        outside = np.zeros(n, np.bool_) if scope is None else alarms(scope, columns, n)
        return cls(outcomes, columns, heads, outside, tariff or Tariff())

    @cached_property
    def _probabilities(self) -> Probabilities:
        """Of every state and answer; they do not depend on the price."""
        return predict_all(self.heads, self.columns, len(self.outcomes))

    def probability(self, state: str, k: int) -> Floats:
        """P(the answer at k is right) in a state; NaN where the heads do not have it."""
        found = self._probabilities.get(state, {}).get(k)
        return np.full(len(self.outcomes), np.nan) if found is None else found

    def ladder(self, fit: LadderFit, objective: Objective | None = None) -> Given:
        """Climb every row; the costs are those of `objective`, by default the one that the fit minimised."""
        values = predict_all(fit.values, self.columns, len(self.outcomes))
        costs, top = self._costs(objective or fit.objective)
        ks = self.outcomes.ks
        found = climb(self._probabilities, values, fit.t, prices=fit.costs, costs=costs, top=top, ks=ks)
        shown = np.array([np.nan if np.isnan(p) else fit.confidence.apply(p) for p in found.p.tolist()])
        return Given(found.given, right_of(found, self.outcomes.correct), self._withheld(shown), found)

    def chat(self, fit: ChatFit, objective: Objective | None = None) -> Given:
        """Choose once for every row; what is written has no confidence."""
        costs, top = self._costs(objective or fit.objective)
        ks = self.outcomes.ks
        found = choose_once(self._probabilities, fit.t, prices=fit.costs, costs=costs, top=top, ks=ks)
        return Given(found.given, right_of(found, self.outcomes.correct), self._withheld(found.p), found)

    def _costs(self, objective: Objective) -> tuple[dict[str, Floats], float]:
        """What each row pays for each purchase, and the mean of always reading the most."""
        costs = purchase_costs(self.outcomes, objective, self.tariff)
        return costs, float((costs[SEARCH] + costs[f"k{self.outcomes.ks[-1]}"]).mean())

    def graded(self, thresholds: Thresholds) -> Given:
        """Probe, and let thresholds on its probability choose k."""
        outcomes = self.outcomes
        ledger = Ledger(Test(outcomes), self.probability("k0", 0), units(outcomes), {})
        route = ledger.route(thresholds)
        probed = thresholds.constant is None
        shown = {k: self.probability(_read_state(k, probed=probed), k) for k in ledger.ks}
        return Given(route.astype(np.intp), ledger.right(route), self._withheld(pick(shown, route)))

    def fixed(self, k: int) -> Given:
        """Always read k passages."""
        right, shown = self.outcomes.correct[k].astype(np.float64), self.probability(_read_state(k, probed=False), k)
        return Given(np.full(len(right), k), right, self._withheld(shown))

    def _withheld(self, confidence: Floats) -> Floats:
        return np.where(self.out_of_scope, WITHHELD, confidence)


def _read_state(k: int, *, probed: bool) -> str:
    """The state in which an answer at k is given: with the probe, where there was one, and a search if it was read."""
    return state_of({k, 0} if probed else {k}, searched=k > 0)


def serve(outcomes: Outcomes, artifact: Artifact, centroids: Vectors) -> Given:
    """What the gateway would give by default on a table: a certified ladder or `graded`, or else the fallback."""
    fitted = Fitted.of(outcomes, artifact.heads, artifact.scope, centroids)
    if not artifact.certified:
        return fitted.fixed(artifact.fallback_k)
    if artifact.ladder is None:
        return fitted.graded(artifact.policies[Policy.GRADED.value].thresholds)
    # Costs change nothing about what is given, and calls need neither a tariff nor a column of the table.
    return fitted.ladder(artifact.ladder, Objective.CALLS)
