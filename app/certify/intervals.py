"""A figure with its 95 % interval, and Wilson's interval of a share."""

import math
from dataclasses import dataclass

# The fewest questions for which a live mean or share is shown.
MIN_SAMPLE = 30
# Two-sided 95 %.
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval, from n observations; if there is no value, `needs` says what is missing."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    needs: str | None = None


def unknown_interval(n: int, needs: str | None = None) -> Interval:
    """No value, and what is missing for one."""
    return Interval(None, None, None, n, needs)


def missing(n: int, of: str) -> str:
    """How many questions of a kind are needed, and how many there are."""
    return f"{MIN_SAMPLE} {of}, {n} so far"


def wilson(successes: int, trials: int) -> Interval:
    """The share of successes with Wilson's interval: the probabilities that a score test at 5 % does not reject.

    It stays inside [0, 1] and is accurate near 0 and 1 and for few trials. Without trials there is no value.
    """
    if trials == 0:
        return unknown_interval(0)
    share, spread = successes / trials, _Z * _Z / trials
    middle = (share + spread / 2.0) / (1.0 + spread)
    reach = _Z * math.sqrt((share * (1.0 - share) + spread / 4.0) / trials) / (1.0 + spread)
    # At shares of 0 and 1 the interval ends at the share exactly; rounding must not change that.
    return Interval(share, min(share, max(0.0, middle - reach)), max(share, min(1.0, middle + reach)), trials)
