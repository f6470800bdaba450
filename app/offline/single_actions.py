"""Answers whose k was drawn at random, weighted so that they stand for all questions.

A gate answers easy questions closed-book and reads many passages for hard ones, so each answer has weight
1 / propensity. Weights are clipped, or a few rare actions would dominate: that brings a little bias back, and removes
most of the variance.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.certify.intervals import Interval, wilson
from app.core.available import state_of
from app.core.policy import action_of
from app.offline.builder import columns
from app.offline.refit.ladder import SingleAnswers
from app.offline.table import Floats

# Every answer has this evidence, whatever else is missing.
_ANSWERED = re.compile(r"k(\d+)\.tokens")


@dataclass(frozen=True, slots=True)
class SingleAction:
    """One labelled answer, with the evidence that was known in the end and the probability of its action."""

    group: str
    k: int
    chance: float
    right: bool
    evidence: Mapping[str, float]

    @property
    def state(self) -> str:
        """The state in which the answer was given."""
        answers = [int(found[1]) for found in map(_ANSWERED.fullmatch, self.evidence) if found]
        return state_of(answers, searched=any(name.startswith("search.") for name in self.evidence))


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The rows of one kind, Kish's effective sample size of their weights, and the share of weights clipped."""

    rows: int
    effective: float
    clipped: float


def weigh(
    rows: Sequence[SingleAction], clip: float
) -> tuple[dict[tuple[str, int], SingleAnswers], dict[tuple[str, int], SampleSize]]:
    """Weight the rows, by state and k: a head is fitted on the answers of its own state and k."""
    asked = Counter(row.group for row in rows)
    kinds = [(row.state, row.k) for row in rows]
    weighted, sizes = {}, {}
    for kind in sorted(set(kinds)):
        mine = [row for row, other in zip(rows, kinds, strict=True) if other == kind]
        chances = np.array([row.chance for row in mine])
        # The rows of a question share one weight, however often it was asked.
        weights = np.minimum(1.0 / chances, clip) / np.array([asked[row.group] for row in mine])
        effective = effective_size(weights)
        sizes[kind] = SampleSize(len(mine), effective, float((1.0 / chances > clip).mean()))
        weighted[kind] = SingleAnswers(
            columns([row.evidence for row in mine]),
            np.array([row.right for row in mine]),
            # Scaled to the effective sample size; a group of the table has weight one.
            weights * (effective / weights.sum()),
            [row.group for row in mine],
        )
    return weighted, sizes


def effective_size(weights: Floats) -> float:
    """Kish's effective sample size: that many rows of equal weight would estimate a mean as well."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0


def size_note(sizes: Mapping[tuple[str, int], SampleSize], clip: float) -> str:
    """How many rows there are of each kind, for the person who runs the refit."""
    if not sizes:
        return "log: no single-action rows to fit on (FETCHWISE_EXPLORE_SHARE makes some actions random)"
    each = ", ".join(
        f"k={k} after {state} {n.rows} rows, effective size {n.effective:.0f} ({n.clipped:.0%} clipped)"
        for (state, k), n in sizes.items()
    )
    rows = sum(one.rows for one in sizes.values())
    return f"log: {rows} single-action rows are used for fitting on train, weights clipped at {clip:g}: {each}"


def shares(by_k: Mapping[int, Sequence[bool]]) -> dict[str, Interval]:
    """The share of right texts at each k."""
    return {action_of(k): wilson(sum(right), len(right)) for k, right in sorted(by_k.items())}


def turns_note(how: str, shares: Mapping[str, Interval]) -> str:
    """How often what chats wrote was right, for the person who runs the refit."""
    each = (f"{k} {one.value:.3f} of {one.n} ({one.low:.3f} to {one.high:.3f})" for k, one in shares.items())
    return f"log: judged turns of chats whose k was {how}: {', '.join(each)} right" if shares else ""
