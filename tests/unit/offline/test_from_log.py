"""Single-action rows: their weights by hand, the effect of clipping, and which calibrator uses which row."""

import numpy as np
import pytest

from app.offline.from_log import CLIP
from app.offline.refit.fit import fit
from app.offline.single_actions import SingleAction, effective_size, weigh


def row(group: str, k: int, chance: float, *, right: bool = True, s: float = 0.0) -> SingleAction:
    return SingleAction(group, k, chance, right, {"search.cosine": 0.5, f"k{k}.tokens": 3.0, "s": s})


def test_weights_and_effective_size_by_hand() -> None:
    """Chances 1, 1/2, 1/4 and 1/10 clipped at 5 weigh 1, 2, 4 and 5: effective size 144/46, a quarter clipped."""
    chances = (1.0, 0.5, 0.25, 0.1)
    rows = [row(f"q{i}", 1, chance, right=i % 2 == 0, s=float(i)) for i, chance in enumerate(chances)]
    weighted, sizes = weigh(rows, 5.0)
    assert weighted.keys() == sizes.keys() == {("search+k1", 1)}
    assert (sizes["search+k1", 1].rows, sizes["search+k1", 1].clipped) == (4, 0.25)
    assert sizes["search+k1", 1].effective == pytest.approx(144 / 46)
    np.testing.assert_allclose(weighted["search+k1", 1].weights / weighted["search+k1", 1].weights[0], [1, 2, 4, 5])
    assert weighted["search+k1", 1].weights.sum() == pytest.approx(144 / 46)
    assert weighted["search+k1", 1].columns["s"].tolist() == [0, 1, 2, 3]
    assert weighted["search+k1", 1].right.tolist() == [True, False, True, False]


def test_the_effective_size_of_equal_weights_is_their_number() -> None:
    """Kish's size does not depend on the scale of the weights, and is zero without rows."""
    assert effective_size(np.full(7, 3.5)) == pytest.approx(7)
    assert effective_size(np.array([1e6, 1.0, 1.0])) == pytest.approx(1.0, abs=1e-4)
    assert effective_size(np.empty(0)) == 0.0


def test_a_question_has_weight_one_however_often_it_was_asked() -> None:
    """Asked four times, whatever was done each time, a question's rows share one weight."""
    weighted, _ = weigh([row("once", 0, 0.5), *(row("often", k, 0.5) for k in (0, 0, 1, 5))], CLIP)
    np.testing.assert_allclose(weighted["search+k0", 0].weights / weighted["search+k0", 0].weights[0], [1, 0.25, 0.25])


def test_rows_are_weighted_by_k() -> None:
    """Each calibrator gets the rows with its own number of passages."""
    weighted, sizes = weigh([row(f"q{i}", k, 0.5, s=float(i)) for i, k in enumerate((0, 1, 5, 5))], CLIP)
    assert {k: one.rows for (_, k), one in sizes.items()} == {0: 1, 1: 1, 5: 2}
    assert weighted["search+k5", 5].columns["s"].tolist() == [2, 3]


def test_no_rows_give_no_weights() -> None:
    """A log without random actions adds nothing to any calibrator."""
    assert weigh([], CLIP) == ({}, {})


def test_clipping_bounds_the_variance() -> None:
    """Over many logs the clipped estimate varies less, and is between the unweighted and the unbiased one.

    Nine questions in ten read one passage anyway, and 0.9 of those are right; the tenth does so with chance 0.02, and
    0.3 are right: 0.84 in all. The signal is constant, so the fit is the weighted share.
    """
    rng = np.random.default_rng(0)
    found: dict[float, list[float]] = {1.0: [], 10.0: [], 1e9: []}
    for _ in range(200):
        common = rng.random(100) < 0.9
        chance = np.where(common, 1.0, 0.02)
        right = rng.random(100) < np.where(common, 0.9, 0.3)
        seen = np.flatnonzero(rng.random(100) < chance).tolist()
        for clip, estimates in found.items():
            rows = [row(str(i), 1, float(chance[i]), right=bool(right[i])) for i in seen]
            extra = weigh(rows, clip)[0]["search+k1", 1]
            fitted = fit("logistic", ("s",), extra.columns, extra.right, extra.weights)
            estimates.append(fitted.predict({"s": 0.0}) or 0.0)
    spread = {clip: float(np.std(estimates)) for clip, estimates in found.items()}
    mean = {clip: float(np.mean(estimates)) for clip, estimates in found.items()}
    assert spread[10.0] < 0.6 * spread[1e9], spread
    assert mean[1.0] > mean[10.0] > mean[1e9], mean
    assert mean[1e9] == pytest.approx(0.84, abs=4 * spread[1e9] / 200**0.5 + 0.02)
