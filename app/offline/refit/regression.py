"""Logistic regression on targets in [0, 1]: on evidence with a ridge, and on a few log-odds with shares above 0."""

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from app.offline.table import Floats

# 1 / C of the logistic model.
_RIDGE = 10.0
# Steps of the regression, and the largest change of a weight at which it has converged.
_STEPS, _TOLERANCE = 200, 1e-10


def regress(
    design: Floats, target: Floats, weights: Floats, start: Floats | None, information: Floats | None = None
) -> tuple[Floats, Floats | None]:
    """Logistic regression on soft targets by Newton's method; the last column is the intercept, without penalty.

    A soft target is a right row of weight `target` and a wrong one of the rest, which is what scikit-learn would be
    given; without copies of rows it takes half the time. Returns the weights and the information matrix, from which
    a regression on similar rows or targets may start: it is computed again only if steps shrink slowly.
    """
    ridge = np.full(design.shape[1], _RIDGE)
    ridge[-1] = 0.0

    def loss(beta: Floats, z: Floats) -> float:
        return float(weights @ (np.logaddexp(0.0, z) - target * z) + 0.5 * ridge @ beta**2)

    beta, before = np.zeros(design.shape[1]) if start is None else start, np.inf
    z = design @ beta
    now = loss(beta, z)
    for _ in range(_STEPS):
        p = expit(z)
        if information is None:
            # The tiny diagonal avoids a singular matrix where every weight p (1 - p) is practically zero.
            tiny = 1e-12 * len(target)
            information = (design.T * (weights * p * (1.0 - p))) @ design + np.diag(ridge + tiny)
        step = np.linalg.solve(information, design.T @ (weights * (target - p)) - ridge * beta)
        largest = float(np.abs(step).max())
        if largest < _TOLERANCE:
            break
        z_step, size = design @ step, 1.0
        # Far from the solution a whole step may be too long.
        while (then := loss(beta + size * step, z + size * z_step)) > now + 1e-9 and size > 1e-6:
            size /= 2.0
        beta, z, now = beta + size * step, z + size * z_step, then
        if largest > 0.3 * before or size < 1.0:
            information = None
        before = largest
    return beta, information


def fit_shares(parts: Floats, target: Floats, weights: Floats, *, toward: float, ridge: float) -> tuple[float, Floats]:
    """The bias and the shares, at least 0, of sigma(bias + parts @ shares); the ridge draws each share to `toward`."""

    def loss(w: Floats) -> tuple[float, Floats]:
        z = w[0] + parts @ w[1:]
        # The negative log-likelihood of a soft target: log(1 + e^z) - target z.
        value = weights @ (np.logaddexp(0.0, z) - target * z) + ridge * ((w[1:] - toward) ** 2).sum()
        slope = weights * (expit(z) - target)
        return float(value), np.concatenate([[slope.sum()], parts.T @ slope + 2.0 * ridge * (w[1:] - toward)])

    width = parts.shape[1]
    start = np.array([0.0] + [toward] * width)
    bounds = [(None, None)] + [(0.0, None)] * width
    found = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"ftol": 1e-13, "gtol": 1e-7})
    return float(found.x[0]), found.x[1:]
