"""The three splits of a table, each with its own type, and what every k yields and costs on a split.

Code that tunes takes a `Train`, code that certifies a `Validation`, code that reports a `Test`: mypy refuses to tune on
the wrong one. A hash of its name assigns a group to a split, so its rows stay together. The test split never changes as
a table grows; train takes over groups of validation where a table becomes large.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.certify.plan import TEST_FROM, train_share
from app.core.artifact import FIXED, Thresholds
from app.core.cost import Objective, Tariff
from app.errors import DataError
from app.offline.table import Floats, Outcomes

# Candidates are compared on about this many rows at most. More rows would not change the choice in practice.
COMPARED_ROWS = 5_000

# The number of passages that each question reads.
Route = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Train:
    """Rows for fitting, and for choosing among fits."""

    outcomes: Outcomes


@dataclass(frozen=True, eq=False, slots=True)
class Validation:
    """Rows for certifying, used once."""

    outcomes: Outcomes


@dataclass(frozen=True, eq=False, slots=True)
class Test:
    """Rows for the report, used once, after everything has been chosen."""

    # Keeps pytest from collecting the class because of its name.
    __test__ = False

    outcomes: Outcomes


S = TypeVar("S", Train, Validation, Test)


def position(name: str, salt: str = "split") -> float:
    """Hash a name to [0, 1); each purpose has its own salt."""
    digest = hashlib.sha256(f"{salt}:{name}".encode(errors="surrogatepass")).digest()
    return (int.from_bytes(digest[:8]) >> 11) / 2**53


def split(outcomes: Outcomes, *, groups: int | None = None) -> tuple[Train, Validation, Test]:
    """Split a table by group, keeping the order of rows; `groups` is their number where these rows are a part of it.

    25/65/10 for train, validation and test, 40/50/10 from 2,000 groups on (`app.certify.plan`).
    """
    place = np.array([position(group) for group in outcomes.groups])
    share = train_share(len(set(outcomes.groups)) if groups is None else groups)
    train, test = place < share, place >= TEST_FROM
    return (
        Train(outcomes.take(np.flatnonzero(train))),
        Validation(outcomes.take(np.flatnonzero(~train & ~test))),
        Test(outcomes.take(np.flatnonzero(test))),
    )


@dataclass(frozen=True, eq=False, slots=True)
class Units:
    """Groups as the units of every average: each has weight one, or its number of rows where requests count."""

    # The group number of each row, and the number of rows in each group.
    codes: NDArray[np.intp]
    sizes: Floats
    per_request: bool = False

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.sizes)

    @property
    def single(self) -> bool:
        """Whether every group has one row."""
        return self.count == len(self.codes)

    @property
    def weights(self) -> Floats:
        """Weights of rows with sum one; without requests the weighted mean of rows is the mean of group means."""
        if self.per_request:
            return np.full(len(self.codes), 1.0 / len(self.codes))
        return 1.0 / (self.sizes[self.codes] * self.count)

    def means(self, values: Floats) -> Floats:
        """The mean of each group."""
        if self.single:
            ordered = np.empty(self.count)
            ordered[self.codes] = values
            return ordered
        return np.bincount(self.codes, weights=values, minlength=self.count) / self.sizes

    def scores(self, values: Floats) -> Floats:
        """A value for each group, in the range of the rows, whose mean has the sign of the weighted mean of rows."""
        return self.means(values) * (self.sizes / self.sizes.max() if self.per_request else 1.0)

    def standard_errors(self, values: Floats) -> float:
        """How many standard errors the mean over groups is above zero."""
        means = self.scores(values)
        return float(means.mean() * np.sqrt(self.count) / max(float(means.std()), 1e-9))

    def first_groups(self) -> tuple[NDArray[np.intp], "Units"]:
        """The rows of the first groups, about COMPARED_ROWS rows in all, and these groups as units."""
        groups = int(np.searchsorted(np.cumsum(self.sizes), COMPARED_ROWS, side="right")) + 1
        rows = np.flatnonzero(self.codes < groups)
        return rows, Units(self.codes[rows], self.sizes[:groups], self.per_request)


def units(outcomes: Outcomes, *, salt: str | None = None) -> Units:
    """Group the rows. Groups are numbered by a hash if there is a salt, otherwise by first appearance."""
    names = list(dict.fromkeys(outcomes.groups))
    if salt is not None:
        names.sort(key=lambda group: (position(group, salt), group))
    number_of = {group: number for number, group in enumerate(names)}
    codes = np.array([number_of[group] for group in outcomes.groups], dtype=np.intp)
    return Units(codes, np.bincount(codes).astype(np.float64), outcomes.per_request)


def one_row_each(outcomes: Outcomes, grouping: Units) -> NDArray[np.intp]:
    """One row of each group, drawn by a hash of its id, in the order of the groups."""
    drawn = np.empty(grouping.count, np.intp)
    places = [position(identifier, "row") for identifier in outcomes.ids]
    # The first by its hash is written last.
    for row in np.argsort(places, kind="stable")[::-1].tolist():
        drawn[grouping.codes[row]] = row
    return drawn


@dataclass(frozen=True, eq=False, slots=True)
class Ledger(Generic[S]):
    """One split with a probability for each closed-book answer, and what each k yields and costs."""

    split: S
    p: Floats
    units: Units
    # What the gate spends on a question that reads k passages, with the probe if the objective counts it.
    costs: Mapping[int, Floats]

    @property
    def ks(self) -> tuple[int, int, int]:
        """The numbers of passages that the graded policy chooses among: none, few and many."""
        return self.split.outcomes.graded_ks

    def route(self, thresholds: Thresholds) -> Route:
        """The number of passages for each question, as the gateway decides it.

        A question without a probability reads the most passages, unless every probability leads to the same k: then
        the gateway does not probe.
        """
        none, few, many = self.ks
        if thresholds.constant is not None:
            return np.full(len(self.p), self.ks[thresholds.constant])
        with np.errstate(invalid="ignore"):
            return np.where(self.p >= thresholds.tau0, none, np.where(self.p >= thresholds.tau1, few, many))

    def serve(self, certified: Thresholds | None, fallback: int) -> Route:
        """The number of passages as served: without certified thresholds the fallback for every question."""
        return np.full(len(self.p), fallback) if certified is None else self.route(certified)

    def is_reference(self, thresholds: Thresholds, k: int) -> bool:
        """Whether these thresholds always read k, also for questions without a signal."""
        return fixed_k(thresholds, self.ks) == k and bool((self.route(thresholds) == k).all())

    def right(self, route: Route) -> Floats:
        """1.0 where the answer from the chosen number of passages is right, else 0.0."""
        return pick(self.split.outcomes.correct, route).astype(np.float64)

    def fixed(self, k: int) -> Floats:
        """1.0 where the answer from k passages is right, else 0.0."""
        return self.split.outcomes.correct[k].astype(np.float64)

    def spent(self, thresholds: Thresholds) -> Floats:
        """The cost of each question: the probe, if there is one, and what is read."""
        cost = pick(self.costs, self.route(thresholds))
        return cost if thresholds.constant is None else cost - self.costs[0]

    def mean(self, rows: Floats) -> float:
        """The mean over groups."""
        return float(rows @ self.units.weights)


def pick(values: Mapping[int, NDArray[Any]], route: Route) -> NDArray[Any]:
    """The value of each question at the number of passages that it reads."""
    return np.select([route == k for k in values], list(values.values()))


def fixed_k(thresholds: Thresholds, ks: tuple[int, int, int]) -> int | None:
    """The k that these thresholds always read, whatever the probability; None if it depends."""
    return ks[FIXED.index(thresholds)] if thresholds in FIXED else None


def gate_costs(outcomes: Outcomes, objective: Objective, tariff: Tariff) -> dict[int, Floats]:
    """What the gate spends on each question at each k: the probe comes on top of what is read."""
    reads = read_costs(outcomes, objective, tariff)
    return {k: reads[0] + cost if k else cost for k, cost in reads.items()}


def passage_costs(outcomes: Outcomes) -> dict[int, Floats]:
    """The passages read at each k, as a share of the most."""
    return gate_costs(outcomes, Objective.MONEY, per_passage(outcomes.ks))


def per_passage(ks: tuple[int, ...]) -> Tariff:
    """A tariff that charges only for passages; the most passages cost one."""
    return Tariff(passage=1.0 / ks[-1])


def read_costs(outcomes: Outcomes, objective: Objective, tariff: Tariff) -> dict[int, Floats]:
    """What answering from k passages costs without a probe, which is what a fixed k costs."""
    if objective is Objective.CALLS:
        return {k: np.full(len(outcomes), float(k > 0)) for k in outcomes.ks}
    if objective is Objective.LATENCY:
        return {k: _column(outcomes.ms[k], f"k{k}.ms", objective) for k in outcomes.ks}
    if objective is Objective.TOKENS:
        tariff = Tariff(prompt_token=1.0, completion_token=1.0)
    elif tariff.is_free:
        raise DataError("the objective money needs prices: set FETCHWISE_TARIFF_PASSAGE or another tariff")
    return {k: _priced(outcomes, k, objective, tariff) for k in outcomes.ks}


def _priced(outcomes: Outcomes, k: int, objective: Objective, tariff: Tariff) -> Floats:
    total = np.full(len(outcomes), tariff.retrieval(k))
    # A column without a price may be missing from the table.
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
