"""Plans of labels: how a table is split, how many labels a certificate needs, and how refits share one delta."""

import math
from statistics import NormalDist

from app.core.artifact import LabelsNeeded

# Train has the first part of the positions in [0, 1), test those from here on, validation what lies between.
TEST_FROM = 0.9
_MIN_TRAIN = 100
# From here on validation has power enough, and the heads still gain from more rows.
_MANY = 2_000
# The chance of success for which labels are planned, and the level of the interval.
_POWER = 0.8
_INTERVAL = 0.8
# Estimates above this are not reported.
MAX_GROUPS = 1_000_000
# Bets need a little more than the exact test: measured at differences from 0 to .02 and deviations from .2 to .45.
_BETS = 1.15


def train_share(groups: int) -> float:
    """The share of so many groups that is fitted on.

    A quarter, but at least 100 groups, and never more than half of a small table.
    """
    return 0.4 if groups >= _MANY else min(0.5, max(0.25, _MIN_TRAIN / max(groups, 1)))


def table_for(validation: float) -> int:
    """The smallest size of a table, in groups, that has so many validation groups."""
    if validation <= (TEST_FROM - 0.5) * 2 * _MIN_TRAIN:
        return math.ceil(validation / (TEST_FROM - 0.5))
    few = math.ceil(max(validation / (TEST_FROM - 0.25), (validation + _MIN_TRAIN) / TEST_FROM))
    return few if few < _MANY else max(_MANY, math.ceil(validation / (TEST_FROM - 0.4)))


def labels_needed(*, gap: float, deviation: float, n: int, delta: float, single: bool) -> LabelsNeeded | None:
    """The labels for which a test passes in four of five cases, if the truth is what n groups showed.

    `gap` is how far the mean is above the tested one, and `deviation` that of the groups. None if even the upper end of
    the interval of the gap is not above zero: then more labels will hardly help.
    """
    error = NormalDist().inv_cdf(0.5 + _INTERVAL / 2.0) * max(deviation / math.sqrt(n), 1.0 / n) if n else 1.0

    def size(distance: float) -> int | None:
        if distance <= 0.0:
            return None
        z = NormalDist().inv_cdf(1.0 - delta) + NormalDist().inv_cdf(_POWER)
        # The last term corrects for differences that come in whole steps; without any loss the test still needs to see
        # that losses are rare.
        groups = max((z * deviation / distance) ** 2 + 0.6 / distance, math.log(1.0 / delta) / distance)
        found = table_for(groups * (1.0 if single else _BETS))
        return found if found <= MAX_GROUPS else None

    low = size(gap + error)
    return None if low is None else LabelsNeeded(size(gap), low, size(gap - error))


def spent(delta: float, refit: int) -> float:
    """What refit number j of a calibrator may spend of its delta: delta / (j (j + 1)), which adds up to delta."""
    return delta / (refit * (refit + 1))
