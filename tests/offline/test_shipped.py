"""The shipped calibrator against the shipped outcome table."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from app.calibrators.store import ArtifactStore
from app.core.artifact import Artifact
from app.core.cost import Objective, Tariff
from app.core.effective_policy import resolve
from app.core.policy import AskOptions
from app.core.prompts import DEFAULT
from app.offline.refit.options import Options
from app.offline.refit.refit import refit
from app.offline.table import Outcomes, load
from tests.fakes.walks import World, walk

REPO = Path(__file__).parents[2]
TABLE = REPO / "demo" / "outcomes.jsonl.gz"


@pytest.fixture(scope="module")
def shipped() -> Artifact:
    store = ArtifactStore(REPO / "calibrators" / "demo")
    version = store.current()
    assert version is not None
    return store.load(version)


@pytest.fixture(scope="module")
def table() -> Outcomes:
    return load(TABLE)


def test_the_committed_table_gives_the_committed_artifact_back(shipped: Artifact, table: Outcomes) -> None:
    """Replaying the refit with the artifact's own options yields its thresholds, certificates and calibrators."""
    graded = shipped.policies["graded"]
    certificate, risk = graded.certificate, shipped.abstention.certificate
    assert certificate is not None
    options = Options(
        name=shipped.name,
        created=shipped.created,
        source=shipped.data_window.source,
        objective=Objective.MONEY,
        tariff=Tariff(passage=1.0),
        epsilon=certificate.epsilon,
        delta=certificate.delta,
        risk_target=shipped.abstention.risk_target,
        risk_delta=risk.delta if risk is not None else 0.1,
    )
    again, _ = refit(table, options)
    for part in ("policies", "abstention", "fallback_k", "calibrators"):
        assert flat(asdict(again)[part]) == close(flat(asdict(shipped)[part]))


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """A nest as one level, each leaf by its path."""
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value)).items()
    else:
        return {name: value}
    return {path: leaf for key, part in parts for path, leaf in flat(part, f"{name}.{key}").items()}


def close(leaves: dict[str, Any]) -> dict[str, Any]:
    """Numbers as nearly so: another linear algebra may differ in the last digits."""
    return {path: pytest.approx(leaf, rel=1e-6) if _is_number(leaf) else leaf for path, leaf in leaves.items()}


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, int | float) and not isinstance(leaf, bool)


def test_it_was_fitted_on_the_prompts_that_serve(shipped: Artifact, table: Outcomes) -> None:
    """Changing a prompt without refitting would silently switch the calibrator off."""
    assert shipped.identity == table.identity
    assert shipped.identity is not None
    assert shipped.identity.prompts == DEFAULT.digest


def test_every_collected_question_can_be_decided_again(shipped: Artifact, table: Outcomes) -> None:
    """The served code, on the table's signals, skips some questions, fetches for others, and withholds some answers."""
    assert shipped.abstention.certificate is not None
    policy = resolve(AskOptions(), shipped, ks=shipped.ks)
    replies = [
        walk(
            policy,
            World({k: {name: float(v[row]) for name, v in named.items()} for k, named in table.signals.items()}),
        ).reply
        for row in range(len(table))
    ]
    assert {reply.k for reply in replies} <= {0, 1, 5}
    assert {0, 1} <= {reply.k for reply in replies}
    assert 0.05 < sum(reply.withheld for reply in replies) / len(table) < 0.5
