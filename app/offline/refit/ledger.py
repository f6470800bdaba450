"""A split as numbers: each question's probability, and what every number of passages would have yielded and cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.core.artifact import FIXED, Thresholds
from app.core.cost import Objective, Tariff
from app.errors import DataError
from app.offline.refit.split import Test, Train, Units, Validation
from app.offline.table import Floats, Outcomes

# The number of passages that each question reads.
Route = NDArray[np.int64]

S = TypeVar("S", Train, Validation, Test)


@dataclass(frozen=True, eq=False, slots=True)
class Ledger(Generic[S]):
    """One split under one p0. Its type says which split, so that nothing is tuned on the wrong one."""

    split: S
    p: Floats
    units: Units
    # What the gate spends on a question that reads k passages, the probe included where the objective counts it.
    costs: Mapping[int, Floats]

    @property
    def ks(self) -> tuple[int, int, int]:
        """The numbers of passages that the policy chooses among."""
        return self.split.outcomes.ks

    def route(self, thresholds: Thresholds) -> Route:
        """The number of passages for each question, as the gateway decides it.

        A missing probability compares false and so reads the most, unless every probability leads to the same
        passages: then the gateway asks for no signal, and none can be missing.
        """
        none, few, many = self.ks
        if thresholds.constant is not None:
            return np.full(len(self.p), self.ks[thresholds.constant])
        with np.errstate(invalid="ignore"):
            return np.where(self.p >= thresholds.tau0, none, np.where(self.p >= thresholds.tau1, few, many))

    def serve(self, certified: Thresholds | None, fallback: int) -> Route:
        """The same as the gateway serves it: without certified thresholds, one number of passages for all."""
        return np.full(len(self.p), fallback) if certified is None else self.route(certified)

    def is_reference(self, thresholds: Thresholds, k: int) -> bool:
        """Whether these thresholds are the policy that always reads k, on questions without a signal too."""
        return fixed_k(thresholds, self.ks) == k and bool((self.route(thresholds) == k).all())

    def right(self, route: Route) -> Floats:
        """1.0 where the answer with the chosen number of passages is right, else 0.0."""
        return pick(self.split.outcomes.correct, route).astype(np.float64)

    def fixed(self, k: int) -> Floats:
        """The same where every question reads k."""
        return self.split.outcomes.correct[k].astype(np.float64)

    def spent(self, thresholds: Thresholds) -> Floats:
        """The cost of each question: its probe, unless none is needed, and what it reads."""
        cost = pick(self.costs, self.route(thresholds))
        return cost if thresholds.constant is None else cost - self.costs[0]

    def mean(self, rows: Floats) -> float:
        """The mean over groups."""
        return float(rows @ self.units.weights)


def pick(values: Mapping[int, NDArray[Any]], route: Route) -> NDArray[Any]:
    """Each question's value by what it read."""
    return np.select([route == k for k in values], list(values.values()))


def fixed_thresholds(k: int, ks: tuple[int, int, int]) -> Thresholds:
    """The thresholds under which every question reads k."""
    return FIXED[ks.index(k)]


def fixed_k(thresholds: Thresholds, ks: tuple[int, int, int]) -> int | None:
    """The number of passages that these thresholds read whatever the probability, if there is one."""
    return ks[FIXED.index(thresholds)] if thresholds in FIXED else None


def gate_costs(outcomes: Outcomes, objective: Objective, tariff: Tariff) -> dict[int, Floats]:
    """What the gate spends on each question at each k. The probe is paid whatever is read."""
    reads = read_costs(outcomes, objective, tariff)
    return {k: reads[0] + cost if k else cost for k, cost in reads.items()}


def passage_costs(outcomes: Outcomes) -> dict[int, Floats]:
    """What each k costs where only passages count, as a share of the most."""
    return gate_costs(outcomes, Objective.MONEY, per_passage(outcomes.ks))


def per_passage(ks: tuple[int, int, int]) -> Tariff:
    """The tariff by which only passages cost, and the most of them cost one."""
    return Tariff(passage=1.0 / ks[-1])


def read_costs(outcomes: Outcomes, objective: Objective, tariff: Tariff) -> dict[int, Floats]:
    """What answering with k passages costs on its own: the fixed actions pay this, and no probe."""
    if objective is Objective.CALLS:
        return {k: np.full(len(outcomes), float(k > 0)) for k in outcomes.ks}
    if objective is Objective.LATENCY:
        return {k: _column(outcomes.ms[k], f"k{k}.ms", objective) for k in outcomes.ks}
    if objective is Objective.TOKENS:
        tariff = Tariff(prompt_token=1.0, completion_token=1.0)
    elif tariff.is_free:
        raise DataError("the objective money needs prices: set FETCHWISE_TARIFF_PASSAGE or another of its kind")
    return {k: _priced(outcomes, k, objective, tariff) for k in outcomes.ks}


def _priced(outcomes: Outcomes, k: int, objective: Objective, tariff: Tariff) -> Floats:
    total = np.full(len(outcomes), tariff.retrieval(k))
    # What costs nothing need not have been measured.
    if tariff.prompt_token:
        total += tariff.prompt_token * _column(outcomes.prompt_tokens[k], f"k{k}.prompt_tokens", objective)
    if tariff.completion_token:
        total += tariff.completion_token * _column(outcomes.completion_tokens[k], f"k{k}.completion_tokens", objective)
    return total


def _column(values: Floats, name: str, objective: Objective) -> Floats:
    known = np.isfinite(values)
    if not known.any():
        raise DataError(
            f"the objective {objective} needs {name}, which no row of the table has: collect it, or choose calls"
        )
    return values if known.all() else np.where(known, values, values[known].mean())
