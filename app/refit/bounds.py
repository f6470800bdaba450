"""Finite-sample tests: numbers in, p-values and bounds out, valid for every distribution and every n.

For a mean of bounded values a gambler bets, question after question, that the hypothesis is wrong. Under it her
capital is a supermartingale, so it ever reaches 1/delta with probability at most delta (Waudby-Smith and Ramdas
2024, the predictable plug-in bet). The bets grow as the observed variance shrinks: this is what turns pairing, by
which most differences are zero, into power. Hoeffding's and Bentkus's inequalities know only the range and throw
that away; empirical Bernstein pays for estimating the variance; an exact test of the discordant pairs is as sharp
where many pairs differ, weaker where few do, and knows no groups. `bench/refit/bounds.py` has the figures.

For the share of wrong answers among those given, where every unit is one row, the count is binomial: an exact test.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv

from app.refit.split import Units

Floats = NDArray[np.float64]
# How much of her capital the gambler may lose on one question.
_STAKE = 0.75
# Bisections of a bound: to a millionth of its range, and never on the unsafe side.
_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class Betting:
    """Tests on the mean of independent values in [low, high]. Their order matters, and must not depend on them."""

    low: float
    high: float

    def p_value(self, values: Floats, mean: float, delta: float) -> float:
        """P-value of the hypothesis that E[values] <= mean; valid at every level, sharpest at delta."""
        y = (values - self.low) / (self.high - self.low)
        return math.exp(-_log_capital(y, _bets(y, delta), (mean - self.low) / (self.high - self.low)))

    def lower(self, values: Floats, delta: float) -> float:
        """The greatest mean that is rejected at delta: a lower confidence bound on E[values]."""
        y = (values - self.low) / (self.high - self.low)
        bets, enough = _bets(y, delta), math.log(1.0 / delta)
        # Each factor of the capital falls as the tested mean rises, so the rejected means are an interval.
        below, above = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (below + above)
            below, above = (middle, above) if _log_capital(y, bets, middle) >= enough else (below, middle)
        return self.low + (self.high - self.low) * below


def binomial_p(successes: int, trials: int, chance: float) -> float:
    """Exact p-value of the hypothesis that the chance of a success is at least `chance`."""
    return float(bdtr(successes, trials, chance)) if trials else 1.0


def binomial_upper(successes: int, trials: int, delta: float) -> float:
    """Clopper and Pearson's upper confidence bound on a chance; 1 where there was no trial."""
    return 1.0 if successes >= trials else float(betaincinv(successes + 1, trials - successes, 1.0 - delta))


def answers(confidence: Floats, tau: float) -> NDArray[np.bool_]:
    """Which questions are answered. A missing confidence never abstains: it was not measured, not low."""
    with np.errstate(invalid="ignore"):
        return ~(confidence < tau)


def selective_p(right: Floats, answered: NDArray[np.bool_], units: Units, target: float, delta: float) -> float:
    """P-value of the hypothesis that the error among answered is at least the target."""
    if units.single:
        return binomial_p(int((answered & (right < 0.5)).sum()), int(answered.sum()), target)
    # E[answered (target - wrong)] > 0 says the same without a ratio, so that a group can be one unit.
    gain = units.means(answered * (target - (1.0 - right)))
    return Betting(target - 1.0, target).p_value(gain, 0.0, delta)


def selective_upper(right: Floats, answered: NDArray[np.bool_], units: Units, delta: float) -> float:
    """The upper confidence bound on the error among answered, from the same test inverted."""
    if units.single:
        return binomial_upper(int((answered & (right < 0.5)).sum()), int(answered.sum()), delta)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        rejected = selective_p(right, answered, units, middle, delta) <= delta
        low, high = (low, middle) if rejected else (middle, high)
    return high


def _bets(y: Floats, delta: float) -> Floats:
    """What she bets on each value in [0, 1], knowing only those before it."""
    n, seen = len(y), np.arange(2.0, len(y) + 2.0)
    running = (0.5 + np.cumsum(y)) / seen
    spread = (0.25 + np.cumsum((y - running) ** 2)) / seen
    before = np.concatenate(([0.25], spread[:-1]))
    bets: Floats = np.sqrt(2.0 * math.log(1.0 / delta) / (n * before))
    return bets


def _log_capital(y: Floats, bets: Floats, mean: float) -> float:
    """Her greatest log-capital, starting at zero and betting that E[y] > mean."""
    if mean <= 0.0:
        return 0.0
    return float(np.log1p(np.minimum(bets, _STAKE / mean) * (y - mean)).cumsum().max(initial=0.0))
