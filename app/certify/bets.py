"""Testing a mean by betting: valid for every distribution of bounded values, at any stopping time.

A bettor bets, value after value, that the mean is above the tested one. If it is not, the capital is a supermartingale
that starts at 1, so it reaches 1/delta at any time with probability at most delta (Ville's inequality; Waudby-Smith
and Ramdas 2024). Each bet may depend only on earlier values. The choice of bets decides how fast the capital grows,
never whether the test is valid. The strategy here is for a fixed number of values; `app.certify.drift` has one for an
endless stream.
"""

import math
from collections.abc import Sequence

# The largest share of the stake that one value can lose.
STAKE = 0.75


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
    capital, most = 1.0, STAKE / tested
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
