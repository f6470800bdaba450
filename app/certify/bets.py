"""Testing a mean by betting: valid for every distribution of bounded values, and however often one looks.

A gambler bets, value after value, that the mean is above the one she tests. If it is not, her capital is a
supermartingale that starts at one, so it ever reaches 1/delta with probability at most delta (Ville's inequality;
Waudby-Smith and Ramdas 2024). What she bets may depend on the past only; it decides how soon she wins, never whether
the test is valid. Here are two ways to bet: for a number of values that is known beforehand, and for values without
end, of which the recent ones count.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

# How much of what lies on the table one value can take away.
_STAKE = 0.75
# Bisections of a bound: to a millionth of its range, and never on the unsafe side.
_HALVINGS = 20
# Endless bets follow the mean and spread of about this many values.
_MEMORY = 100
# Capital beyond this proves nothing more, and would overflow in the end; giving it away keeps the test valid.
_CEILING = 1e12


def growth(value: float, share: float, mean: float, most: float) -> float:
    """By what factor a value multiplies the capital on the table, of which a share was bet per unit above the mean."""
    bet = share if share < most else most  # noqa: FURB136 - min() takes twice as long, and this is the inner loop
    return 1.0 + bet * (value - mean)


def p_value(values: Sequence[float], mean: float, *, low: float, high: float, delta: float) -> float:
    """P-value of the hypothesis that values in [low, high] have at most this mean; sharpest at delta.

    The values are independent; their order matters, and must not depend on them. She stops once it is at most delta.
    """
    y = _scaled(values, low, high)
    return 1.0 / _peak(y, _bets(y, delta), (mean - low) / (high - low), 1.0 / delta)


def lower_bound(values: Sequence[float], *, low: float, high: float, delta: float) -> float:
    """The greatest mean that is rejected at delta: a lower confidence bound on the mean of values in [low, high]."""
    y = _scaled(values, low, high)
    bets, enough = list(_bets(y, delta)), 1.0 / delta
    # The capital falls as the tested mean rises, so the rejected means are an interval.
    below, above = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (below + above)
        below, above = (middle, above) if _peak(y, bets, middle, enough) >= enough else (below, middle)
    return low + (high - low) * below


def _scaled(values: Sequence[float], low: float, high: float) -> list[float]:
    return [(value - low) / (high - low) for value in values]


def _bets(y: Sequence[float], delta: float) -> Iterator[float]:
    """The predictable plug-in bets on values in [0, 1]: the larger, the less the values before vary."""
    scale = 2.0 * math.log(1.0 / delta) / max(len(y), 1)
    total, squares, spread = 0.5, 0.25, 0.25
    for seen, value in enumerate(y, 2):
        yield math.sqrt(scale / spread)
        total += value
        squares += (value - total / seen) ** 2
        spread = squares / seen


def _peak(y: Sequence[float], bets: Iterable[float], mean: float, enough: float) -> float:
    """The most she ever owns, starting with one; she stops when it is enough."""
    if mean <= 0.0:
        return 1.0
    capital = peak = 1.0
    most = _STAKE / mean
    for value, bet in zip(y, bets, strict=False):
        capital *= growth(value, bet, mean, most)
        if capital > peak:
            peak = capital
            if peak >= enough:
                break
    return peak


@dataclass(slots=True)
class Bettor:
    """Bets without end that the mean of values in [-1, 1] is above `tolerance`.

    After a year of sound values she must not be broke on the day when they change. So she keeps her capital in a
    drawer, takes a little of it to the table before each value, and sizes her bets by the recent past: what she lost
    earlier delays an alarm by the logarithm of her age at most, not in proportion to it.
    """

    tolerance: float
    seen: int = 0
    mean: float = 0.0
    variance: float = 0.25
    reserve: float = 1.0
    at_stake: float = 0.0
    # The most she ever owned: 1 / peak is a p-value that holds at every moment.
    peak: float = 1.0

    def bet(self, value: float) -> None:
        """Bet, knowing only the past, and then see one value."""
        self.seen += 1
        # All is in the drawer at first, and never quite nothing.
        left = 1.0 / (1.0 + math.log(self.seen + 1))
        won = growth(value, self._share(), self.tolerance, _STAKE / (1.0 + self.tolerance))
        self.at_stake = min(_CEILING, (self.at_stake + self.reserve - left) * won)
        self.reserve = left
        self.peak = max(self.peak, self.at_stake + left)
        weight = max(1.0 / (self.seen + 1), 1.0 / _MEMORY)
        self.variance += weight * ((value - self.mean) ** 2 - self.variance)
        self.mean += weight * (value - self.mean)

    def _share(self) -> float:
        """What grows capital fastest if the future is like the recent past; nothing while that gives no reason."""
        excess = self.mean - self.tolerance
        return excess / (self.variance + excess * excess) if excess > 0.0 else 0.0
