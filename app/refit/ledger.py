"""A split as numbers: each question's probability, and what every number of passages would have yielded and cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from app.decision.artifact import ALWAYS_K, Thresholds
from app.decision.cost import Tariff
from app.decision.policy import foregone
from app.errors import DataError
from app.refit.split import Test, Train, Units, Validation
from app.refit.table import Outcomes

Floats = NDArray[np.float64]
Choices = NDArray[np.int8]
Objective = Literal["call", "full", "passage", "latency", "tokens", "money"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
ACTIONS = (0, 1, 5)

S = TypeVar("S", Train, Validation, Test)


@dataclass(frozen=True, eq=False, slots=True)
class Ledger(Generic[S]):
    """One split under one p0. Its type says which split, so that nothing is tuned on the wrong one."""

    split: S
    p: Floats
    units: Units
    # What the gate spends on a question that reads k passages, the probe included where the axis counts it.
    costs: Mapping[int, Floats]

    def route(self, thresholds: Thresholds) -> Choices:
        """The number of passages for each question, as the gateway decides it.

        A missing probability compares false and so reads five, unless every probability leads to the same passages:
        then the gateway asks for no signal, and none can be missing.
        """
        always = foregone(thresholds)
        if always is not None:
            return np.full(len(self.p), always, dtype=np.int8)
        with np.errstate(invalid="ignore"):
            return np.where(self.p >= thresholds.tau0, 0, np.where(self.p >= thresholds.tau1, 1, 5)).astype(np.int8)

    def serve(self, certified: Thresholds | None, fallback: int) -> Choices:
        """The same as the gateway serves it: without certified thresholds, one number of passages for all."""
        return np.full(len(self.p), fallback, dtype=np.int8) if certified is None else self.route(certified)

    def is_reference(self, thresholds: Thresholds, k: int) -> bool:
        """Whether these thresholds are the policy that always reads k, on questions without a signal too."""
        return thresholds == ALWAYS_K[k] and bool((self.route(thresholds) == k).all())

    def right(self, chosen: Choices) -> Floats:
        """1.0 where the answer with the chosen number of passages is right, else 0.0."""
        correct = self.split.outcomes.correct
        return np.where(chosen == 0, correct[0], np.where(chosen == 1, correct[1], correct[5])).astype(np.float64)

    def fixed(self, k: int) -> Floats:
        """The same where every question reads k."""
        return self.split.outcomes.correct[k].astype(np.float64)

    def spent(self, chosen: Choices) -> Floats:
        """The cost of each question."""
        return pick(self.costs, chosen)

    def mean(self, rows: Floats) -> float:
        """The mean over groups."""
        return float(rows @ self.units.weights)


def pick(values: Mapping[int, Floats], chosen: Choices) -> Floats:
    """Each question's value by what it read."""
    return np.where(chosen == 0, values[0], np.where(chosen == 1, values[1], values[5]))


def is_fixed(thresholds: Thresholds) -> int | None:
    """The number of passages that these thresholds read whatever the probability, if there is one."""
    return next((k for k, always in ALWAYS_K.items() if always == thresholds), None)


def gate_costs(outcomes: Outcomes, objective: Objective, tariff: Tariff) -> dict[int, Floats]:
    """What the gate spends on each question at each k. The probe is paid whatever is read."""
    if objective in _SHARES:
        return {k: np.full(len(outcomes), share) for k, share in _SHARES[objective].items()}
    reads = read_costs(outcomes, objective, tariff)
    return {k: reads[0] + (reads[k] if k else 0.0) for k in ACTIONS}


def read_costs(outcomes: Outcomes, objective: Objective, tariff: Tariff) -> dict[int, Floats]:
    """What answering with k passages costs on its own: the fixed actions pay this, and no probe."""
    if objective in _SHARES:
        return gate_costs(outcomes, objective, tariff)
    if objective == "latency":
        return {k: _column(outcomes.ms[k], f"k{k}.ms", objective) for k in ACTIONS}
    if objective == "money" and tariff.is_free:
        raise DataError("the objective money needs prices: name at least one of the four")
    prompt = {k: _column(outcomes.prompt_tokens[k], f"k{k}.prompt_tokens", objective) for k in ACTIONS}
    completion = {k: _column(outcomes.completion_tokens[k], f"k{k}.completion_tokens", objective) for k in ACTIONS}
    if objective == "tokens":
        return {k: prompt[k] + completion[k] for k in ACTIONS}
    return {k: tariff.generation(prompt[k], completion[k]) + tariff.retrieval(k) for k in ACTIONS}


_SHARES: dict[str, dict[int, float]] = {
    "call": {0: 0.0, 1: 1.0, 5: 1.0},
    "full": {0: 0.0, 1: 0.0, 5: 1.0},
    "passage": {0: 0.0, 1: 0.2, 5: 1.0},
}


def _column(values: Floats, name: str, objective: Objective) -> Floats:
    known = np.isfinite(values)
    if not known.any():
        raise DataError(
            f"the objective {objective} needs {name}, which no row of the table has: collect it, or choose call, "
            "full or passage"
        )
    return values if known.all() else np.where(known, values, values[known].mean())
