"""Testing a mean by betting: valid for every distribution of bounded values, at any stopping time.

A bettor bets, value after value, that the mean is above the tested one. If it is not, the capital is a supermartingale
that starts at 1, so it reaches 1/delta at any time with probability at most delta (Ville's inequality; Waudby-Smith
and Ramdas 2024). Each bet may depend only on earlier values. The choice of bets decides how fast the capital grows,
never whether the test is valid. There are two strategies: one for a fixed number of values, and one for an endless
stream, in which recent values count more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# The largest share of the stake that one value can lose.
_STAKE = 0.75
# In a stream, bets follow the mean and spread of about this many recent values.
_MEMORY = 100
# Capital is cut off here, so that it cannot overflow; giving capital away keeps the test valid.
_CEILING = 1e12


def growth(value: float, share: float, mean: float, most: float) -> float:
    """The factor by which one value multiplies the stake, with `share` of it bet per unit above the mean."""
    bet = share if share < most else most  # noqa: FURB136 - min() takes twice as long, and this is the inner loop
    return 1.0 + bet * (value - mean)


def above(values: Sequence[float], mean: float, *, low: float, high: float, delta: float) -> bool:
    """Whether the mean of values in [low, high] is shown to be above `mean`, wrong with probability at most delta.

    The values must be independent, and their order must not depend on them. Each bet is the best one for reaching
    1/delta from the capital at hand with the values that are left: sqrt(2 log(1 / (delta capital)) / (variance left)).
    """
    tested, enough, left = (mean - low) / (high - low), 1.0 / delta, len(values)
    if not 0.0 < tested < 1.0:
        return False
    capital, most = 1.0, _STAKE / tested
    total, squares, spread = 0.5, 0.25, 0.25
    for seen, value in enumerate(values, 2):
        y = (value - low) / (high - low)
        capital *= growth(y, math.sqrt(2.0 * math.log(enough / capital) / (spread * left)), tested, most)
        if capital >= enough:
            return True
        left -= 1
        total += y
        squares += (y - total / seen) ** 2
        spread = squares / seen
    return False


@dataclass(slots=True)
class Bettor:
    """Bets on an endless stream that the mean of values in [-1, 1] is above `tolerance`.

    The capital must not be lost before the values change, even after a year without change. So most of it stays in a
    reserve, a little of it is staked before each value, and bets follow recent values. Earlier losses then delay an
    alarm by at most the logarithm of the number of values, not in proportion to it.
    """

    tolerance: float
    seen: int = 0
    mean: float = 0.0
    variance: float = 0.25
    reserve: float = 1.0
    at_stake: float = 0.0
    # The largest capital reached: 1 / peak is a p-value at any time.
    peak: float = 1.0

    def bet(self, value: float) -> None:
        """Bet by the earlier values, then see this one."""
        self.seen += 1
        # At first everything is in the reserve; it never becomes empty.
        left = 1.0 / (1.0 + math.log(self.seen + 1))
        won = growth(value, self._share(), self.tolerance, _STAKE / (1.0 + self.tolerance))
        self.at_stake = min(_CEILING, (self.at_stake + self.reserve - left) * won)
        self.reserve = left
        self.peak = max(self.peak, self.at_stake + left)
        weight = max(1.0 / (self.seen + 1), 1.0 / _MEMORY)
        self.variance += weight * ((value - self.mean) ** 2 - self.variance)
        self.mean += weight * (value - self.mean)

    def _share(self) -> float:
        """The share with the fastest growth if the future is like the recent past; 0 if betting would not pay."""
        excess = self.mean - self.tolerance
        return excess / (self.variance + excess * excess) if excess > 0.0 else 0.0
