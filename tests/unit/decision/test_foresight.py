"""P(right) by the question alone: plain arithmetic, and nothing where there is nothing to add up."""

import math

import pytest

from app.decision.calibrator import Fused, Logistic
from app.decision.foresight import SCORE, Foresight, Scorer, text_features
from app.decision.signals import NAMES

SIGMOID = Logistic(SCORE, mean=0.0, scale=1.0, slope=1.0, intercept=0.0)


def test_text_features_are_what_they_are_called() -> None:
    """Words by their logarithm, capitals after the first word, and whether there is a digit."""
    text = "What did Marie Curie discover in 1898?"
    assert text_features(text, ("words", "capitals", "digits")) == [math.log1p(7), 2.0, 1.0]
    assert text_features("who wrote it", ("digits", "capitals")) == [0.0, 0.0]
    assert text_features("", ("words",)) == [0.0]


def test_the_probability_is_a_weighted_sum_made_one() -> None:
    """Each weight times its feature, the embedding first, through the calibrator."""
    p0, p1 = Scorer((1.0, -2.0, 0.5), 0.25, SIGMOID), Scorer((0.0, 0.0, 1.0), 0.0, SIGMOID)
    found = Foresight("e", 2, ("words",), p0, p1).predict("one two three", [0.5, 0.25])
    z = 0.5 - 0.5 + 0.5 * math.log(4) + 0.25
    assert found == (pytest.approx(1 / (1 + math.exp(-z))), pytest.approx(4 / 5))
    assert Foresight("e", 2, ("words",), p0).predict("one", [0.5, 0.25])[1] is None


@pytest.mark.parametrize("vector", [[], [1.0], [1.0, 2.0, 3.0], [math.nan, 0.0], [math.inf, 0.0]])
def test_what_is_no_embedding_foretells_nothing(vector: list[float]) -> None:
    """A vector of another length, or with a number that is none, gives no probability rather than a made-up one."""
    assert Foresight("e", 2, (), Scorer((1.0, 1.0), 0.0, SIGMOID)).predict("question", vector) == (None, None)


def test_parts_that_do_not_fit_are_refused() -> None:
    """Weights of another number, weights that are none, features not known here, and a calibrator of other signals."""
    with pytest.raises(ValueError, match="needs 3 weights"):
        Foresight("e", 2, ("words",), Scorer((1.0, 1.0), 0.0, SIGMOID))
    with pytest.raises(ValueError, match="not known here: vibes"):
        Foresight("e", 1, ("vibes",), Scorer((1.0, 1.0), 0.0, SIGMOID))
    with pytest.raises(ValueError, match="finite"):
        Scorer((math.nan,), 0.0, SIGMOID)
    with pytest.raises(ValueError, match="nothing else"):
        Scorer((1.0,), 0.0, Fused(NAMES, (0.0,) * 3, (1.0,) * 3, (1.0,) * 3, 0.0))
