"""Fit calibrators, and predict with them on whole columns.

The gateway predicts with the plain arithmetic of `app.core.calibrator`. `predict_many` is the same arithmetic on numpy
columns, and agrees with scikit-learn to 1e-9.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from app.core.calibrator import (
    REACH,
    Calibrator,
    Curved,
    Fused,
    Isotonic,
    Logistic,
    MinMax,
    Temperature,
)
from app.errors import DataError
from app.offline.refit.splits import position
from app.offline.table import Floats, Labels

Method = Literal["logistic", "isotonic", "temperature", "minmax", "fused", "curved"]
METHODS: tuple[Method, ...] = get_args(Method)
# These use several signals, the others one.
FUSIONS: tuple[Method, ...] = ("fused", "curved")
FOLDS = 5
# Bounds of the temperature in standard deviations of the signal: beyond them it is practically a step or a constant.
# Without a bound, labels that a signal separates perfectly would drive it to zero.
_STEEPEST, _FLATTEST = 1e-2, 1e4
# A slope is clearly below zero if its 95 % interval is.
_CLEAR = 1.96


def fit(
    method: Method,
    names: Sequence[str],
    signals: Mapping[str, Floats],
    labels: Labels,
    weights: Floats | None = None,
) -> Calibrator:
    """Fit one method on the rows that have all of `names`: one name, or several for a fusion.

    A row with weight 2 counts as two rows. Without `weights` every row has weight 1.
    """
    weights = np.ones(len(labels)) if weights is None else weights
    if not (np.isfinite(weights) & (weights > 0.0)).all():
        raise DataError("weights must be finite and above zero: leave out such rows")
    matrix = np.column_stack([signals[name] for name in names])
    whole = np.isfinite(matrix).all(axis=1)
    matrix, target, weights = matrix[whole], labels[whole], weights[whole]
    if target.size == 0 or target.all() or not target.any():
        raise DataError(
            f"all {target.size} rows with {', '.join(names)} have the same label: collect both questions that are "
            "answered right and questions that are answered wrong"
        )
    if method == "fused":
        return _fused(tuple(names), matrix, target, weights)
    if method == "curved":
        return _curved(tuple(names), matrix, target, weights)
    return _SCALAR[method](names[0], matrix[:, 0], target, weights)


def predict_many(calibrator: Calibrator, signals: Mapping[str, Floats], n: int) -> Floats:
    """P(right) of n rows, NaN if a signal is missing: the gateway's arithmetic, in the same order."""
    missing = np.full(n, np.nan)
    with np.errstate(invalid="ignore"):  # NaN in, NaN out
        if isinstance(calibrator, Fused):
            total = np.full(n, calibrator.intercept)
            parts = zip(calibrator.signals, calibrator.means, calibrator.scales, calibrator.weights, strict=True)
            for name, mean, scale, weight in parts:
                total = total + weight * (signals.get(name, missing) - mean) / scale
            return _sigmoid(total)
        if isinstance(calibrator, Curved):
            return _bend(calibrator, signals, missing)
        s = signals.get(calibrator.signal, missing)
        if isinstance(calibrator, Logistic):
            return _sigmoid(calibrator.slope * (s - calibrator.mean) / calibrator.scale + calibrator.intercept)
        if isinstance(calibrator, Temperature):
            return _sigmoid(s / calibrator.temperature + calibrator.bias)
        if isinstance(calibrator, MinMax):
            return np.clip((s - calibrator.low) / (calibrator.high - calibrator.low), 0.0, 1.0)
        return _interpolate(calibrator, s)


def folds(labels: Labels, groups: Sequence[str]) -> NDArray[np.intp]:
    """The fold of each row: stratified, and no group in two folds.

    This is scikit-learn's StratifiedKFold on the groups in the order of a hash of their names: a table may be sorted by
    topic. A group is right if at least half of its rows are.
    """
    names = sorted(set(groups), key=lambda group: (position(group, "folds"), group))
    number_of = {group: number for number, group in enumerate(names)}
    rows = np.array([number_of[group] for group in groups], dtype=np.intp)
    strata = np.bincount(rows, weights=labels) * 2 >= np.bincount(rows)
    rarest = min(int(strata.sum()), int((~strata).sum()))
    if rarest < FOLDS:
        raise DataError(
            f"only {rarest} groups of {len(strata)} have {'right' if strata.mean() < 0.5 else 'wrong'} answers, too "
            f"few for {FOLDS} folds: label more questions"
        )
    assigned = np.empty(len(strata), dtype=np.intp)
    for number, (_, held) in enumerate(StratifiedKFold(FOLDS).split(np.zeros(len(strata)), strata)):
        assigned[held] = number
    return assigned[rows]


def out_of_fold(
    method: Method,
    names: Sequence[str],
    signals: Mapping[str, Floats],
    labels: Labels,
    fold: NDArray[np.intp],
    *,
    weights: Floats | None = None,
) -> Floats:
    """P(right) of every row from a calibrator fitted on the other folds; NaN if a signal is missing."""
    weights = np.ones(len(labels)) if weights is None else weights
    predicted = np.full(len(labels), np.nan)
    for number in range(FOLDS):
        seen, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        fitted = fit(method, names, {name: signals[name][seen] for name in names}, labels[seen], weights[seen])
        predicted[held] = predict_many(fitted, {name: signals[name][held] for name in names}, len(held))
    return predicted


def _bend(calibrator: Curved, signals: Mapping[str, Floats], missing: Floats) -> Floats:
    c, total = calibrator, np.full(len(missing), calibrator.intercept)
    for name, mean, scale, weight, curve in zip(c.signals, c.means, c.scales, c.weights, c.curves, strict=True):
        z = np.clip((signals.get(name, missing) - mean) / scale, -REACH, REACH)
        total = total + (weight * z + curve * (z * z))
    return _sigmoid(total)


def _sigmoid(x: Floats) -> Floats:
    result: Floats = expit(x)
    return result


def _interpolate(calibrator: Isotonic, s: Floats) -> Floats:
    x, y = np.array(calibrator.x), np.array(calibrator.y)
    right = np.searchsorted(x, s, side="right")
    inner = np.clip(right, 1, max(len(x) - 1, 1))
    if len(x) == 1:
        between = np.full(len(s), y[0])
    else:
        x0, x1, y0, y1 = x[inner - 1], x[inner], y[inner - 1], y[inner]
        between = y0 + (y1 - y0) * ((s - x0) / (x1 - x0))
    outer = np.where(right == 0, y[0], np.where(right == len(x), y[-1], between))
    return np.where(np.isfinite(s), outer, np.nan)


def _standardise(matrix: Floats, weights: Floats) -> tuple[Floats, Floats]:
    mean = np.average(matrix, axis=0, weights=weights)
    scale = np.sqrt(np.average((matrix - mean) ** 2, axis=0, weights=weights))
    # A constant signal has no information: with scale 1 it stays at zero. Because of rounding its deviation may be
    # tiny instead of zero.
    return mean, np.where(scale > 1e-12 * np.maximum(1.0, np.abs(mean)), scale, 1.0)


def _regress(matrix: Floats, labels: Labels, weights: Floats, *, penalty: float = 1.0) -> tuple[Floats, float]:
    """Logistic regression with an L2 penalty on the weights, not the intercept, as scikit-learn's with C = 1.

    Newton's method on these few columns finds the same optimum ten times faster, and a choice among candidates needs
    hundreds of fits. If it does not converge, scikit-learn fits.
    """
    y, design = labels.astype(np.float64), np.column_stack([matrix, np.ones(len(matrix))])
    ridge = np.diag([penalty] * matrix.shape[1] + [0.0])
    beta = np.zeros(design.shape[1])
    beta[-1] = logit(_share(labels, weights))
    for _ in range(40):
        p = expit(design @ beta)
        gradient = design.T @ (weights * (y - p)) - ridge @ beta
        information = (design.T * (weights * (p * (1.0 - p)))) @ design + ridge
        # The tiny diagonal avoids a singular matrix for a column of zeros, or for labels that are separated perfectly.
        step = np.linalg.solve(information + 1e-12 * weights.sum() * np.eye(len(beta)), gradient)
        beta = beta + step * min(1.0, 4.0 / max(float(np.abs(step).max()), 1e-300))
        if np.abs(step).max() < 1e-10 or (penalty == 0.0 and beta[0] > 1.0 / _STEEPEST):
            return beta[:-1], float(beta[-1])
    model = LogisticRegression(C=1.0 / penalty if penalty else np.inf, solver="newton-cholesky", tol=1e-10)
    model.fit(matrix, labels, sample_weight=weights)
    return model.coef_[0], float(model.intercept_[0])


def _share(labels: Labels, weights: Floats) -> float:
    """The weighted share of right labels."""
    return float(np.average(labels, weights=weights))


def _logistic(name: str, s: Floats, labels: Labels, weights: Floats) -> Logistic:
    mean, scale = _standardise(s[:, None], weights)
    z = (s[:, None] - mean) / scale
    coefficients, intercept = _regress(z, labels, weights)
    slope = float(coefficients[0])
    p = expit(slope * z[:, 0] + intercept)
    spread = weights * p * (1.0 - p)
    error = 1.0 / np.sqrt(spread @ z[:, 0] ** 2 - (spread @ z[:, 0]) ** 2 / spread.sum() + 1.0)
    if -_CLEAR * error <= slope < 0.0:
        # A higher signal should not mean a lower probability. Where that is no chance, the signal is used inverted.
        slope, intercept = 0.0, float(logit(_share(labels, weights)))
    return Logistic(name, float(mean[0]), float(scale[0]), slope, intercept)


def _fused(names: tuple[str, ...], matrix: Floats, labels: Labels, weights: Floats) -> Fused:
    mean, scale = _standardise(matrix, weights)
    coefficients, intercept = _regress((matrix - mean) / scale, labels, weights)
    return Fused(names, tuple(mean.tolist()), tuple(scale.tolist()), tuple(coefficients.tolist()), intercept)


def _curved(names: tuple[str, ...], matrix: Floats, labels: Labels, weights: Floats) -> Curved:
    mean, scale = _standardise(matrix, weights)
    z = np.clip((matrix - mean) / scale, -REACH, REACH)
    slopes, intercept = _regress(np.column_stack([z, z * z]), labels, weights)
    straight, bent = slopes[: len(names)], slopes[len(names) :]
    moments = tuple(mean.tolist()), tuple(scale.tolist())
    return Curved(names, *moments, tuple(straight.tolist()), tuple(bent.tolist()), intercept)


def _isotonic(name: str, s: Floats, labels: Labels, weights: Floats) -> Isotonic:
    model = IsotonicRegression(y_min=0.0, y_max=1.0, increasing=True, out_of_bounds="clip")
    model.fit(s, labels.astype(np.float64), sample_weight=weights)
    return Isotonic(name, tuple(model.X_thresholds_.tolist()), tuple(model.y_thresholds_.tolist()))


def _temperature(name: str, s: Floats, labels: Labels, weights: Floats) -> Temperature:
    """Maximum likelihood of sigma(s / T + b), T > 0: logistic regression without penalty, slope kept positive."""
    mean, scale = (float(value[0]) for value in _standardise(s[:, None], weights))
    z = (s - mean) / scale
    coefficients, bias = _regress(z[:, None], labels, weights, penalty=0.0)
    slope = float(coefficients[0])
    if not 1.0 / _FLATTEST <= slope <= 1.0 / _STEEPEST:
        slope = min(max(slope, 1.0 / _FLATTEST), 1.0 / _STEEPEST)
        bias = _bias_given(slope, z, labels, weights)
    return Temperature(name, scale / slope, bias - slope * mean / scale)


def _bias_given(slope: float, z: Floats, labels: Labels, weights: Floats) -> float:
    """The bias for which the mean prediction equals the mean label, by bisection."""
    low, high, share = -1e3, 1e3, _share(labels, weights)
    for _ in range(100):
        middle = 0.5 * (low + high)
        predicted = np.average(expit(slope * z + middle), weights=weights)
        low, high = (middle, high) if predicted < share else (low, middle)
    return 0.5 * (low + high)


def _minmax(name: str, s: Floats, _labels: Labels, _weights: Floats) -> MinMax:
    low, high = float(s.min()), float(s.max())
    return MinMax(name, low, high if high > low else low + 1.0)


_SCALAR: dict[Method, Callable[[str, Floats, Labels, Floats], Calibrator]] = {
    "logistic": _logistic,
    "isotonic": _isotonic,
    "temperature": _temperature,
    "minmax": _minmax,
}
