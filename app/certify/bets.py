"""Testing a mean by betting: valid for every distribution of bounded values, at any stopping time.

A bettor bets, value after value, that the mean is above the tested one. If it is not, the capital is a supermartingale
that starts at 1, so it reaches 1/delta at any time with probability at most delta (Ville's inequality; Waudby-Smith
and Ramdas 2024). Each bet may depend only on earlier values. The choice of bets decides how fast the capital grows,
never whether the test is valid. The strategy here is for a fixed number of values; `app.certify.drift` has one for an
endless stream.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

# The largest share of the stake that one value can lose.
STAKE = 0.75
# Bisections of a bound: to a millionth of its range, rounded to the safe side.
_HALVINGS = 20


def growth(value: float, share: float, mean: float, most: float) -> float:
    """The factor by which one value multiplies the stake, with `share` of it bet per unit above the mean."""
    bet = share if share < most else most  # noqa: FURB136 - min() takes twice as long, and this is the inner loop
    return 1.0 + bet * (value - mean)


def p_value(values: Sequence[float], mean: float, *, low: float, high: float, delta: float) -> float:
    """P-value of the hypothesis that values in [low, high] have at most this mean; most powerful at level delta.

    The values must be independent, and their order must not depend on them. Stops once the p-value is at most delta.
    """
    y = _scaled(values, low, high)
    return 1.0 / _peak(y, _bets(y, delta), (mean - low) / (high - low), 1.0 / delta)


def lower_bound(values: Sequence[float], *, low: float, high: float, delta: float) -> float:
    """The largest mean rejected at level delta: a lower confidence bound on the mean of values in [low, high]."""
    y = _scaled(values, low, high)
    bets, enough = list(_bets(y, delta)), 1.0 / delta
    # The capital decreases in the tested mean, so the rejected means form an interval.
    below, above = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (below + above)
        below, above = (middle, above) if _peak(y, bets, middle, enough) >= enough else (below, middle)
    return low + (high - low) * below


def _scaled(values: Sequence[float], low: float, high: float) -> list[float]:
    return [(value - low) / (high - low) for value in values]


def _bets(y: Sequence[float], delta: float) -> Iterator[float]:
    """The predictable plug-in bets on values in [0, 1]: larger if the earlier values vary less."""
    scale = 2.0 * math.log(1.0 / delta) / max(len(y), 1)
    total, squares, spread = 0.5, 0.25, 0.25
    for seen, value in enumerate(y, 2):
        yield math.sqrt(scale / spread)
        total += value
        squares += (value - total / seen) ** 2
        spread = squares / seen


def _peak(y: Sequence[float], bets: Iterable[float], mean: float, enough: float) -> float:
    """The largest capital reached, starting from 1; stops at `enough`."""
    if mean <= 0.0:
        return 1.0
    capital = peak = 1.0
    most = STAKE / mean
    for value, bet in zip(y, bets, strict=False):
        capital *= growth(value, bet, mean, most)
        if capital > peak:
            peak = capital
            if peak >= enough:
                break
    return peak
