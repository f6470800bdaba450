"""Climbing the ladder: the states, what can be bought in each, what it costs, and what the rule does with each row.

""       ──► search, or the closed-book answer k0
k0       ──► search
search   ──► any k
answers  ──► the next larger k, or stop
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.core.available import state_of
from app.core.cost import Objective, Tariff
from app.offline.refit.splits import read_costs
from app.offline.table import Floats, Labels, Outcomes

SEARCH = "search"
# The share of always-top's cost within which `gain` chooses.
BUDGET = 0.58
# Where chat chooses: the search has run, and there is a probe.
AHEAD = state_of((0,), searched=True)
# Numbers of n rows, by state and then by answer (k) or purchase.
Probabilities = Mapping[str, Mapping[int, Floats]]
Values = Mapping[str, Mapping[str, Floats]]


def states(ks: Sequence[int]) -> tuple[str, ...]:
    """The states that buying can lead to, each before those that it leads to."""
    ranges = [ks[low : high + 1] for high in range(len(ks)) for low in range(high, -1, -1)]
    return ("", state_of(ks[:1], searched=False), SEARCH, *(state_of(some, searched=True) for some in ranges))


def graded_states(ks: Sequence[int]) -> tuple[str, ...]:
    """States of the graded policy that the ladder does not reach: a probe, and one read that skips rungs."""
    return tuple(state for k in ks[1:] if (state := state_of((ks[0], k), searched=True)) not in states(ks))


def answers_of(state: str) -> tuple[int, ...]:
    """The answers that exist in a state."""
    return tuple(int(part[1:]) for part in state.split("+") if part[:1] == "k")


def purchases(state: str, ks: Sequence[int]) -> dict[str, str]:
    """What can be bought in a state, and the state that it leads to."""
    answers = answers_of(state)
    if not state.startswith(SEARCH):
        bought = {SEARCH: state_of(answers, searched=True)}
        return bought if answers else bought | {f"k{ks[0]}": state_of(ks[:1], searched=False)}
    wanted = [k for k in ks if k > max(answers)][:1] if answers else ks
    reachable = states(ks)
    after = {f"k{k}": state_of((*answers, k), searched=True) for k in wanted}
    return {name: state for name, state in after.items() if state in reachable}


def purchase_costs(outcomes: Outcomes, objective: Objective, tariff: Tariff) -> dict[str, Floats]:
    """What each row pays for the search and for each answer, in the objective's unit.

    There is one search, for the largest k: it pays for the call and all its passages, and an answer only for its
    tokens. Latency has no figure for the search alone: each read's includes one, so a second read is overestimated.
    """
    reads = read_costs(outcomes, objective, tariff)
    fetched = dict.fromkeys(reads, 0.0)
    if objective is Objective.CALLS:
        fetched = {k: float(k > 0) for k in reads}
    elif objective is Objective.MONEY:
        fetched = {k: tariff.retrieval(k) for k in reads}
    return {SEARCH: np.full(len(outcomes), fetched[max(reads)])} | {f"k{k}": c - fetched[k] for k, c in reads.items()}


@dataclass(frozen=True, eq=False, slots=True)
class Climb:
    """What the ladder does with each row: the answer given, where it stopped, and what it spent."""

    given: NDArray[np.intp]
    # The place in `states` where each row stopped.
    state: NDArray[np.intp]
    # The probability of the given answer; NaN where required evidence was missing.
    p: Floats
    # In the objective's unit, and over always-top's mean.
    spent: Floats
    cost: Floats
    searches: Floats
    # Passages read, in all answers together.
    passages: Floats


def have(p: Probabilities, state: str, n: int) -> Floats:
    """The probability of the best answer at hand, 0 without one, NaN if one of them is unknown."""
    best = np.zeros(n)
    for k in answers_of(state):
        best = np.maximum(best, p[state][k])
    return best


def climb(
    p: Probabilities,
    q: Values,
    t: float,
    *,
    prices: Mapping[str, float],
    costs: Mapping[str, Floats],
    top: float,
    ks: Sequence[int],
    start: str = "",
) -> Climb:
    """Follow the rule for every row: buy while the best value minus its price is above the best answer at hand.

    `prices` are the mean costs that the rule weighs; `costs` are what each row really pays, and `top` is always-top's
    mean. Of equal purchases the cheaper is made, of equal answers the one from fewer passages is given.
    """
    every = states(ks)
    n = len(costs[SEARCH])
    spent, searches, passages = np.zeros(n), np.zeros(n), np.zeros(n)
    at, given, sure = np.full(n, every.index(start)), np.full(n, ks[-1]), np.full(n, np.nan)
    for number, state in enumerate(every):
        rows = np.flatnonzero(at == number)
        answers, options = answers_of(state), purchases(state, ks)
        if not rows.size:
            continue
        hold = have(p, state, n)[rows]
        # Nothing is better than any purchase where stopping is no option.
        best = hold.copy() if answers else np.full(len(rows), -np.inf)
        choice = np.full(len(rows), -1)
        for place, name in sorted(enumerate(options), key=lambda option: prices[option[1]]):
            value = q[state][name][rows] - t * prices[name]
            choice = np.where(value > best, place, choice)
            best = np.maximum(best, value)
        lost = np.isnan(best) | np.isnan(hold)
        for place, (name, after) in enumerate(options.items()):
            buying = rows[(choice == place) & ~lost]
            at[buying] = every.index(after)
            spent[buying] += costs[name][buying]
            searches[buying] += name == SEARCH
            passages[buying] += 0 if name == SEARCH else int(name[1:])
        stopping = rows[(choice < 0) & ~lost]
        if answers:
            of_each = np.stack([p[state][k][stopping] for k in answers])
            given[stopping], sure[stopping] = np.array(answers)[of_each.argmax(axis=0)], of_each.max(axis=0)
        # Without required evidence the most is read, and its probability is not known.
        rushed = rows[lost] if ks[-1] not in answers else rows[:0]
        searched = state.startswith(SEARCH)
        spent[rushed] += costs[f"k{ks[-1]}"][rushed] + (0.0 if searched else costs[SEARCH][rushed])
        searches[rushed] += not searched
        passages[rushed] += ks[-1]
    return Climb(given, at, sure, spent, spent / top, searches, passages)


def choose_once(
    p: Probabilities,
    t: float,
    *,
    prices: Mapping[str, float],
    costs: Mapping[str, Floats],
    top: float,
    ks: Sequence[int],
) -> Climb:
    """The one-shot rule of chat for every row: search, probe, then the answer with the largest P - t c.

    The answer is written in any case, so a row pays for the search, the probe and the answer at its k, also at k = 0.
    """
    n, order = len(costs[SEARCH]), sorted(ks, key=lambda k: (prices[f"k{k}"], k))
    worth = np.stack([p[AHEAD][k] - t * prices[f"k{k}"] for k in order])
    # Of equal ones the cheaper; without required evidence the most.
    lost = np.isnan(worth).any(axis=0)
    given = np.where(lost, ks[-1], np.array(order)[np.where(lost, 0.0, worth).argmax(axis=0)])
    written = np.select([given == k for k in ks], [costs[f"k{k}"] for k in ks])
    spent = costs[SEARCH] + costs["k0"] + written
    at = np.full(n, states(ks).index(AHEAD))
    return Climb(given, at, np.full(n, np.nan), spent, spent / top, np.ones(n), given.astype(np.float64))


def right_of(climbed: Climb, correct: Mapping[int, Labels]) -> Floats:
    """1.0 where the given answer is right, else 0.0."""
    return np.select([climbed.given == k for k in correct], [labels.astype(np.float64) for labels in correct.values()])


@dataclass(frozen=True, eq=False, slots=True)
class PricedStep:
    """One price of a path, what it does with each row of train, and its accuracy and cost there."""

    t: float
    climb: Climb
    accuracy: float
    cost: float


P = TypeVar("P", bound=PricedStep)


def cheaper_steps(steps: Iterable[P], below: float | None = None) -> tuple[P, ...]:
    """The steps that are strictly cheaper on train than every step before them.

    With `below` only those that cost less; the cheapest stays in any case.
    """
    path: list[P] = []
    for step in steps:
        if not path or step.cost < path[-1].cost - 1e-9:
            path.append(step)
    saving = tuple(step for step in path if below is None or step.cost < below)
    return saving or tuple(path[-1:])


def most_accurate(path: Sequence[P], budget: float = BUDGET) -> P | None:
    """The most accurate step on train within the budget, the cheapest of equals; None if every step costs more."""
    within = [step for step in path if step.cost <= budget]
    return max(within, key=lambda step: (round(step.accuracy, 9), -step.cost)) if within else None
