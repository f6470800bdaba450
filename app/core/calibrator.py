"""From signals to the probability that an answer is right, as plain arithmetic on an artifact's numbers.

Fitting is in `app.offline`; tests compare each `predict` with scikit-learn's to 1e-9.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# A curved calibrator clips its signals to this many standard deviations from the mean.
REACH = 3.0


@dataclass(frozen=True, slots=True)
class Logistic:
    """Platt scaling on a standardised signal: sigma(slope (s - mean) / scale + intercept).

    The slope is negative only for a signal that is clearly inverted.
    """

    signal: str
    mean: float
    scale: float
    slope: float
    intercept: float
    method: Literal["logistic"] = "logistic"

    def __post_init__(self) -> None:
        _require_finite(self.mean, self.scale, self.slope, self.intercept)
        if self.scale <= 0.0:
            raise ValueError("a logistic calibrator needs scale > 0")

    def predict(self, signals: Mapping[str, float]) -> float | None:
        """P(right), or None if the signal is missing."""
        s = _get(signals, self.signal)
        return None if s is None else sigmoid(self.slope * (s - self.mean) / self.scale + self.intercept)


@dataclass(frozen=True, slots=True)
class Isotonic:
    """A non-decreasing curve through (x, y) knots: linear between them, flat outside."""

    signal: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    method: Literal["isotonic"] = "isotonic"

    def __post_init__(self) -> None:
        _require_finite(*self.x, *self.y)
        if not self.x or len(self.x) != len(self.y):
            raise ValueError("an isotonic calibrator needs as many y as x, and at least one")
        if any(a >= b for a, b in zip(self.x, self.x[1:], strict=False)):
            raise ValueError("isotonic knots must have increasing x")
        if any(a > b for a, b in zip(self.y, self.y[1:], strict=False)) or not 0 <= self.y[0] <= self.y[-1] <= 1:
            raise ValueError("isotonic knots must have y non-decreasing within [0, 1]")

    def predict(self, signals: Mapping[str, float]) -> float | None:
        """P(right), or None if the signal is missing."""
        s = _get(signals, self.signal)
        if s is None:
            return None
        right = bisect_right(self.x, s)
        if right == 0:
            return self.y[0]
        if right == len(self.x):
            return self.y[-1]
        x0, x1, y0, y1 = self.x[right - 1], self.x[right], self.y[right - 1], self.y[right]
        return y0 + (y1 - y0) * ((s - x0) / (x1 - x0))


@dataclass(frozen=True, slots=True)
class Temperature:
    """sigma(s / temperature + bias). Without the bias, a log-probability could not give more than 0.5."""

    signal: str
    temperature: float
    bias: float
    method: Literal["temperature"] = "temperature"

    def __post_init__(self) -> None:
        _require_finite(self.temperature, self.bias)
        if self.temperature <= 0.0:
            raise ValueError("a temperature must be positive")

    def predict(self, signals: Mapping[str, float]) -> float | None:
        """P(right), or None if the signal is missing."""
        s = _get(signals, self.signal)
        return None if s is None else sigmoid(s / self.temperature + self.bias)


@dataclass(frozen=True, slots=True)
class MinMax:
    """The raw baseline: the signal scaled to [0, 1] between its smallest and largest value. Not a probability."""

    signal: str
    low: float
    high: float
    method: Literal["minmax"] = "minmax"

    def __post_init__(self) -> None:
        _require_finite(self.low, self.high)
        if self.low >= self.high:
            raise ValueError("a min-max calibrator needs low < high")

    def predict(self, signals: Mapping[str, float]) -> float | None:
        """The position in [0, 1], or None if the signal is missing."""
        s = _get(signals, self.signal)
        return None if s is None else min(1.0, max(0.0, (s - self.low) / (self.high - self.low)))


@dataclass(frozen=True, slots=True)
class Fused:
    """Logistic on several standardised signals at once."""

    signals: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[float, ...]
    intercept: float
    method: Literal["fused"] = "fused"

    def __post_init__(self) -> None:
        _require_finite(*self.means, *self.scales, *self.weights, self.intercept)
        if not len(self.signals) == len(self.means) == len(self.scales) == len(self.weights) > 0:
            raise ValueError("a fused calibrator needs one mean, scale and weight per signal")
        if min(self.scales) <= 0.0:
            raise ValueError("scales must be positive")

    def predict(self, signals: Mapping[str, float]) -> float | None:
        """P(right), or None if a signal is missing."""
        total = self.intercept
        for name, mean, scale, weight in zip(self.signals, self.means, self.scales, self.weights, strict=True):
            s = _get(signals, name)
            if s is None:
                return None
            total += weight * (s - mean) / scale
        return sigmoid(total)


@dataclass(frozen=True, slots=True)
class Curved:
    """Fused, with the square of each signal added, so that the log-odds need not be linear in a signal.

    Standardised signals are clipped to REACH, so that the squares stay bounded on unusual answers.
    """

    signals: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[float, ...]
    curves: tuple[float, ...]
    intercept: float
    method: Literal["curved"] = "curved"

    def __post_init__(self) -> None:
        _require_finite(*self.means, *self.scales, *self.weights, *self.curves, self.intercept)
        parts = (self.means, self.scales, self.weights, self.curves)
        if not self.signals or any(len(part) != len(self.signals) for part in parts):
            raise ValueError("a curved calibrator needs one mean, scale, weight and curve per signal")
        if min(self.scales) <= 0.0:
            raise ValueError("scales must be positive")

    def predict(self, signals: Mapping[str, float]) -> float | None:
        """P(right), or None if a signal is missing."""
        total = self.intercept
        for name, mean, scale, weight, curve in zip(
            self.signals, self.means, self.scales, self.weights, self.curves, strict=True
        ):
            s = _get(signals, name)
            if s is None:
                return None
            z = min(REACH, max(-REACH, (s - mean) / scale))
            total += weight * z + curve * (z * z)
        return sigmoid(total)


Calibrator = Logistic | Isotonic | Temperature | MinMax | Fused | Curved


def sigmoid(x: float) -> float:
    """Compute 1 / (1 + e^-x) without overflow on either side."""
    if x >= 0.0:
        return 1.0 / (1.0 + math.exp(-x))
    e = math.exp(x)
    return e / (1.0 + e)


def _get(signals: Mapping[str, float], name: str) -> float | None:
    value = signals.get(name)
    return value if value is not None and math.isfinite(value) else None


def _require_finite(*numbers: float) -> None:
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("calibrator parameters must be finite")
