"""The scope test on synthetic questions: its false alarms, what it detects, and floors of small tables."""

import numpy as np
import pytest

from app.core.corpus_stats import CorpusStats
from app.core.evidence import COSINE, COVERAGE, NEARNESS, SCRIPT
from app.offline.refit.scope import (
    MAX_CENTROIDS,
    alarms,
    centroids_of,
    exact_interval,
    fit_scope,
    floor_of,
    nearness_of,
    one_per_group,
    realised,
)

WIDTH = 12
LATIN, HIRAGANA = f"{SCRIPT}LATIN", f"{SCRIPT}HIRAGANA"


def vectors_of(rng: np.random.Generator, n: int, centres: np.ndarray) -> np.ndarray:
    """Unit vectors around some topics."""
    drawn = centres[rng.integers(0, len(centres), n)] + 0.2 * rng.normal(size=(n, WIDTH))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def questions_of(n: int, seed: int) -> list[str]:
    return [f"question {seed} {row}" for row in range(n)]


def test_false_alarms_keep_their_rate() -> None:
    """Over many draws of train, three tests together alarm on at most alpha of new questions from the same source."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, WIDTH))
    rates = []
    for seed in range(12):
        n = 200
        vectors, new = vectors_of(rng, n, centres), vectors_of(rng, 2_000, centres)
        columns = {COSINE: rng.normal(size=n), COVERAGE: rng.random(n)}
        fitted = fit_scope(questions_of(n, seed), columns, vectors, [str(row) for row in range(n)], alpha=0.1)
        assert set(fitted.scope.floors) == {NEARNESS, COSINE, COVERAGE}
        other = {
            COSINE: rng.normal(size=2_000),
            COVERAGE: rng.random(2_000),
            NEARNESS: nearness_of(new, fitted.centroids),
        }
        names = [str(row) for row in range(2_000)]
        found = realised(alarms(fitted.scope, other, 2_000), names, names, [""] * 2_000)
        rates.append(found.false_alarms.value)
    assert 0.04 < np.mean(rates) < 0.11


def test_questions_far_from_the_collected_ones_are_detected() -> None:
    """Detection is reported for each kind of out-of-corpus question, and a new script is always an alarm."""
    rng = np.random.default_rng(1)
    near, far = 2.0 * np.eye(WIDTH)[:2], -2.0 * np.eye(WIDTH)[:2]
    n = 300
    latin = {LATIN: np.ones(n)}
    fitted = fit_scope(questions_of(n, 0), latin, vectors_of(rng, n, near), [str(row) for row in range(n)])
    vectors = np.vstack([vectors_of(rng, 50, near), vectors_of(rng, 20, far), vectors_of(rng, 5, near)])
    kinds = [""] * 50 + ["other-topic"] * 20 + ["language"] * 5
    columns = {NEARNESS: nearness_of(vectors, fitted.centroids), HIRAGANA: np.array([np.nan] * 70 + [1.0] * 5)}
    names = [str(row) for row in range(75)]
    found = realised(alarms(fitted.scope, columns, 75), names, names, kinds)
    assert found.detected["other-topic"].value == 1.0
    assert found.detected["language"].value == 1.0
    assert found.false_alarms.n == 50
    assert fitted.scope.scripts == ("LATIN",)
    assert "300" in fitted.scope.covers


def test_out_of_corpus_rows_do_not_fill_the_tail() -> None:
    """Flagged rows change no floor and no script, and are not counted as covered."""
    rng = np.random.default_rng(2)
    cosine = rng.normal(size=300)
    groups, texts = [str(row) for row in range(320)], questions_of(320, 0)
    outside = np.arange(320) >= 300
    mixed = {COSINE: np.concatenate([cosine, np.full(20, -9.0)]), HIRAGANA: np.where(outside, 1.0, np.nan)}
    flagged = fit_scope(texts, mixed, None, groups, out_of_corpus=outside)
    clean = fit_scope(texts[:300], {COSINE: cosine}, None, groups[:300])
    assert flagged.scope == clean.scope
    assert flagged.scope.nearness_alone is None


def test_a_group_counts_once_and_nearness_is_measured_outside_it() -> None:
    """Copies of a question in its group do not make it look near."""
    rng = np.random.default_rng(3)
    vectors = vectors_of(rng, 200, np.eye(WIDTH)[:3])
    twice = np.vstack([vectors, vectors])
    groups = [str(row % 200) for row in range(400)]
    texts = questions_of(200, 0) * 2
    assert len(one_per_group(texts, groups)) == 200
    fitted = fit_scope(texts, {}, twice, groups, alpha=0.1)
    single = fit_scope(texts[:200], {}, vectors, groups[:200], alpha=0.1)
    assert fitted.scope.floors == pytest.approx(single.scope.floors, abs=1e-5)
    assert fitted.scope.floors[NEARNESS] < 0.99


@pytest.mark.parametrize(("n", "expected"), [(148, None), (149, 0.0), (299, 1.0), (300, 1.0)])
def test_floors_are_order_statistics(n: int, expected: float | None) -> None:
    """The floor(rate (n + 1))-th smallest of n values; none if that is the zeroth."""
    values = np.random.default_rng(0).permutation(n).astype(float)
    for column in (values, np.append(values, np.nan)):
        found = floor_of(column, 0.02 / 3)
        # Rounded down, by far less than values differ.
        assert (found is None) if expected is None else (found is not None and expected - 1e-5 < found <= expected)


def test_a_small_table_has_no_floors() -> None:
    """Too few questions for the rate: only the script can alarm."""
    fitted = fit_scope(["one", "two"], {COSINE: np.zeros(2)}, np.eye(2, WIDTH, dtype=np.float32), ["a", "b"])
    assert fitted.scope.floors == {}
    assert fitted.scope.nearness_alone is None
    empty = fit_scope([], {}, np.empty((0, WIDTH), np.float32), [])
    assert empty.centroids.size == 0
    assert np.isnan(nearness_of(np.eye(2, dtype=np.float32), empty.centroids)).all()


def test_centroids_have_unit_length_and_survive_the_file() -> None:
    """At most so many, deterministic, and the gateway measures the same nearness to the stored ones."""
    rng = np.random.default_rng(4)
    vectors = vectors_of(rng, 600, rng.normal(size=(5, WIDTH)))
    centroids = centroids_of(vectors)
    assert centroids.shape == (MAX_CENTROIDS, WIDTH)
    np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1.0, atol=2e-3)
    np.testing.assert_array_equal(centroids, centroids_of(vectors))
    stored = CorpusStats.from_bytes(CorpusStats(0, {}, centroids).to_bytes())
    assert stored.nearness(vectors[0].tolist()) == pytest.approx(nearness_of(vectors, centroids)[0], abs=1e-6)


def test_the_exact_interval_is_clopper_and_pearson_s() -> None:
    """Reference values: 0 of 10, 1 of 20 and 10 of 10 at 95 %."""
    expected = {(0, 10): (0.0, 0.3085), (1, 20): (0.0013, 0.2487), (10, 10): (0.6915, 1.0)}
    for (successes, trials), (low, high) in expected.items():
        found = exact_interval(successes, trials)
        assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert exact_interval(0, 0).value is None


def test_a_value_that_a_table_rounds_up_is_not_below_its_own_floor() -> None:
    """Many questions share a coverage: rounding it in the table must not put all of them out of scope."""
    measured = 0.00598298
    found = floor_of(np.full(400, round(measured, 7)), 0.02)
    assert found is not None
    assert measured - 2e-6 < found <= measured
