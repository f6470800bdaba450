"""Calibration compared: methods on one signal, and how many labels each needs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import DataError
from app.refit.eval_study import Study
from app.refit.fit import FUSIONS, METHODS, Floats, Method, fit, out_of_fold, predict_many
from app.refit.metrics import ece, losses, quality

SIZES = (50, 100, 200, 400, 800, 1_600, 3_200)
REPEATS = 20
_HELD_OUT = 0.3
_SIZED: tuple[Method, ...] = ("logistic", "isotonic")


def methods(study: Study, main: str, present: tuple[str, ...]) -> dict[str, Any]:
    """AUROC, ECE, Brier and NLL of every method, out-of-fold on the main signal, or on all of them for a fusion."""
    found: dict[str, Any] = {"signal": main}
    for method in METHODS:
        names = present if method in FUSIONS else (main,)
        if method in FUSIONS and len(present) < 2:
            continue
        try:
            p = out_of_fold(method, names, study.outcomes.signals[0], study.labels, study.fold)
        except DataError:
            continue  # a fold without both kinds of answers
        found[method] = quality(p, study.labels, study.draws)
    return found


def sizes(study: Study, main: str) -> dict[str, Any]:
    """ECE and Brier score on 30 % of the groups, when so many of the others are fitted on.

    Mean and standard deviation over twenty draws of both: what the luck of the draw does.
    """
    code, count = study.units.codes, study.units.count
    rng = np.random.default_rng(0)
    drawn = [rng.permutation(count)[code] for _ in range(REPEATS)]
    pool = int(count * (1.0 - _HELD_OUT))
    table = []
    for size in (*(size for size in SIZES if size < pool), pool):
        for method in _SIZED:
            parted = ((np.flatnonzero(place < size), np.flatnonzero(place >= pool)) for place in drawn)
            scores = [_scores(study, (method, main), rows, held) for rows, held in parted]
            known = np.array([score for score in scores if score is not None])
            if len(known):
                ece_, brier = _spread(known[:, 0]), _spread(known[:, 1])
                table.append({"groups": size, "method": method, "ece": ece_, "brier": brier})
    return {"signal": main, "held_out_groups": count - pool, "repeats": REPEATS, "rows": table}


def _scores(
    study: Study, source: tuple[Method, str], rows: NDArray[np.intp], held: NDArray[np.intp]
) -> tuple[float, float] | None:
    method, main = source
    column = study.outcomes.signals[0][main]
    try:
        fitted = fit(method, (main,), {main: column[rows]}, study.labels[rows])
    except DataError:
        return None  # this draw has answers of one kind only
    p, labels = predict_many(fitted, {main: column[held]}, len(held)), study.labels[held]
    weights = study.weights[held] * np.isfinite(p)
    brier = np.where(np.isfinite(p), losses(p, labels)["brier"], 0.0)
    return ece(p, labels, study.weights[held]), float(weights @ brier / weights.sum())


def _spread(values: Floats) -> dict[str, float]:
    return {"mean": float(values.mean()), "deviation": float(values.std())}
