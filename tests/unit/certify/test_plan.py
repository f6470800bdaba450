"""Plans: shares of the splits, labels needed, and what each refit spends."""

import numpy as np
import pytest

from app.certify import exact
from app.certify.plan import TEST_FROM, labels_needed, spent, table_for, train_share


def test_train_is_a_quarter_of_a_table_and_more_of_small_and_of_large_ones() -> None:
    """At least 100 groups, never more than half, and 40 % from 2,000 groups on."""
    shares = {groups: train_share(groups) for groups in (50, 200, 250, 400, 1000, 1999, 2000, 50_000)}
    assert shares == {50: 0.5, 200: 0.5, 250: 0.4, 400: 0.25, 1000: 0.25, 1999: 0.25, 2000: 0.4, 50_000: 0.4}
    assert TEST_FROM == 0.9


@pytest.mark.parametrize("validation", [10, 79, 81, 120, 260, 300, 1000, 1299, 1301, 5000])
def test_a_table_of_the_planned_size_has_the_validation_groups(validation: int) -> None:
    """And one of one group less does not, except where the split changes."""
    size = table_for(validation)
    assert (TEST_FROM - train_share(size)) * size >= validation - 1e-6
    assert size == 2000 or (TEST_FROM - train_share(size - 1)) * (size - 1) < validation


@pytest.mark.parametrize(("mean", "differing"), [(0.02, 0.05), (0.02, 0.2), (0.0, 0.1)])
def test_the_estimate_is_where_the_test_has_power(mean: float, differing: float) -> None:
    """If what was seen is the truth, about four of five tables of this size certify."""
    deviation = float(np.sqrt(differing - mean**2))
    found = labels_needed(gap=mean + 0.02, deviation=deviation, n=200, delta=0.1, single=True)
    assert found is not None
    assert found.value is not None
    n = round((TEST_FROM - train_share(found.value)) * found.value)
    chances = [(differing + mean) / 2, (differing - mean) / 2, 1 - differing]
    drawn = np.random.default_rng(0).multinomial(n, chances, size=100)
    assert 0.7 < np.mean([exact.above(int(a), int(b), n, -0.02, delta=0.1) for a, b, _ in drawn]) < 0.92


def test_the_interval_narrows_with_what_was_seen() -> None:
    """It contains the estimate; on few groups it has no upper end."""
    few = labels_needed(gap=0.02, deviation=0.3, n=150, delta=0.1, single=True)
    many = labels_needed(gap=0.02, deviation=0.3, n=5000, delta=0.1, single=True)
    assert few is not None
    assert many is not None
    assert few.high is None
    assert many.high is not None
    assert many.value is not None
    assert few.low < many.low < many.value < many.high
    assert few.value == many.value
    assert "no practical number" in few.text
    assert f"{many.high:,}" in many.text
    more = labels_needed(gap=0.02, deviation=0.3, n=5000, delta=0.1, single=False)
    assert more is not None
    assert more.low > many.low


def test_a_loss_that_may_be_chance_still_has_a_lower_end() -> None:
    """No estimate, but the least number; a loss that is no chance has neither, and no groups say nothing."""
    unlucky = labels_needed(gap=-0.01, deviation=0.3, n=200, delta=0.1, single=True)
    assert unlucky is not None
    assert (unlucky.value, unlucky.high) == (None, None)
    assert unlucky.text == f"at least {unlucky.low:,} labelled groups in all"
    assert labels_needed(gap=-0.1, deviation=0.3, n=200, delta=0.1, single=True) is None
    assert labels_needed(gap=0.0, deviation=0.0, n=0, delta=0.1, single=True) is not None
    near = labels_needed(gap=1e-6, deviation=0.3, n=10**12, delta=0.1, single=True)
    assert near is None


def test_refits_spend_delta_and_no_more() -> None:
    """The first half of it, then less and less; together never more than delta."""
    parts = [spent(0.1, refit) for refit in range(1, 2000)]
    assert parts[0] == pytest.approx(0.05)
    assert parts == sorted(parts, reverse=True)
    assert 0.0999 < sum(parts) < 0.1
