from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.artifact import (
    FIXED,
    UNREACHABLE,
    Abstention,
    Artifact,
    DataWindow,
    PolicyFit,
    Thresholds,
)
from app.core.cost import Objective
from app.offline.refit.certify import lower_bound, walk
from app.offline.refit.choose import Guarantee, PathStep
from app.offline.refit.fit import fit, predict_many
from app.offline.refit.splits import Ledger, Validation, units
from tests.fakes.walks import chosen_k
from tests.offline.world import IDENTITY, World

TAUS = st.one_of(st.sampled_from([0.0, 1.0, 1.5, UNREACHABLE]), st.floats(0.0, 1.0))


@given(st.integers(0, 10_000), TAUS, TAUS, st.floats(0.0, 1.0))
def test_the_ledger_routes_as_the_gateway_decides(seed: int, one: float, other: float, missing: float) -> None:
    """Row by row, whatever the thresholds and whichever signals are missing, the job counts the k that is served."""
    table, _ = World().draw(60, seed)
    s = table.signals[0]["seq_logprob"]
    p0 = fit("logistic", ("seq_logprob",), {"seq_logprob": s}, s > np.median(s))
    s = np.where(np.random.default_rng(seed).random(60) < missing, np.nan, s)
    table = replace(table, signals=table.signals | {0: {"seq_logprob": s}})
    thresholds = Thresholds(max(one, other), min(one, other))
    artifact = Artifact(
        name="n",
        version="v",
        created="2026-01-01",
        identity=IDENTITY,
        ks=(0, 1, 5),
        calibrators={0: p0},
        policies={"graded": PolicyFit(thresholds, Objective.CALLS)},
        abstention=Abstention(0.0, 0.2),
        fallback_k=5,
        data_window=DataWindow(60, 60, "world"),
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
    assert walk(whole, path, guarantee).certified == 0
    assert lower_bound(whole, FIXED[0], guarantee) == 0.0
    assert not gaps.is_reference(FIXED[0], 0)
    walked = walk(gaps, path, guarantee)
    assert walked.certified is None
    assert walked.failure is not None
    assert walked.failure.mean == pytest.approx(-0.25)
    assert all(gaps.is_reference(FIXED[position], k) for position, k in ((1, 1), (2, 5)))
