"""From embedded questions and labels to P(right) by the question alone: ridge logistic regression, then calibration.

Folds are drawn by a hash of the group, as the splits are: a table is often sorted by topic, and folds in row order
would ask of each topic what the others say about it, which no new question of the same traffic does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from app.decision.foresight import SCORE, TEXT_FEATURES, Foresight, Scorer, text_features
from app.errors import DataError
from app.refit.choose import choose_calibrator
from app.refit.fit import FOLDS, Floats, Labels, Method, folds, predict_many
from app.refit.split import Units, units
from app.refit.table import Asked, Outcomes

PENALTIES = (3000.0, 1000.0, 300.0, 100.0, 30.0)
# Hundreds of weights learn little more from more questions than these, and take their time.
_MOST_ROWS = 8_000
_METHODS: tuple[Method, ...] = ("logistic", "isotonic")


@dataclass(frozen=True, eq=False, slots=True)
class Scored:
    """A scorer, its out-of-fold probabilities on train, and what they gain on the base rate, in standard errors."""

    scorer: Scorer
    penalty: float
    out_of_fold: Floats
    brier: float
    gain: float


def embedded(questions: list[str], vectors: NDArray[np.float64], *, embedder: str, embed_ms: float = 0.0) -> Asked:
    """What the questions of a table say by themselves, from their vectors and their texts."""
    texts = tuple(TEXT_FEATURES)
    features = np.column_stack([vectors, np.array([text_features(question, texts) for question in questions])])
    return Asked(embedder, vectors.shape[1], texts, features, embed_ms)


def fit_foresight(train: Outcomes, say: Callable[[str], None]) -> tuple[Foresight | None, dict[str, Scored]]:
    """Fit p0 and p1 by the question alone; None where they tell no more than the base rate, which is said."""
    asked = train.asked
    if asked is None:
        raise DataError("the questions were not embedded, so nothing can be foreseen from them")
    scored: dict[str, Scored] = {}
    for name, k in (("p0", 0), ("p1", 1)):
        try:
            found = fit_scorer(asked, train.correct[k], units(train, salt="order"))
        except DataError as error:
            say(f"{name} by the question: left out, {error}")
            continue
        if found.gain < 1.0:
            say(f"{name} by the question: left out, on train it tells no more than the base rate")
        else:
            scored[name] = found
    if "p0" not in scored:
        return None, {}
    p1 = scored["p1"].scorer if "p1" in scored else None
    return Foresight(asked.embedder, asked.dimension, asked.texts, scored["p0"].scorer, p1), scored


def fit_scorer(asked: Asked, labels: Labels, grouping: Units) -> Scored:
    """Choose the penalty and the calibration out-of-fold, then fit on all rows."""
    # Rows in hashed order of their groups: folds in row order are then folds by hash.
    order = np.argsort(grouping.codes, kind="stable")
    features, target = asked.features[order], labels[order]
    ordered = Units(grouping.codes[order], grouping.sizes)
    fold = folds(target, ordered.codes)
    scores = {penalty: _out_of_fold(features, asked.dimension, target, fold, penalty) for penalty in PENALTIES}
    means = {penalty: ordered.means((expit(z) - target) ** 2).mean() for penalty, z in scores.items()}
    penalty = min(means, key=lambda each: means[each])
    chosen = choose_calibrator({SCORE: scores[penalty]}, target, ordered, (SCORE,), _METHODS)
    weights, intercept = _fit(features, asked.dimension, target, penalty)
    out_of_fold = np.empty(len(labels))
    out_of_fold[order] = chosen.out_of_fold
    gain = gain_on_base_rate(out_of_fold, labels, grouping)
    return Scored(Scorer(tuple(weights.tolist()), intercept, chosen.calibrator), penalty, out_of_fold, *gain)


def gain_on_base_rate(p: Floats, labels: Labels, grouping: Units) -> tuple[float, float]:
    """The Brier score, and by how many standard errors it is better than saying the base rate every time."""
    base = float(labels @ grouping.weights)
    loss, constant = (grouping.means((each - labels) ** 2) for each in (p, np.full(len(labels), base)))
    gap = constant - loss
    return float(loss.mean()), float(gap.mean() * np.sqrt(len(gap)) / max(float(gap.std()), 1e-12))


def foretell(foresight: Foresight, asked: Asked) -> tuple[Floats, Floats | None]:
    """P(right) of many questions at once, closed-book and with one passage: the served arithmetic."""
    return _predict(foresight.p0, asked), _predict(foresight.p1, asked) if foresight.p1 else None


def _predict(scorer: Scorer, asked: Asked) -> Floats:
    score = asked.features @ np.array(scorer.weights) + scorer.intercept
    return predict_many(scorer.calibrator, {SCORE: score}, len(score))


def _out_of_fold(features: Floats, dimension: int, labels: Labels, fold: NDArray[np.intp], penalty: float) -> Floats:
    score = np.empty(len(labels))
    for number in range(FOLDS):
        seen, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        weights, intercept = _fit(features[seen], dimension, labels[seen], penalty)
        score[held] = features[held] @ weights + intercept
    return score


def _fit(features: Floats, dimension: int, labels: Labels, penalty: float) -> tuple[Floats, float]:
    """Weights on the features as they are: an embedding has one scale for all its numbers, a text feature its own."""
    few = _thin(len(labels))
    x = features[few]
    mean, scale = x.mean(axis=0), np.empty(x.shape[1])
    scale[:dimension] = np.sqrt(((x - mean)[:, :dimension] ** 2).mean())
    scale[dimension:] = x[:, dimension:].std(axis=0)
    scale = np.where(scale > 1e-12, scale, 1.0)
    model = LogisticRegression(C=1.0 / penalty, tol=1e-8, max_iter=10_000).fit((x - mean) / scale, labels[few])
    weights = model.coef_[0] / scale
    return weights, float(model.intercept_[0] - weights @ mean)


def _thin(n: int) -> NDArray[np.intp]:
    return np.linspace(0, n - 1, min(n, _MOST_ROWS)).round().astype(np.intp)
