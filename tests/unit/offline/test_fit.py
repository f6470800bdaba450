"""Served arithmetic, the same on columns, and scikit-learn agree, with weights; extra rows are never judged."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from app.core.calibrator import REACH, Logistic
from app.errors import DataError
from app.offline.refit.fit import FUSIONS, METHODS, Method, fit, folds, out_of_fold, predict_many
from app.offline.refit.splits import position

Floats = NDArray[np.float64]
Table = tuple[dict[str, Floats], NDArray[np.bool_], Floats]
NAMES = ("seq_logprob", "neg_entropy", "margin")


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Three signals of any scale with or without ties, labels of both kinds, and weights of very different size."""
    n = draw(st.integers(12, 120))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale, shift = draw(st.sampled_from([1e-3, 1.0, 50.0])), draw(st.sampled_from([-20.0, 0.0, 5.0]))
    base = rng.normal(size=n).round(draw(st.sampled_from([1, 9])))
    labels = rng.random(n) < expit(draw(st.sampled_from([-1.0, 0.0, 1.0, 4.0])) * base)
    labels[:2] = [True, False]
    signals = {
        name: shift + scale * (base + noise * rng.normal(size=n))
        for name, noise in zip(NAMES, (0.0, 0.5, 1.0), strict=True)
    }
    return signals, labels, draw(st.sampled_from([1.0, 0.1, 20.0])) * rng.lognormal(0.0, 1.0, n)


def names_for(method: Method) -> tuple[str, ...]:
    return NAMES if method in FUSIONS else NAMES[:1]


@given(tables(), st.sampled_from(METHODS))
def test_columns_and_scalars_agree(table: Table, method: Method) -> None:
    """Predicting a column is predicting each of its rows, far outside the fitted range too."""
    signals, labels, weights = table
    calibrator = fit(method, names_for(method), signals, labels, weights)
    probe = {
        name: np.concatenate([values, [values.min() - 9.0, values.max() + 9.0]]) for name, values in signals.items()
    }
    many = predict_many(calibrator, probe, len(labels) + 2)
    one = [calibrator.predict({name: float(probe[name][i]) for name in NAMES}) for i in range(len(many))]
    np.testing.assert_allclose(many, np.array(one, dtype=float), rtol=0, atol=1e-12)
    assert ((many >= 0) & (many <= 1)).all()


def test_curved_follows_what_no_straight_line_can() -> None:
    """Where both ends of a signal are safe and its middle is not, only the squares see it."""
    rng = np.random.default_rng(5)
    s = rng.normal(size=(4000, 2))
    labels = rng.random(4000) < 1.0 / (1.0 + np.exp(-(s[:, 0] ** 2 - 1.0)))
    signals = {"a": s[:, 0], "b": s[:, 1]}
    straight, bent = (predict_many(fit(m, ("a", "b"), signals, labels), signals, 4000) for m in FUSIONS)
    assert np.mean((bent - labels) ** 2) < np.mean((straight - labels) ** 2) - 0.02


def test_perfectly_separated_labels_give_finite_calibrators() -> None:
    """A signal that separates right from wrong, either way round, breaks no method."""
    s = np.arange(20.0)
    for labels in (s > 9, s <= 9):
        for method in METHODS[:4]:
            predicted = predict_many(fit(method, ("s",), {"s": s}, labels), {"s": s}, 20)
            assert np.isfinite(predicted).all()
            # Only the logistic one uses a signal that is clearly inverted.
            falls = method == "logistic" and labels[0]
            assert (np.diff(predicted) * (-1 if falls else 1) >= 0).all()


def test_a_constant_signal_gives_the_base_rate() -> None:
    """With a constant signal every calibrator predicts the share of right labels."""
    labels = np.arange(20) < 5
    for method in ("logistic", "temperature", "isotonic"):
        predicted = predict_many(fit(method, ("s",), {"s": np.full(20, 0.3)}, labels), {"s": np.full(20, 0.3)}, 20)
        np.testing.assert_allclose(predicted, 0.25, atol=1e-6)


def test_missing_signals_are_left_out_and_stay_missing() -> None:
    """A NaN takes no part in the fit, and its prediction is NaN where the scalar one is None."""
    rng = np.random.default_rng(0)
    s = rng.normal(size=50)
    labels = s + rng.normal(size=50) > 0
    holed = np.concatenate([s, [np.nan] * 5])
    for method in METHODS[:4]:
        calibrator = fit(method, ("s",), {"s": holed}, np.concatenate([labels, [True] * 5]))
        assert calibrator == fit(method, ("s",), {"s": s}, labels)
        predicted = predict_many(calibrator, {"s": holed}, 55)
        assert np.isnan(predicted[50:]).all()
        assert np.isfinite(predicted[:50]).all()
        assert np.isnan(predict_many(calibrator, {}, 3)).all()
        assert calibrator.predict({}) is None


def test_one_class_is_refused_with_its_remedy() -> None:
    """All right, all wrong, or no row at all cannot be fitted."""
    for labels in (np.ones(9, dtype=bool), np.zeros(9, dtype=bool)):
        with pytest.raises(DataError, match="same label"):
            fit("logistic", ("s",), {"s": np.arange(9.0)}, labels)
    with pytest.raises(DataError, match="same label"):
        fit("isotonic", ("s",), {"s": np.full(9, np.nan)}, np.arange(9) > 4)


def names(n: int) -> list[str]:
    return [f"g{number}" for number in range(n)]


def test_folds_are_scikit_learns_in_the_order_of_a_hash() -> None:
    """Stratified, and the same whatever the order of rows: a table sorted by topic has every topic in every fold."""
    labels = np.random.default_rng(1).random(103) < 0.3
    order = sorted(range(103), key=lambda row: position(f"g{row}", "folds"))
    expected = np.empty(103, dtype=int)
    for number, (_, held) in enumerate(StratifiedKFold(5).split(np.zeros(103), labels[order])):
        expected[np.array(order)[held]] = number
    np.testing.assert_array_equal(folds(labels, names(103)), expected)
    np.testing.assert_array_equal(folds(labels[::-1], names(103)[::-1]), expected[::-1])
    topics = np.arange(103) // 35
    assert all(set(expected[topics == topic]) == set(range(5)) for topic in range(3))


def test_a_clearly_inverted_signal_is_used_with_its_sign() -> None:
    """A slope below zero by chance becomes zero; one that is no chance stays."""
    rng = np.random.default_rng(3)
    s = rng.normal(size=400)
    inverted = fit("logistic", ("s",), {"s": s}, rng.random(400) < 1 / (1 + np.exp(2 * s)))
    assert isinstance(inverted, Logistic)
    assert inverted.slope < -1.0
    flattened = 0
    for seed in range(20):
        labels = np.random.default_rng(seed).random(400) < 0.5
        found = fit("logistic", ("s",), {"s": s}, labels)
        assert isinstance(found, Logistic)
        assert found.slope >= 0.0 or found.slope < -0.15
        flattened += found.slope == 0.0
    assert flattened > 5


def test_a_row_of_a_fold_counts_by_its_weight() -> None:
    """Doubling every weight equals writing every row twice in the same fold."""
    rng = np.random.default_rng(4)
    s, labels = rng.normal(size=80), rng.random(80) < 0.5
    fold = folds(labels, names(80))
    twice = out_of_fold("logistic", ("s",), {"s": np.tile(s, 2)}, np.tile(labels, 2), np.tile(fold, 2))
    weighted = out_of_fold("logistic", ("s",), {"s": s}, labels, fold, weights=np.full(80, 2.0))
    np.testing.assert_allclose(weighted, twice[:80], atol=1e-9)


@given(st.integers(0, 10_000))
def test_no_group_is_in_two_folds(seed: int) -> None:
    """Rows of a group share a fold, and every fold is used."""
    rng = np.random.default_rng(seed)
    groups, labels = rng.integers(0, 60, 200), rng.random(200) < 0.5
    fold = folds(labels, [f"g{group}" for group in groups])
    assert all(len(set(fold[groups == group])) == 1 for group in set(groups.tolist()))
    assert set(fold.tolist()) == set(range(5))


def test_too_few_of_a_class_for_folds_is_refused() -> None:
    """Four right answers cannot be in five folds."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="only 4 groups"):
            folds(np.arange(50) < 4, names(50))


def test_out_of_fold_predictions_have_not_seen_their_row() -> None:
    """Changing one label changes no prediction within that row's own fold."""
    rng = np.random.default_rng(2)
    s, labels = rng.normal(size=100), rng.random(100) < 0.5
    fold = folds(labels, names(100))
    before = out_of_fold("logistic", ("s",), {"s": s}, labels, fold)
    flipped = labels.copy()
    flipped[17] = ~flipped[17]
    after = out_of_fold("logistic", ("s",), {"s": s}, flipped, fold)
    own = fold == fold[17]
    np.testing.assert_array_equal(before[own], after[own])
    assert (before[~own] != after[~own]).all()


@given(tables(), st.sampled_from(["logistic", "fused", "curved"]))
def test_weighted_regressions_are_scikit_learns(table: Table, method: Method) -> None:
    """Standardised and fitted with sample_weight, scikit-learn predicts the same to 1e-9."""
    signals, labels, weights = table
    names = names_for(method)
    matrix = np.column_stack([signals[name] for name in names])
    z = StandardScaler().fit(matrix, sample_weight=weights).transform(matrix)
    if method == "curved":
        held = np.clip(z, -REACH, REACH)
        z = np.column_stack([held, held**2])
    model = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12, max_iter=500)
    model.fit(z, labels, sample_weight=weights)
    predicted = predict_many(fit(method, names, signals, labels, weights), signals, len(labels))
    slope = float(model.coef_[0][0])
    p = model.predict_proba(z)[:, 1]
    design = np.column_stack([z[:, :1], np.ones(len(z))])
    information = (design.T * (weights * p * (1.0 - p))) @ design + np.diag([1.0, 0.0])
    if method in FUSIONS or slope >= 0.0 or slope < -1.96 * np.sqrt(np.linalg.inv(information)[0, 0]):
        expected = model.predict_proba(z)[:, 1]
    else:
        expected = np.full(len(labels), np.average(labels, weights=weights))
    np.testing.assert_allclose(predicted, expected, rtol=0, atol=1e-9)


@given(tables())
def test_weighted_isotonic_is_scikit_learns(table: Table) -> None:
    """On its knots and between them the curve is scikit-learn's with sample_weight."""
    signals, labels, weights = table
    s = signals["seq_logprob"]
    model = IsotonicRegression(out_of_bounds="clip", y_min=0, y_max=1).fit(s, labels.astype(float), weights)
    probe = np.concatenate([s, 0.5 * (s[1:] + s[:-1]), [s.min() - 1, s.max() + 1]])
    predicted = predict_many(
        fit("isotonic", ("seq_logprob",), signals, labels, weights), {"seq_logprob": probe}, len(probe)
    )
    np.testing.assert_allclose(predicted, model.predict(probe), rtol=0, atol=1e-9)


def test_weighted_temperature_is_the_unpenalised_optimum() -> None:
    """With weights, too, it is scikit-learn's without penalty."""
    rng = np.random.default_rng(3)
    s, weights = -rng.gamma(1.0, 0.5, 3000), rng.lognormal(0.0, 1.0, 3000)
    labels = rng.random(3000) < expit(2.0 + 3.0 * s)
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12)
    model.fit(s[:, None], labels, sample_weight=weights)
    predicted = predict_many(fit("temperature", ("s",), {"s": s}, labels, weights), {"s": s}, 3000)
    np.testing.assert_allclose(predicted, model.predict_proba(s[:, None])[:, 1], rtol=0, atol=1e-9)


@given(tables(), st.sampled_from(METHODS))
def test_a_weight_of_two_is_the_row_twice(table: Table, method: Method) -> None:
    """Whole weights are counts, and weights of one are none at all, to the bit."""
    signals, labels, _ = table
    names, counts = names_for(method), np.arange(len(labels)) % 3 + 1
    often = {name: np.repeat(values, counts) for name, values in signals.items()}
    weighted = fit(method, names, signals, labels, counts.astype(np.float64))
    repeated = fit(method, names, often, np.repeat(labels, counts))
    n = len(labels)
    np.testing.assert_allclose(
        predict_many(weighted, signals, n), predict_many(repeated, signals, n), rtol=0, atol=1e-7
    )
    assert fit(method, names, signals, labels, np.ones(n)) == fit(method, names, signals, labels)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_a_weight_must_be_above_zero(wrong: float) -> None:
    """A row that counts nothing, less than that or infinitely much is refused."""
    with pytest.raises(DataError, match="above zero"):
        fit("logistic", ("s",), {"s": np.arange(9.0)}, np.arange(9) > 4, np.array([wrong, *[1.0] * 8]))
