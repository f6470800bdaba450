"""A figure with its 95 % interval, and Wilson's interval of a share."""

import math
from dataclasses import dataclass

# The fewest questions from which a live mean or share is shown.
MIN_SAMPLE = 30
# Two-sided 95 %.
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval, from n observations; without a value, `needs` says what is missing."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    needs: str | None = None


def unknown_interval(n: int, needs: str | None = None) -> Interval:
    """No figure, and what it would take."""
    return Interval(None, None, None, n, needs)


def missing(n: int, of: str) -> str:
    """Say how many questions of a kind are still to come."""
    return f"{MIN_SAMPLE} {of}, {n} so far"


def wilson(successes: int, trials: int) -> Interval:
    """The share of successes and the chances that a score test at 5 % would not reject.

    It stays inside [0, 1], and holds up at the edges and for few trials; there is none without a trial.
    """
    if trials == 0:
        return unknown_interval(0)
    share, spread = successes / trials, _Z * _Z / trials
    middle = (share + spread / 2.0) / (1.0 + spread)
    reach = _Z * math.sqrt((share * (1.0 - share) + spread / 4.0) / trials) / (1.0 + spread)
    # The ends are the share itself where nothing or everything was counted; rounding must not say otherwise.
    return Interval(share, min(share, max(0.0, middle - reach)), max(share, min(1.0, middle + reach)), trials)
