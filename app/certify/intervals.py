"""A figure with its 95 % interval, Wilson's interval of a share, and exact tests of a share."""

import math
from dataclasses import dataclass

# The fewest questions for which a live mean or share is shown.
MIN_SAMPLE = 30
# Two-sided 95 %.
_Z = 1.959963984540054
# Bisections of a bound: to a millionth, rounded to the safe side.
_HALVINGS = 20


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


def binomial_p(successes: int, trials: int, chance: float) -> float:
    """Exact p-value of the hypothesis that the probability of a success is at least `chance`."""
    if trials == 0 or chance <= 0.0 or successes >= trials:
        return 1.0
    if chance >= 1.0:
        return 0.0
    whole, win, loss = math.lgamma(trials + 1), math.log(chance), math.log1p(-chance)
    logs = (
        whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * win + (trials - k) * loss
        for k in range(successes + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))


def binomial_upper(successes: int, trials: int, delta: float) -> float:
    """Clopper and Pearson's upper confidence bound on a probability, the same test inverted; 1 without a trial."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if binomial_p(successes, trials, middle) <= delta else (middle, high)
    return high
