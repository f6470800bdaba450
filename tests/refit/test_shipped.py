"""The calibrator that the project ships, against the outcome table that it ships beside it."""

from pathlib import Path

import pytest

from app.adapters.artifact_store import ArtifactStore
from app.decision.artifact import Artifact
from app.decision.policy import Ask, Gate, decide
from app.prompts import DEFAULT
from app.refit.options import Options
from app.refit.refit import refit
from app.refit.table import Outcomes, load

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
    certificate = graded.certificate
    assert certificate is not None
    options = Options(
        name=shipped.name,
        created=shipped.created,
        source=shipped.window.source,
        objective=graded.objective,  # type: ignore[arg-type]
        epsilon=certificate.epsilon,
        delta=certificate.delta,
        risk_target=shipped.abstention.risk_target,
    )
    again, _ = refit(table, options)
    assert again.policies == shipped.policies
    assert again.abstention == shipped.abstention
    assert again.fallback_action == shipped.fallback_action
    assert again.calibrators.p0 == shipped.calibrators.p0


def test_it_was_fitted_on_the_prompts_that_serve(shipped: Artifact, table: Outcomes) -> None:
    """Changing a prompt without refitting would silently switch the calibrator off."""
    assert shipped.identity == table.identity
    assert shipped.identity is not None
    assert shipped.identity.prompts == DEFAULT.digest


def test_every_collected_question_can_be_decided_again(shipped: Artifact, table: Outcomes) -> None:
    """The served function, on the table's signals, skips some questions, fetches for others, and errs on none."""
    gate = Gate(shipped)
    chosen = [
        decide(Ask(), gate, {name: float(values[row]) for name, values in table.signals[0].items()}).k
        for row in range(len(table))
    ]
    assert set(chosen) <= {0, 1, 5}
    assert {0, 1} <= set(chosen)
