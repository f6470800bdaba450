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


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One answer token: its own log-probability, and those of the most likely alternatives, best first."""

    logprob: float
    top: tuple[float, ...] = ()


def extract(tokens: Sequence[TokenLogprobs]) -> dict[str, float]:
    """Compute every signal on the whole answer and on its first token.

    A signal that cannot be computed (no token, a NaN, no alternatives) is absent: a default would look calibrated.
    """
    by_token = (
        [_clamp(token.logprob) for token in tokens],
        [-_entropy(token.top) for token in tokens],
        [_margin(token.top) for token in tokens],
    )
    found = [*map(_mean, by_token), *(values[0] if values else nan for values in by_token)]
    return {name: value for name, value in zip(ALL_NAMES, found, strict=True) if isfinite(value)}


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values) if values else nan


def _clamp(logprob: float) -> float:
    # min and max would silently replace a NaN with a bound.
    if LOGPROB_FLOOR <= logprob <= 0.0 or isnan(logprob):
        return logprob
    return max(LOGPROB_FLOOR, min(0.0, logprob))


def _entropy(top: Sequence[float]) -> float:
    """Entropy in nats of the top 20 alternatives, with the rest as one bucket of mass r: H20 - r ln r.

    One bucket underestimates a flat tail. That is fine: it only matters that the estimator is always the same.
    """
    if len(top) < TOP:
        return nan
    logprobs = top[:TOP]
    # Usually nothing needs clamping, and checking that first is cheaper than clamping each value.
    if not (min(logprobs) >= LOGPROB_FLOOR and max(logprobs) <= 0.0):
        logprobs = [_clamp(logprob) for logprob in logprobs]
    masses = [*map(exp, logprobs)]
    rest = 1.0 - fsum(masses)
    seen = -fsum(map(mul, masses, logprobs))
    return seen if rest <= 0.0 else seen - rest * log(rest)


def _margin(top: Sequence[float]) -> float:
    return _clamp(top[0]) - _clamp(top[1]) if len(top) > 1 else nan
