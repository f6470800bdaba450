import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.artifact import FIXED, UNREACHABLE, Abstention, PolicyFit, Thresholds
from app.core.cost import Objective
from app.offline.refit.certify import certify_policy
from app.offline.refit.choose import Guarantee, PathStep
from app.offline.refit.fit import fit as fit_calibrator
from app.offline.refit.fit import predict_many
from app.offline.refit.splits import Ledger, Validation, position, split, units
from tests.fakes.artifacts import an_artifact
from tests.fakes.walks import chosen_k
from tests.offline.world import World

TAUS = st.one_of(st.sampled_from([0.0, 1.0, 1.5, UNREACHABLE]), st.floats(0.0, 1.0))


@pytest.mark.parametrize(("groups", "shares"), [(1500, (0.25, 0.65, 0.1)), (4000, (0.4, 0.5, 0.1))])
def test_splits_have_their_shares_and_are_complete(groups: int, shares: tuple[float, ...]) -> None:
    """Every row is in one split; a large table has more to fit on."""
    table, _ = World(phrasings=2).draw(groups, seed=1)
    parts = split(table)
    sizes = [len(part.outcomes) for part in parts]
    assert sum(sizes) == len(table)
    assert np.array(sizes) / len(table) == pytest.approx(shares, abs=0.03)


def test_groups_stay_together_and_the_test_split_never_moves() -> None:
    """The rows of a group are in one split; a group of test stays there as a table grows, or is cut to a part."""
    small, _ = World(phrasings=3).draw(200, seed=5)
    large, _ = World(phrasings=3).draw(2500, seed=5)
    train, validation, test = (set(part.outcomes.groups) for part in split(large))
    assert not train & validation
    assert not test & (train | validation)
    assert set(split(small)[2].outcomes.groups) <= test
    whole = split(large.take(np.arange(600)), groups=2500)
    assert set(whole[0].outcomes.groups) <= train
    assert set(whole[1].outcomes.groups) <= validation


@given(st.text())
def test_a_position_depends_on_name_and_purpose_alone(group: str) -> None:
    """Positions are in [0, 1), from SHA-256."""
    digest = hashlib.sha256(f"split:{group}".encode(errors="surrogatepass")).digest()
    assert position(group) == (int.from_bytes(digest[:8]) >> 11) / 2**53
    assert 0.0 <= position(group) < 1.0


def test_a_group_has_weight_one_however_many_rows_it_has() -> None:
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


@given(st.integers(0, 10_000), TAUS, TAUS, st.floats(0.0, 1.0))
def test_the_ledger_routes_as_the_gateway_decides(seed: int, one: float, other: float, missing: float) -> None:
    """Row by row, whatever the thresholds and whichever signals are missing, the job counts the k that is served."""
    table, _ = World().draw(60, seed)
    s = table.signals[0]["seq_logprob"]
    p0 = fit_calibrator("logistic", ("seq_logprob",), {"seq_logprob": s}, s > np.median(s))
    s = np.where(np.random.default_rng(seed).random(60) < missing, np.nan, s)
    table = replace(table, signals=table.signals | {0: {"seq_logprob": s}})
    thresholds = Thresholds(max(one, other), min(one, other))
    artifact = an_artifact(
        calibrators={0: p0},
        policies={"graded": PolicyFit(thresholds, Objective.CALLS)},
        abstention=Abstention(0.0, 0.2),
    )
    p = predict_many(p0, table.signals[0], len(table))
    chosen = Ledger(Validation(table), p, units(table), {}).route(thresholds)
    assert chosen.tolist() == [chosen_k(artifact, {"seq_logprob": float(value)}, allow_uncertified=True) for value in s]
    absent = [chosen_k(artifact, {}, allow_uncertified=True) for value in s if np.isnan(value)]
    assert chosen[np.isnan(s)].tolist() == absent


def test_always_k0_is_no_reference_of_itself_where_signals_are_missing() -> None:
    """Questions without a signal read five, so the policy differs from its reference there, and must be tested."""
    table, _ = World().draw(400, seed=0)
    right, wrong = np.ones(400, dtype=bool), np.zeros(400, dtype=bool)
    table = replace(table, correct={0: right, 1: wrong, 5: wrong})
    p = np.linspace(0.0, 1.0, 400)
    whole = Ledger(Validation(table), p, units(table), {})
    gaps = replace(whole, p=np.where(np.arange(400) % 4 == 0, np.nan, p))
    path, guarantee = [PathStep(FIXED[0], 1.0, 0.0)], Guarantee((0,), 0.02, 0.1)
    assert whole.is_reference(FIXED[0], 0)
    certificate = certify_policy(whole, path, guarantee, Objective.CALLS).certificate
    assert certificate is not None
    assert certificate.bound == 0.0
    assert not gaps.is_reference(FIXED[0], 0)
    fit = certify_policy(gaps, path, guarantee, Objective.CALLS)
    assert fit.certificate is None
    assert "-0.250" in (fit.uncertified_reason or "")
    assert all(gaps.is_reference(FIXED[position], k) for position, k in ((1, 1), (2, 5)))


def test_requests_count_where_they_are_asked_for() -> None:
    """The weighted mean is that of rows, and a group's score has its sign and the range of the rows."""
    table = replace(World().draw(6, seed=0)[0], per_request=True)
    table.groups[:] = ["a", "a", "a", "a", "b", "c"]
    values = np.array([-1.0, -1.0, -1.0, 0.0, 1.0, 1.0])
    grouping = units(table)
    assert values @ grouping.weights == pytest.approx(-1 / 6)
    assert grouping.scores(values).tolist() == pytest.approx([-0.75, 0.25, 0.25])
    assert grouping.standard_errors(values) < 0.0 < replace(grouping, per_request=False).standard_errors(values)
