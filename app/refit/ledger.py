"""A split as numbers: each question's probability, and what every number of passages would have yielded and cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from app.decision.artifact import ALWAYS_K, Early, Thresholds
from app.decision.cost import Tariff
from app.decision.policy import foregone
from app.errors import DataError
from app.refit.split import Test, Train, Units, Validation
from app.refit.table import Outcomes

Floats = NDArray[np.float64]
Choices = NDArray[np.int8]
Objective = Literal["call", "full", "passage", "latency", "tokens", "money"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
# On these a probe that is spared shows.
PROBE_COUNTS: tuple[Objective, ...] = ("latency", "tokens", "money")
ACTIONS = (0, 1, 5)

S = TypeVar("S", Train, Validation, Test)


@dataclass(frozen=True, eq=False, slots=True)
class Foretold:
    """P(right) of each question before its probe is whole; NaN where nothing is said."""

    # By the question alone, closed-book and with one passage.
    p0: Floats | None = None
    p1: Floats | None = None
    # By the first n tokens of the closed-book answer; NaN where it has no more than these.
    prefixes: Mapping[int, Floats] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Advances:
    """What is paid before a probe is whole, on the ledger's axis."""

    # A probe that is cut short once it has gone on after n tokens.
    cut: Mapping[int, Floats] = field(default_factory=dict)
    # Embedding a question that then reads no passage.
    embedding: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Ledger(Generic[S]):
    """One split under one p0. Its type says which split, so that nothing is tuned on the wrong one."""

    split: S
    p: Floats
    units: Units
    # What the gate spends on a question that reads k passages, the probe included where the axis counts it.
    costs: Mapping[int, Floats]
    foretold: Foretold = field(default_factory=Foretold)
    advances: Advances = field(default_factory=Advances)

    def route(self, thresholds: Thresholds) -> Choices:
        """The number of passages for each question, as the gateway decides it, early or by the whole probe."""
        probed = self._by_probe(thresholds)
        if thresholds.early is None:
            return probed
        settled = self.settled(thresholds.early, probing=foregone(thresholds) is None)
        return np.where(settled >= 0, settled, probed)

    def settled(self, early: Early, *, probing: bool = True) -> Choices:
        """The number of passages for each question that is decided before its probe is whole; -1 for the others."""
        settled = np.full(len(self.p), -1, dtype=np.int8)
        with np.errstate(invalid="ignore"):
            for length, tau in early.exits if probing else ():
                settled[self.foretold.prefixes[length] < tau] = early.exit_k
            if early.unasked > 0.0:
                unasked = self.unasked(early)
                settled[unasked] = self._compact(early)[unasked]
        return settled

    def unasked(self, early: Early) -> NDArray[np.bool_]:
        """Which questions are not probed at all."""
        if self.foretold.p0 is None or early.unasked <= 0.0:
            return np.zeros(len(self.p), dtype=np.bool_)
        return self.foretold.p0 < early.unasked

    def _compact(self, early: Early) -> Choices:
        if self.foretold.p1 is None:
            return np.full(len(self.p), 1 if early.compact <= 0.0 else 5, dtype=np.int8)
        return np.where(self.foretold.p1 >= early.compact, 1, 5).astype(np.int8)

    def _by_probe(self, thresholds: Thresholds) -> Choices:
        """The same by whole probes alone.

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

    def spent(self, thresholds: Thresholds) -> Floats:
        """The cost of each question: of its probe as far as it runs, and of what it reads."""
        return self.probing(thresholds) + self.reading(self.route(thresholds))

    def reading(self, chosen: Choices) -> Floats:
        """The cost of what is read after a probe; nothing where nothing is."""
        return pick(self.costs, chosen) - self.costs[0]

    def probing(self, thresholds: Thresholds) -> Floats:
        """The cost of each question's probe. Where every probability leads to the same passages there is none."""
        early = thresholds.early or _NOTHING_EARLY
        probing = foregone(thresholds) is None
        cost = self.costs[0].copy() if probing else np.zeros(len(self.p))
        with np.errstate(invalid="ignore"):
            for length, tau in reversed(early.exits if probing else ()):
                cut = self.foretold.prefixes[length] < tau
                cost[cut] = self.advances.cut[length][cut]
        cost[self.unasked(early)] = 0.0
        if early.unasked > 0.0:
            # Whoever reads passages embeds the question anyway.
            cost[self.route(thresholds) == 0] += self.advances.embedding
        return cost

    def mean(self, rows: Floats) -> float:
        """The mean over groups."""
        return float(rows @ self.units.weights)


_NOTHING_EARLY = Early()


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


def advances(outcomes: Outcomes, objective: Objective, tariff: Tariff, lengths: Iterable[int]) -> Advances:
    """What is paid before probes are whole. A probe cut short pays its prompt, n tokens, and the one that told it so.

    Milliseconds a token are those by which longer answers took longer, over the whole table.
    """
    if objective in _SHARES:
        return Advances({length: np.zeros(len(outcomes)) for length in lengths})
    whole, tokens = read_costs(outcomes, objective, tariff)[0], outcomes.completion_tokens[0]
    if objective == "latency":
        each = _per_token(outcomes.ms[0], tokens)
    else:
        each = 1.0 if objective == "tokens" else tariff.completion_token
    cut = {length: whole - each * np.maximum(np.nan_to_num(tokens) - length - 1, 0.0) for length in lengths}
    embed_ms = outcomes.asked.embed_ms if outcomes.asked and objective == "latency" else 0.0
    return Advances({length: np.maximum(cost, 0.0) for length, cost in cut.items()}, embed_ms)


def _per_token(ms: Floats, tokens: Floats) -> float:
    """The slope of milliseconds over tokens, by least squares; never below zero, nor above all of them by the token."""
    known = np.isfinite(ms) & np.isfinite(tokens)
    if known.sum() < 2 or np.ptp(tokens[known]) == 0.0:
        return 0.0
    slope = float(np.polyfit(tokens[known], ms[known], 1)[0])
    return min(max(slope, 0.0), float(ms[known].sum() / tokens[known].sum()))


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
