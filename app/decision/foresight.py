"""What a question says by itself, before anything is generated: P(right) with no passage and with one.

A weighted sum of the question's embedding and a few features of its text, made a probability by a calibrator of its
own. Fitting lives in `app.refit.pregate`; a test holds `predict` equal to scikit-learn's to 1e-9.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul

from app.decision.calibrator import Calibrator, signals_of

# The one signal that a scorer's calibrator reads: the weighted sum.
SCORE = "question"

TEXT_FEATURES: dict[str, Callable[[str], float]] = {
    "words": lambda text: math.log1p(len(text.split())),
    # Names, mostly: the first word is a capital anyway.
    "capitals": lambda text: float(sum(word[:1].isupper() for word in text.split()[1:])),
    "digits": lambda text: float(any(character.isdigit() for character in text)),
}


@dataclass(frozen=True, slots=True)
class Scorer:
    """One weight for each number of the embedding, then one for each text feature; the calibrator reads their sum."""

    weights: tuple[float, ...]
    intercept: float
    calibrator: Calibrator

    def __post_init__(self) -> None:
        if not all(math.isfinite(number) for number in (*self.weights, self.intercept)):
            raise ValueError("the weights of a scorer must be finite")
        if signals_of(self.calibrator) != (SCORE,):
            raise ValueError(f"a scorer's calibrator reads {SCORE!r} and nothing else")

    def predict(self, features: Sequence[float]) -> float | None:
        """P(right), or None where a feature is not finite."""
        return self.calibrator.predict({SCORE: self.intercept + sum(map(mul, self.weights, features))})


@dataclass(frozen=True, slots=True)
class Foresight:
    """P(right) by the question alone, closed-book and with one passage, and what it is computed from."""

    embedder: str
    dimension: int
    texts: tuple[str, ...]
    p0: Scorer
    p1: Scorer | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.texts if name not in TEXT_FEATURES]
        if unknown:
            raise ValueError(f"text features that are not known here: {', '.join(unknown)}")
        expected = self.dimension + len(self.texts)
        if any(len(scorer.weights) != expected for scorer in (self.p0, self.p1) if scorer is not None):
            raise ValueError(f"a scorer needs {expected} weights: one a number of the embedding, one a text feature")

    def predict(self, text: str, vector: Sequence[float]) -> tuple[float | None, float | None]:
        """P(right) with no passage and with one; None where the vector is no embedding of this embedder's."""
        if len(vector) != self.dimension:
            return None, None
        features = [*vector, *text_features(text, self.texts)]
        return self.p0.predict(features), self.p1.predict(features) if self.p1 else None


def text_features(text: str, names: Sequence[str]) -> list[float]:
    """The named features of a question's text."""
    return [TEXT_FEATURES[name](text) for name in names]
