"""Parity: the served arithmetic, the same on columns, and scikit-learn agree."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from app.decision.calibrator import REACH, Curved, Fused, Logistic, Temperature
from app.errors import DataError
from app.refit.fit import FUSIONS, METHODS, Method, fit, folds, out_of_fold, predict_many

Floats = NDArray[np.float64]
NAMES = ("seq_logprob", "neg_entropy", "margin")


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Floats], NDArray[np.bool_]]:
    """Three signals of any scale, with ties, and labels of both kinds that follow them or do not."""
    n = draw(st.integers(12, 120))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale, shift = draw(st.sampled_from([1e-3, 1.0, 50.0])), draw(st.sampled_from([-20.0, 0.0, 5.0]))
    base = rng.normal(size=n)
    if draw(st.booleans()):
        base = base.round(1)
    strength = draw(st.sampled_from([-1.0, 0.0, 1.0, 4.0]))
    labels = rng.random(n) < 1.0 / (1.0 + np.exp(-strength * base))
    labels[:2] = [True, False]
    signals = {name: shift + scale * (base + noise * rng.normal(size=n)) for name, noise in zip(NAMES, (0, 0.5, 1))}  # noqa: B905
    return signals, labels


def names_for(method: Method) -> tuple[str, ...]:
    return NAMES if method in FUSIONS else NAMES[:1]


@given(tables(), st.sampled_from(METHODS))
def test_columns_and_scalars_agree(table: tuple[dict[str, Floats], NDArray[np.bool_]], method: Method) -> None:
    """Predicting a column is predicting each of its rows, far outside the fitted range too."""
    signals, labels = table
    calibrator = fit(method, names_for(method), signals, labels)
    probe = {
        name: np.concatenate([values, [values.min() - 9.0, values.max() + 9.0]]) for name, values in signals.items()
    }
    many = predict_many(calibrator, probe, len(labels) + 2)
    one = [calibrator.predict({name: float(probe[name][i]) for name in NAMES}) for i in range(len(many))]
    np.testing.assert_allclose(many, np.array(one, dtype=float), rtol=0, atol=1e-12)
    assert ((many >= 0) & (many <= 1)).all()


@given(tables())
def test_logistic_is_scikit_learns(table: tuple[dict[str, Floats], NDArray[np.bool_]]) -> None:
    """Where scikit-learn's slope is not negative, the served probability is its own to 1e-9; else the base rate."""
    signals, labels = table
    s = signals["seq_logprob"]
    calibrator = fit("logistic", ("seq_logprob",), signals, labels)
    assert isinstance(calibrator, Logistic)
    z = ((s - s.mean()) / s.std())[:, None]
    model = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12, max_iter=500).fit(z, labels)
    served = [calibrator.predict({"seq_logprob": float(value)}) for value in s]
    if model.coef_[0][0] >= 0.0:
        np.testing.assert_allclose(served, model.predict_proba(z)[:, 1], rtol=0, atol=1e-9)
    else:
        np.testing.assert_allclose(served, labels.mean(), rtol=0, atol=1e-9)


@given(tables())
def test_fused_is_scikit_learns(table: tuple[dict[str, Floats], NDArray[np.bool_]]) -> None:
    """The fusion of three signals serves what scikit-learn predicts, to 1e-9."""
    signals, labels = table
    calibrator = fit("fused", NAMES, signals, labels)
    assert isinstance(calibrator, Fused)
    matrix = np.column_stack([signals[name] for name in NAMES])
    z = (matrix - matrix.mean(axis=0)) / matrix.std(axis=0)
    model = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12, max_iter=500).fit(z, labels)
    served = [calibrator.predict({name: float(signals[name][i]) for name in NAMES}) for i in range(len(labels))]
    np.testing.assert_allclose(served, model.predict_proba(z)[:, 1], rtol=0, atol=1e-9)


@given(tables())
def test_curved_is_scikit_learns(table: tuple[dict[str, Floats], NDArray[np.bool_]]) -> None:
    """Three signals and their squares serve what scikit-learn predicts from the same columns, to 1e-9."""
    signals, labels = table
    calibrator = fit("curved", NAMES, signals, labels)
    assert isinstance(calibrator, Curved)
    matrix = np.column_stack([signals[name] for name in NAMES])
    z = np.clip((matrix - matrix.mean(axis=0)) / matrix.std(axis=0), -REACH, REACH)
    columns = np.column_stack([z, z**2])
    model = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12, max_iter=500).fit(columns, labels)
    served = [calibrator.predict({name: float(signals[name][i]) for name in NAMES}) for i in range(len(labels))]
    np.testing.assert_allclose(served, model.predict_proba(columns)[:, 1], rtol=0, atol=1e-9)


def test_curved_follows_what_no_straight_line_can() -> None:
    """Where both ends of a signal are safe and its middle is not, only the squares see it."""
    rng = np.random.default_rng(5)
    s = rng.normal(size=(4000, 2))
    labels = rng.random(4000) < 1.0 / (1.0 + np.exp(-(s[:, 0] ** 2 - 1.0)))
    signals = {"a": s[:, 0], "b": s[:, 1]}
    straight, bent = (predict_many(fit(m, ("a", "b"), signals, labels), signals, 4000) for m in FUSIONS)
    assert np.mean((bent - labels) ** 2) < np.mean((straight - labels) ** 2) - 0.02


@given(tables())
def test_isotonic_is_scikit_learns(table: tuple[dict[str, Floats], NDArray[np.bool_]]) -> None:
    """Between its knots, on them and beyond them the served curve is scikit-learn's to 1e-9."""
    signals, labels = table
    s = signals["seq_logprob"]
    calibrator = fit("isotonic", ("seq_logprob",), signals, labels)
    model = IsotonicRegression(out_of_bounds="clip", y_min=0, y_max=1).fit(s, labels.astype(float))
    probe = np.concatenate([s, 0.5 * (s[1:] + s[:-1]), [s.min() - 1, s.max() + 1]])
    served = [calibrator.predict({"seq_logprob": float(value)}) for value in probe]
    np.testing.assert_allclose(np.array(served, dtype=float), model.predict(probe), rtol=0, atol=1e-9)


def test_temperature_with_bias_is_the_unpenalised_optimum() -> None:
    """On a log-probability the fitted curve is scikit-learn's without penalty, and it does pass one half."""
    rng = np.random.default_rng(3)
    s = -rng.gamma(1.0, 0.5, 3000)
    labels = rng.random(3000) < 1.0 / (1.0 + np.exp(-(2.0 + 3.0 * s)))
    calibrator = fit("temperature", ("s",), {"s": s}, labels)
    assert isinstance(calibrator, Temperature)
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12).fit(s[:, None], labels)
    np.testing.assert_allclose(
        predict_many(calibrator, {"s": s}, 3000), model.predict_proba(s[:, None])[:, 1], atol=1e-9
    )
    assert 1.0 / calibrator.temperature == pytest.approx(3.0, abs=0.4)
    assert (calibrator.predict({"s": -0.1}) or 0.0) > 0.5


def test_labels_that_part_perfectly_give_finite_calibrators() -> None:
    """A signal that separates right from wrong, either way round, breaks no method."""
    s = np.arange(20.0)
    for labels in (s > 9, s <= 9):
        for method in METHODS[:4]:
            predicted = predict_many(fit(method, ("s",), {"s": s}, labels), {"s": s}, 20)
            assert np.isfinite(predicted).all()
            assert (np.diff(predicted) >= 0).all()


def test_a_constant_signal_gives_the_base_rate() -> None:
    """Where a signal never moves, every calibrator of probability answers the share of right labels."""
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


def test_folds_are_scikit_learns_where_every_group_is_one_row() -> None:
    """Without phrasings the folds are those of an unshuffled StratifiedKFold."""
    labels = np.random.default_rng(1).random(103) < 0.3
    expected = np.empty(103, dtype=int)
    for number, (_, held) in enumerate(StratifiedKFold(5).split(np.zeros(103), labels)):
        expected[held] = number
    np.testing.assert_array_equal(folds(labels, np.arange(103)), expected)
    np.testing.assert_array_equal(folds(labels, np.arange(103)[::-1] + 7), expected)


@given(st.integers(0, 10_000))
def test_no_group_is_in_two_folds(seed: int) -> None:
    """Rows of a group share a fold, and every fold is used."""
    rng = np.random.default_rng(seed)
    groups, labels = rng.integers(0, 60, 200), rng.random(200) < 0.5
    fold = folds(labels, groups)
    assert all(len(set(fold[groups == group])) == 1 for group in set(groups.tolist()))
    assert set(fold.tolist()) == set(range(5))


def test_too_few_of_a_class_for_folds_is_refused() -> None:
    """Four right answers cannot be in five folds."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="only 4 groups"):
            folds(np.arange(50) < 4, np.arange(50))


def test_out_of_fold_predictions_have_not_seen_their_row() -> None:
    """Changing one label changes no prediction within that row's own fold."""
    rng = np.random.default_rng(2)
    s, labels = rng.normal(size=100), rng.random(100) < 0.5
    fold = folds(labels, np.arange(100))
    before = out_of_fold("logistic", ("s",), {"s": s}, labels, fold)
    flipped = labels.copy()
    flipped[17] = ~flipped[17]
    after = out_of_fold("logistic", ("s",), {"s": s}, flipped, fold)
    own = fold == fold[17]
    np.testing.assert_array_equal(before[own], after[own])
    assert (before[~own] != after[~own]).all()
