"""Heads and corpus statistics: arithmetic by hand, explanations, and files that name their content."""

import json
import math

import numpy as np
import pytest

from app.core.corpus_stats import NO_STATS, CorpusStats
from app.core.heads import MAX_LOGIT, Blend, Trees
from app.errors import ArtifactSchemaError
from tests.fakes.artifacts import a_constant

# One split on the second feature: at most 0.5, and missing values, go left.
TREES = Trees(
    roots=(0, 3),
    feature=(1, -1, -1, -1),
    threshold=(0.5, 0.0, 0.0, 0.0),
    left=(1, 0, 0, 0),
    right=(2, 0, 0, 0),
    missing_left=(True, False, False, False),
    value=(0.25, -1.0, 2.0, 0.5),
)
HEAD = Blend(
    features=("a", "b"),
    required=("a",),
    means=(1.0, 0.0),
    scales=(2.0, 1.0),
    weights=(3.0, 1.0),
    absent=(0.0, -0.5),
    intercept=0.25,
    trees=TREES,
    bias=0.125,
    linear_share=0.5,
    tree_share=2.0,
)


def sigma(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


@pytest.mark.parametrize(
    ("given", "logit"),
    [
        ({"a": 3.0, "b": 1.0}, 0.125 + 0.5 * (0.25 + 3.0 + 1.0) + 2.0 * (2.0 + 0.5)),
        ({"a": 3.0, "b": 0.5}, 0.125 + 0.5 * (0.25 + 3.0 + 0.5) + 2.0 * (-1.0 + 0.5)),
        ({"a": 1.0}, 0.125 + 0.5 * (0.25 - 0.5) + 2.0 * (-1.0 + 0.5)),
        ({"a": 999.0, "b": 1.0}, 0.125 + 0.5 * MAX_LOGIT + 2.0 * 2.5),
    ],
)
def test_a_blend_is_plain_arithmetic(given: dict[str, float], logit: float) -> None:
    """Standardised linear part, trees with missing values, each clipped, then mixed."""
    assert HEAD.predict(given) == pytest.approx(sigma(logit), abs=1e-12)


def test_no_prediction_without_required_evidence() -> None:
    """A default would look calibrated."""
    assert HEAD.predict({"b": 1.0}) is None


def test_what_moved_a_prediction_most() -> None:
    """The linear part by weight times standardised value, trees by the change of the mean along the path."""
    assert HEAD.explain({"a": 3.0, "b": 1.0}) == (("b", 2.0 * 1.75 + 0.5), ("a", 1.5))
    assert HEAD.explain({"a": 1.0}, most=1) == (("b", 2.0 * -1.25 - 0.25),)
    assert a_constant(0.75).explain({}) == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"means": (1.0,)}, "per feature"),
        ({"scales": (0.0, 1.0)}, "positive"),
        ({"tree_share": -1.0}, "negative"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, object], message: str) -> None:
    """A file that was edited by hand fails when it is read."""
    with pytest.raises(ValueError, match=message):
        Blend(**({name: getattr(HEAD, name) for name in HEAD.__slots__} | changes))  # type: ignore[arg-type]


def test_statistics_survive_their_file() -> None:
    """Equal statistics have equal bytes, whose hash names them."""
    centroids = np.array([[1.0, 0.0], [0.6, 0.8]], np.float32)
    stats = CorpusStats(3, {"b": 2, "a": 3}, centroids)
    again = CorpusStats.from_bytes(stats.to_bytes())
    assert (again.passages, again.counts, again.digest) == (3, {"a": 3, "b": 2}, stats.digest)
    assert again.nearness([0.0, 1.0]) == pytest.approx(0.8, abs=1e-3)
    assert CorpusStats.from_bytes(NO_STATS.to_bytes()).nearness([1.0]) is None
    assert stats.nearness([1.0]) is None
    assert stats.digest != NO_STATS.digest


@pytest.mark.parametrize("content", [b"", b"{}", json.dumps({"passages": 1, "counts": 3}).encode()])
def test_other_files_are_no_statistics(content: bytes) -> None:
    """The message says what the file is not."""
    with pytest.raises(ArtifactSchemaError, match="not a file of corpus statistics"):
        CorpusStats.from_bytes(content)
