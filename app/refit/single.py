"""Questions of which only one action's outcome is known, weighed by how likely it was that this one would be seen.

A gate answers easy questions closed-book and hard ones from five passages, so what its log says of an action holds for
the questions that it chose the action for. Where chance had a part, a row stands for 1 / propensity questions like it.
Rare actions then weigh so much that a few rows would rule, so weights are clipped: that brings some of the bias back,
and takes most of the variance away. An answer that is withheld for want of confidence is never judged; those that are
left are a fair sample to a calibrator that reads the very signals by which they were withheld.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from app.refit.fit import Weighted
from app.refit.table import Floats, columns

CLIP = 20.0


@dataclass(frozen=True, slots=True)
class Worth:
    """What weighted rows are worth to one calibrator; `effective` is Kish's sample size."""

    rows: int
    effective: float
    clipped: float


@dataclass(frozen=True, slots=True)
class _Row:
    group: str
    k: int
    chance: float
    right: bool
    signals: Mapping[str, float]


def effective_size(weights: Floats) -> float:
    """Kish: as many rows of equal weight would estimate a mean as well."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0


class SingleActions:
    """Gathers such rows, and hands them out by the number of passages whose calibrator can learn from them."""

    def __init__(self, clip: float = CLIP) -> None:
        self.clip = clip
        self._rows: list[_Row] = []

    def __len__(self) -> int:
        """How many rows."""
        return len(self._rows)

    def add(self, group: str, k: int, chance: float, *, right: bool, signals: Mapping[str, float]) -> None:
        """Append one row; the signals are those of the answer that was given."""
        self._rows.append(_Row(group, k, chance, right, signals))

    def finish(self, *, without: Collection[str]) -> tuple[dict[int, Weighted], dict[int, Worth], int]:
        """Rows and their worth by k, and how many rows fell away because their group is among `without`."""
        kept = [row for row in self._rows if row.group not in without]
        asked = Counter(row.group for row in kept)
        weighted, worth = {}, {}
        for k in sorted({row.k for row in kept}):
            mine = [row for row in kept if row.k == k]
            chances = np.array([row.chance for row in mine])
            # A question weighs one in all, however often it was asked.
            weights = np.minimum(1.0 / chances, self.clip) / np.array([asked[row.group] for row in mine])
            effective = effective_size(weights)
            worth[k] = Worth(len(mine), effective, float((1.0 / chances > self.clip).mean()))
            weighted[k] = Weighted(
                columns([row.signals for row in mine]),
                np.array([row.right for row in mine]),
                # Scaled so that together they count as what they are worth beside rows that count one each.
                weights * (effective / weights.sum()),
            )
        return weighted, worth, len(self._rows) - len(kept)
