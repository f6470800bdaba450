"""Uncertainty signals from a short answer's token log-probabilities; for each, higher is more confident.

The same functions run for fitting and for serving, so that the bias of an estimator cancels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, fsum, isfinite, isnan, log, nan
from operator import mul

TOP = 20
NAMES = ("seq_logprob", "neg_entropy", "margin")
# The same signals of the answer's first token.
FIRST_TOKEN_NAMES = tuple(f"{name}@1" for name in NAMES)
ALL_NAMES = NAMES + FIRST_TOKEN_NAMES

# Servers mark an impossible token with -inf or -9999. Real log-probabilities are far above this floor, so clamping
# changes only such markers, and one of them cannot dominate a mean.
LOGPROB_FLOOR = -100.0
# How far rounding may take a log-probability, and the sum of twenty probabilities, beyond what is possible.
_TOLERANCE = 1e-3
_MASS_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One answer token: its own log-probability, and those of the most likely alternatives, best first."""

    logprob: float
    top: tuple[float, ...] = ()


def extract(tokens: Sequence[TokenLogprobs]) -> dict[str, float]:
    """Compute every signal on the whole answer and on its first token.

    A signal that cannot be computed (no token, too few alternatives) is absent: a default would look calibrated. An
    answer with numbers that no distribution has gives no signal at all.
    """
    values = [one for one in map(_values, tokens) if one is not None]
    if not values or len(values) < len(tokens):
        return {}
    by_signal = [*zip(*values, strict=True)]
    found = [*map(_mean, by_signal), *(one[0] for one in by_signal)]
    return {name: value for name, value in zip(ALL_NAMES, found, strict=True) if isfinite(value)}


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _clamp(logprob: float) -> float:
    # min and max would silently replace a NaN with a bound.
    if LOGPROB_FLOOR <= logprob <= 0.0 or isnan(logprob):
        return logprob
    return max(LOGPROB_FLOOR, min(0.0, logprob))


def _values(token: TokenLogprobs) -> tuple[float, float, float] | None:
    """One token's log-probability, negative entropy and margin; None if its numbers are impossible."""
    own, top = token.logprob, token.top[:TOP]
    most, least = (max(top), min(top)) if top else (0.0, own)
    # A greedy token is among the most likely ones. A NaN fails one of these comparisons, or the one below.
    if not (most <= _TOLERANCE and least - _TOLERANCE <= own <= most + _TOLERANCE):
        return None
    # Usually nothing needs clamping, and checking that first is cheaper than clamping each value.
    logprobs = top if least >= LOGPROB_FLOOR and most <= 0.0 else [_clamp(logprob) for logprob in top]
    masses = [*map(exp, logprobs)]
    rest = 1.0 - fsum(masses)
    if not rest >= -_MASS_TOLERANCE:
        return None
    return _clamp(own), -_entropy(logprobs, masses, rest), _clamp(top[0]) - _clamp(top[1]) if len(top) > 1 else nan


def _entropy(logprobs: Sequence[float], masses: Sequence[float], rest: float) -> float:
    """Entropy in nats of the top 20 alternatives, with the rest as one bucket of mass r: H20 - r ln r.

    One bucket underestimates a flat tail. That is fine: it only matters that the estimator is always the same.
    """
    if len(logprobs) < TOP:
        return nan
    seen = -fsum(map(mul, masses, logprobs))
    return seen if rest <= 0.0 else seen - rest * log(rest)
