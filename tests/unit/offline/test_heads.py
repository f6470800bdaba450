"""Heads on synthetic evidence: equal to the libraries, monotone, and defined on degenerate tables."""

import lightgbm as lgb
import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from app.core import evidence
from app.core.calibrator import Logistic
from app.core.heads import MAX_LOGIT, Blend
from app.offline.refit.heads import Design, drawn_rows, fit_head, folds_of, predict_many
from app.offline.refit.trees import score_many, to_trees

NAMES = (
    "search.cosine",
    "search.gap",
    "k0.seq_logprob",
    "k0.neg_entropy",
    "k0.margin",
    "k0.support",
    "k0.tokens",
)
STATE = "search+k0"


def make(n: int, seed: int = 0, absent: float = 0.2) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Evidence with some of it absent, and labels that depend on it."""
    rng = np.random.default_rng(seed)
    columns = {name: rng.normal(size=n) for name in NAMES}
    odds = columns["k0.margin"] + np.abs(columns["search.gap"]) + 0.5 * columns["k0.support"] - 0.5
    for name in ("search.gap", "k0.support"):
        columns[name][rng.random(n) < absent] = np.nan
    return columns, (rng.random(n) < expit(odds)).astype(float)


def groups_of(n: int) -> list[str]:
    return [f"g{row // 2}" for row in range(n)]


def head_of(n: int, target: np.ndarray | None = None, k: int | None = 0, **options: float) -> tuple[Blend, dict]:
    columns, labels = make(n, **options)
    target = labels if target is None else target
    return fit_head(columns, target, np.ones(n), folds_of(groups_of(n)), state=STATE, k=k).head, columns


def rows_of(columns: dict[str, np.ndarray], n: int) -> list[dict[str, float]]:
    return [{name: column[row] for name, column in columns.items() if np.isfinite(column[row])} for row in range(n)]


def assert_same(head: Blend, columns: dict[str, np.ndarray], n: int) -> None:
    """Columns and single rows give the same predictions, also where there are none."""
    many = predict_many(head, columns, n)
    single = [head.predict(row) for row in rows_of(columns, n)]
    assert [p is None for p in single] == np.isnan(many).tolist()
    known = [p for p in single if p is not None]
    np.testing.assert_allclose(many[np.isfinite(many)], known, atol=1e-12, rtol=0)


@pytest.mark.parametrize("absent", [0.0, 0.3])
def test_trees_are_lightgbm_s(absent: float) -> None:
    """Trees as arrays score as LightGBM does, also a missing value that train did not have."""
    columns, labels = make(400, absent=absent)
    matrix = np.column_stack([columns[name] for name in NAMES])
    options = {"objective": "cross_entropy", "num_leaves": 6, "verbose": -1, "num_threads": 1}
    booster = lgb.train(options, lgb.Dataset(matrix, label=labels), num_boost_round=15)
    other = np.column_stack(list(make(500, seed=1, absent=0.5)[0].values()))
    other[np.random.default_rng(2).random(other.shape) < 0.2] = np.nan
    expected = booster.predict(other, raw_score=True)
    trees = to_trees(booster)
    np.testing.assert_allclose(score_many(trees, other), expected, atol=1e-9)
    np.testing.assert_allclose([trees.score(row) for row in other.tolist()], expected, atol=1e-9)


def test_the_value_of_an_inner_node_lies_between_its_children() -> None:
    """Explanations start from means of inner nodes, which include the base rate as the leaves do."""
    trees = head_of(400)[0].trees
    for node in range(len(trees.feature)):
        if trees.feature[node] >= 0:
            low, high = sorted((trees.value[trees.left[node]], trees.value[trees.right[node]]))
            assert low - 1e-6 <= trees.value[node] <= high + 1e-6


@pytest.mark.parametrize("soft", [False, True])
def test_the_linear_part_is_scikit_learn_s(soft: bool) -> None:
    """The same weights as scikit-learn's on weighted duplicates, with zeros and indicators for absent evidence."""
    n = 300
    columns, labels = make(n)
    target = 0.2 + 0.7 * labels if soft else labels
    head = fit_head(columns, target, np.ones(n), folds_of(groups_of(n)), state=STATE, k=0).head
    matrix = np.column_stack([columns[name] for name in head.features])
    absent = np.isnan(matrix)
    standard = np.where(absent, 0.0, (matrix - np.array(head.means)) / np.array(head.scales))
    design = np.column_stack([standard, absent[:, absent.any(axis=0)]])
    model = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    twice = np.concatenate([target, 1.0 - target])
    kept = twice > 0.0
    hard = np.repeat([1, 0], n)
    model.fit(np.vstack([design, design])[kept], hard[kept], sample_weight=twice[kept])
    alone = Blend(
        head.features, head.required, head.means, head.scales, head.weights, head.absent,
        head.intercept, type(head.trees)(), 0.0, 1.0, 0.0,
    )  # fmt: skip
    found = predict_many(alone, columns, n)
    np.testing.assert_allclose(found, model.predict_proba(design)[:, 1], atol=1e-9)


def test_predictions_of_rows_and_columns_are_equal() -> None:
    """The job predicts as the gateway does, for any evidence, absent or far outside of train."""
    head, _ = head_of(400)
    for seed in range(3):
        columns, _ = make(100, seed=seed + 10, absent=0.5)
        rng = np.random.default_rng(seed)
        for name in NAMES:
            columns[name] = columns[name] * rng.choice([1.0, 50.0], 100)
            columns[name][rng.random(100) < 0.1] = np.nan
        assert_same(head, columns, 100)
    missing = {name: column for name, column in columns.items() if name != "k0.margin"}
    assert np.isnan(predict_many(head, missing, 100)).all()


def test_a_calibrator_predicts_by_the_name_of_its_evidence() -> None:
    """The paper's heads are evaluated like the others."""
    head = Logistic("k0.margin", 0.0, 1.0, 2.0, 0.5)
    columns = {"k0.margin": np.array([0.0, 1.0, np.nan])}
    np.testing.assert_allclose(predict_many(head, columns, 3), [expit(0.5), expit(2.5), np.nan])


def test_evidence_that_supports_an_answer_never_lowers_its_trees() -> None:
    """Signals and support rise in the trees of a probability, but not in those of a value."""
    rng = np.random.default_rng(3)
    columns, _ = make(600)
    # Against the constraint: more support means a worse answer.
    target = expit(-2.0 * np.nan_to_num(columns["k0.support"]) + columns["search.cosine"])
    folds = folds_of(groups_of(600))
    falls = {}
    for k in (0, None):
        trees = fit_head(columns, target, np.ones(600), folds, state=STATE, k=k).head
        at = trees.features.index("k0.support")
        rows = rng.normal(size=(200, len(trees.features)))
        low, high = rows.copy(), rows.copy()
        high[:, at] += 1.0
        falls[k] = bool((score_many(trees.trees, high) < score_many(trees.trees, low) - 1e-9).any())
    assert falls == {0: False, None: True}


def test_weights_count_rows() -> None:
    """A row of weight two counts as two rows, and only ratios of weights matter."""
    n = 200
    columns, labels = make(n, absent=0.0)
    weights = np.random.default_rng(0).choice([1.0, 2.0], n)
    folds = folds_of(groups_of(n))
    one = fit_head(columns, labels, weights, folds, state=STATE, k=0)
    other = fit_head(columns, labels, weights * 0.01, folds, state=STATE, k=0)
    np.testing.assert_allclose(one.out_of_fold, other.out_of_fold, atol=1e-6)


def test_out_of_fold_predictions_do_not_know_their_group() -> None:
    """Evidence that only identifies groups predicts nothing out-of-fold, although it fits train."""
    n = 400
    rng = np.random.default_rng(0)
    columns = {name: np.repeat(rng.normal(size=n // 2), 2) for name in NAMES}
    labels = np.repeat(rng.random(n // 2) < 0.5, 2).astype(float)
    fitted = fit_head(columns, labels, np.ones(n), folds_of(groups_of(n)), state=STATE, k=None)
    inside = score_many(fitted.head.trees, np.column_stack([columns[name] for name in fitted.head.features]))
    assert np.corrcoef(inside, labels)[0, 1] > 0.4
    assert abs(np.corrcoef(fitted.out_of_fold, labels)[0, 1]) < 0.2


def test_folds_and_draws_depend_on_the_names_of_groups_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other rows and another order change neither, and a group is never divided."""
    groups = groups_of(60)
    fold = dict(zip(groups, folds_of(groups), strict=True))
    assert dict(zip(reversed(groups[:20]), folds_of(groups[:20][::-1]), strict=True)).items() <= fold.items()
    assert drawn_rows(groups).tolist() == list(range(len(groups)))
    monkeypatch.setattr("app.offline.refit.heads.MAX_GROUPS", 10)
    drawn = {groups[row] for row in drawn_rows(groups)}
    assert len(drawn) == 10
    assert drawn == {groups[::-1][row] for row in drawn_rows(groups[::-1])}
    assert len(drawn_rows(groups)) == 20


@pytest.mark.parametrize("value", [0.0, 1.0, 0.7])
def test_one_class_gives_a_constant_head_near_it(value: float) -> None:
    """Nothing can be learned where all targets are equal."""
    head, columns = head_of(50, np.full(50, value))
    found = predict_many(head, columns, 50)
    assert np.ptp(found) == 0.0
    assert abs(found[0] - value) < 0.02
    assert head.required == evidence.required(STATE)


def test_a_state_without_evidence_gives_a_constant_head() -> None:
    """The state before anything is bought predicts the mean, whatever the question."""
    columns, labels = make(60)
    fitted = fit_head(columns, labels, np.ones(60), folds_of(groups_of(60)), state="", k=None)
    assert fitted.head.features == fitted.head.required == ()
    assert fitted.head.predict({}) == pytest.approx(labels.mean(), abs=0.02)
    assert np.isfinite(fitted.out_of_fold).all()


@pytest.mark.parametrize("n", [2, 12, 50])
def test_tiny_tables_and_constant_evidence_can_be_fitted(n: int) -> None:
    """Few rows, one group, and evidence that never changes give predictions inside [0, 1]."""
    columns, labels = make(n)
    columns["k0.tokens"] = np.full(n, 7.0)
    columns["search.gap"] = np.full(n, np.nan)
    labels[0], labels[1] = 0.0, 1.0
    for groups in (groups_of(n), ["one"] * n):
        fitted = fit_head(columns, labels, np.ones(n), folds_of(groups), state=STATE, k=0)
        assert not {"k0.tokens", "search.gap"} & set(fitted.head.features)
        assert ((fitted.out_of_fold > 0.0) & (fitted.out_of_fold < 1.0)).all()
        assert_same(fitted.head, columns, n)


def test_separable_rows_stay_inside_the_largest_log_odds() -> None:
    """Evidence that gives the label away makes no part infinitely sure."""
    columns, labels = make(200, absent=0.0)
    columns["k0.margin"] = np.where(labels > 0.5, 1.0, -1.0)
    fitted = fit_head(columns, labels, np.ones(200), folds_of(groups_of(200)), state=STATE, k=0)
    p = predict_many(fitted.head, columns, 200)
    assert (np.abs(np.log(p / (1 - p))) < 3 * MAX_LOGIT).all()
    assert p[labels > 0.5].min() > 0.9


def test_rows_without_required_evidence_are_not_used() -> None:
    """They get no prediction, and do not change the others'; a name that no row has is not required."""
    columns, labels = make(200)
    columns["k0.neg_entropy"] = np.full(200, np.nan)
    columns["k0.margin"][150:] = np.nan
    groups = groups_of(200)
    fitted = fit_head(columns, labels, np.ones(200), folds_of(groups), state=STATE, k=0)
    assert fitted.head.required == ("search.cosine", "k0.seq_logprob", "k0.margin")
    assert np.isnan(fitted.out_of_fold[150:]).all()
    assert np.isfinite(fitted.out_of_fold[:150]).all()
    first = {name: column[:150] for name, column in columns.items()}
    alone = fit_head(first, labels[:150], np.ones(150), folds_of(groups[:150]), state=STATE, k=0)
    assert alone.head == fitted.head


def test_heads_of_a_state_share_its_design() -> None:
    """A second target on the same design gives the same head as on a fresh one."""
    columns, labels = make(200)
    folds = folds_of(groups_of(200))
    design = Design(columns, np.ones(200), folds, STATE)
    design.fit(1.0 - labels, None, like="value")
    again = design.fit(0.1 + 0.8 * labels, None, like="value")
    fresh = fit_head(columns, 0.1 + 0.8 * labels, np.ones(200), folds, state=STATE, k=None)
    np.testing.assert_allclose(again.out_of_fold, fresh.out_of_fold, atol=1e-6)
    assert again.head.trees == fresh.head.trees
