import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.offline.refit.splits import position, split, units
from tests.offline.world import World


def test_the_parts_are_forty_forty_twenty_and_whole() -> None:
    """Every row is in one split, and the splits have about their shares."""
    table, _ = World(phrasings=2).draw(4000, seed=1)
    parts = split(table)
    sizes = [len(part.outcomes) for part in parts]
    assert sum(sizes) == len(table)
    assert np.array(sizes) / len(table) == pytest.approx([0.4, 0.4, 0.2], abs=0.02)


def test_no_group_straddles_and_growth_moves_nobody() -> None:
    """Phrasings of a fact stay together, and a group stays where it was when others join."""
    small, _ = World(phrasings=3).draw(200, seed=5)
    large, _ = World(phrasings=3).draw(300, seed=5)
    for part, grown in zip(split(small), split(large), strict=True):
        assert set(part.outcomes.groups) <= set(grown.outcomes.groups)
    train, validation, test = (set(part.outcomes.groups) for part in split(large))
    assert not train & validation
    assert not test & (train | validation)


@given(st.text())
def test_a_position_depends_on_name_and_purpose_alone(group: str) -> None:
    """Positions lie in [0, 1), and are those of SHA-256."""
    digest = hashlib.sha256(f"split:{group}".encode(errors="surrogatepass")).digest()
    assert position(group) == (int.from_bytes(digest[:8]) >> 11) / 2**53
    assert 0.0 <= position(group) < 1.0


def test_a_group_weighs_one_however_many_its_phrasings() -> None:
    """The weighted mean of rows is the mean of group means, in hashed order or not."""
    table, _ = World(phrasings=1).draw(6, seed=0)
    table.groups[:] = ["a", "a", "a", "b", "c", "c"]
    values = np.array([0.0, 0.0, 3.0, 5.0, 1.0, 2.0])
    for salt in (None, "order"):
        grouping = units(table, salt=salt)
        assert grouping.count == 3
        assert not grouping.single
        assert sorted(grouping.means(values)) == [1.0, 1.5, 5.0]
        assert values @ grouping.weights == pytest.approx(2.5)
    assert units(table).means(values).tolist() == [1.0, 5.0, 1.5]


def test_single_rows_are_put_into_the_order_of_their_groups() -> None:
    """Where every group is one row, its mean is that row, in the order of the hash."""
    table, _ = World().draw(50, seed=0)
    grouping = units(table, salt="order")
    assert grouping.single
    order = sorted(range(50), key=lambda row: position(table.groups[row], "order"))
    assert grouping.means(np.arange(50.0)).tolist() == order
