"""Questions of which only one action's outcome is known, weighed by how likely it was that this one would be seen.

A gate answers easy questions closed-book and hard ones from five passages, so what its log says of an action holds for
the questions that it chose the action for. Where chance had a part, a row stands for 1 / propensity questions like it.
Rare actions then weigh so much that a few rows would rule, so weights are clipped: that brings some of the bias back,
and takes most of the variance away. An answer that is withheld for want of confidence is never judged; those that are
left are a fair sample to a calibrator that reads the very signals by which they were withheld.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.offline.refit.fit import Weighted
from app.offline.table import Floats, columns

CLIP = 20.0


@dataclass(frozen=True, slots=True)
class Worth:
    """What weighted rows are worth to one calibrator; `effective` is Kish's sample size."""

    rows: int
    effective: float
    clipped: float


@dataclass(frozen=True, slots=True)
class SingleAction:
    """One answer that was judged; the signals are those of that answer."""

    group: str
    k: int
    chance: float
    right: bool
    signals: Mapping[str, float]


def effective_size(weights: Floats) -> float:
    """Kish: as many rows of equal weight would estimate a mean as well."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0


def weigh(rows: Sequence[SingleAction], clip: float) -> tuple[dict[int, Weighted], dict[int, Worth]]:
    """Rows and their worth, by the number of passages whose calibrator can learn from them."""
    asked = Counter(row.group for row in rows)
    weighted, worth = {}, {}
    for k in sorted({row.k for row in rows}):
        mine = [row for row in rows if row.k == k]
        chances = np.array([row.chance for row in mine])
        # A question weighs one in all, however often it was asked.
        weights = np.minimum(1.0 / chances, clip) / np.array([asked[row.group] for row in mine])
        effective = effective_size(weights)
        worth[k] = Worth(len(mine), effective, float((1.0 / chances > clip).mean()))
        weighted[k] = Weighted(
            columns([row.signals for row in mine]),
            np.array([row.right for row in mine]),
            # Scaled so that together they count as what they are worth beside rows that count one each.
            weights * (effective / weights.sum()),
        )
    return weighted, worth
