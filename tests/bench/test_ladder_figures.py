"""The ladder's benchmark on a small table: figures of fixed answers, of the gate and of the ladder."""

import numpy as np
import pytest

from app.offline.refit.ladder import fit_probabilities
from bench.ladder.figures import Figures, mean_of
from bench.ladder.policies import fixed, graded, ladder, ladder_path, sample_of, within_budget
from bench.ladder.run import divisions
from bench.ladder.tables import Table


@pytest.fixture(scope="module")
def table() -> Table:
    """Sixty questions in forty groups, with signals that tell right answers."""
    rng = np.random.default_rng(0)
    n = 60
    correct = {k: rng.random(n) < share for k, share in ((0, 0.3), (1, 0.6), (5, 0.7))}
    columns = {
        f"k{k}.{name}": labels + rng.normal(size=n)
        for k, labels in correct.items()
        for name in ("seq_logprob", "neg_entropy", "margin")
    }
    costs = {k: np.full(n, cost) for k, cost in ((0, 50.0), (1, 150.0), (5, 500.0))}
    groups = [f"g{min(row, 39)}" for row in range(n)]
    return Table("small", (0, 1, 5), groups, groups, columns, correct, costs, costs, np.zeros(n, bool))


def test_divisions_keep_groups_together_and_train_on_two_fifths(table: Table) -> None:
    """Every division trains on at most 40 % of the rows, and no group is on both sides."""
    for held in divisions(table.groups, 3):
        names = np.array(table.groups)
        assert held.mean() <= 0.4
        assert not set(names[held]) & set(names[~held])


def test_fixed_answers_have_their_own_accuracy_each_group_once(table: Table) -> None:
    """The last group has 21 rows and counts once."""
    rows = np.arange(60)
    found = Figures.of(table, "groups", "always-k1", rows, fixed(table, rows, 1))
    expected = np.append(table.correct[1][:39], table.correct[1][39:].mean()).mean()
    assert found.n == 40
    assert found.numbers["accuracy"] == pytest.approx(expected)
    assert found.numbers["tokens"] == pytest.approx(0.3)
    assert found.numbers["k1"] == 0.0


@pytest.mark.parametrize("ahead", [False, True])
def test_policies_run_on_rows_that_they_were_not_fitted_on(table: Table, ahead: bool) -> None:
    """Both kinds of ladder and the gate give figures, which average over divisions."""
    train, rest = np.arange(30), np.arange(30, 60)
    sample = sample_of(table, train, ("linear",))
    fitted = fit_probabilities(sample)
    step = within_budget(ladder_path(sample, fitted, ahead=ahead))
    found = [
        Figures.of(table, "groups", "ladder", rest, ladder(table, rest, sample, fitted, step)),
        Figures.of(table, "groups", "graded", rest, graded(table, rest, sample)),
    ]
    rows = mean_of([*found, *found])
    assert [row["policy"] for row in rows] == ["graded", "ladder"]
    for row in rows:
        assert 0.0 <= row["accuracy"] <= 1.0
        assert 0.0 < row["tokens"] < 2.0
        assert row["vs"]["k5"][1] <= row["vs"]["k5"][0] <= row["vs"]["k5"][2]
