"""The shipped calibrator against the shipped outcome table."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from app.calibrators.store import ArtifactStore
from app.core.artifact import Artifact
from app.core.corpus_stats import CorpusStats
from app.core.prompts import DEFAULT, WRITING
from app.offline.builder import load
from app.offline.refit.follow import Fitted, Given, serve
from app.offline.refit.options import Options
from app.offline.refit.refit import refit
from app.offline.refit.splits import split, units
from app.offline.table import Outcomes

REPO = Path(__file__).parents[2]
TABLE = REPO / "demo" / "outcomes.jsonl.gz"


@pytest.fixture(scope="module")
def shipped() -> tuple[Artifact, CorpusStats]:
    store = ArtifactStore(REPO / "calibrators" / "demo")
    version = store.current()
    assert version is not None
    artifact = store.load(version)
    return artifact, store.load_stats(artifact)


@pytest.fixture(scope="module")
def table() -> Outcomes:
    return load(TABLE)


@pytest.fixture(scope="module")
def given(shipped: tuple[Artifact, CorpusStats], table: Outcomes) -> Given:
    artifact, stats = shipped
    return serve(split(table)[2].outcomes, artifact, stats.centroids)


def test_the_committed_table_gives_the_committed_artifact_back(
    shipped: tuple[Artifact, CorpusStats], table: Outcomes
) -> None:
    """Refitting with its own options certifies the same: another CPU may split a tree a little differently."""
    artifact, stats = shipped
    before, risk = artifact.ladder, artifact.abstention
    assert before is not None
    assert before.certificate is not None
    assert risk.certificate is not None
    options = Options(
        name=artifact.name,
        created=artifact.created,
        source=artifact.data_window.source,
        goal=before.goal,
        objective=before.objective,
        reference="every",
        delta=before.certificate.delta,
        risk_target=risk.risk_target,
        risk_delta=risk.certificate.delta,
    )
    again, summary = refit(table, options)
    assert again.ladder is not None
    assert again.ladder.certificate is not None
    assert again.ladder.costs == pytest.approx(before.costs)
    assert again.ladder.certificate.bound == pytest.approx(before.certificate.bound, abs=0.01)
    assert artifact.chat is not None
    assert artifact.chat.certificate is not None
    assert again.chat is not None
    assert again.chat.costs == pytest.approx(artifact.chat.costs)
    assert again.abstention.tau == pytest.approx(risk.tau, abs=0.05)
    assert (again.fallback_k, again.identity, again.ks) == (artifact.fallback_k, artifact.identity, artifact.ks)
    assert summary.stats.counts == stats.counts


def test_it_was_fitted_on_the_prompts_that_serve(shipped: tuple[Artifact, CorpusStats], table: Outcomes) -> None:
    """Changing a prompt without refitting would silently switch the calibrator off."""
    artifact, _ = shipped
    assert artifact.identity == table.identity
    assert artifact.identity is not None
    assert (artifact.identity.prompts, artifact.identity.writing) == (DEFAULT.digest, WRITING.digest)


def test_it_pays_on_the_test_split(shipped: tuple[Artifact, CorpusStats], table: Outcomes, given: Given) -> None:
    """More accurate than every fixed k, within 0.6 of always-five's tokens, and every k is given to some questions."""
    artifact, stats = shipped
    test = split(table)[2].outcomes
    inside = np.flatnonzero(~test.out_of_corpus)
    weights = units(test.take(inside)).weights
    accuracy = float(given.right[inside] @ weights)
    assert all(accuracy > float(test.correct[k][inside] @ weights) for k in artifact.ks)
    assert artifact.ladder is not None
    climbed = Fitted.of(test, artifact.heads, artifact.scope, stats.centroids).ladder(artifact.ladder).climb
    assert climbed is not None
    assert float(climbed.cost[inside].mean()) < 0.62
    assert set(Counter(given.k.tolist())) == set(artifact.ks)


def test_chats_gain_on_the_test_split(shipped: tuple[Artifact, CorpusStats], table: Outcomes) -> None:
    """By their short answers, within half of always-five's tokens; each k is chosen for some questions."""
    artifact, stats = shipped
    assert artifact.chat is not None
    test = split(table)[2].outcomes
    inside = np.flatnonzero(~test.out_of_corpus)
    once = Fitted.of(test, artifact.heads, artifact.scope, stats.centroids).chat(artifact.chat)
    weights = units(test.take(inside)).weights
    accuracy = float(once.right[inside] @ weights)
    assert all(accuracy > float(test.correct[k][inside] @ weights) for k in artifact.ks)
    assert once.climb is not None
    assert float(once.climb.cost[inside].mean()) < 0.5
    assert set(Counter(once.k.tolist())) == set(artifact.ks)


def test_it_withholds_what_the_corpus_cannot_answer(
    shipped: tuple[Artifact, CorpusStats], table: Outcomes, given: Given
) -> None:
    """Of the out-of-corpus questions of the test split, by scope or by confidence."""
    artifact, _ = shipped
    outside = split(table)[2].outcomes.out_of_corpus
    assert outside.sum() > 30
    assert float((given.confidence[outside] < artifact.abstention.tau).mean()) > 0.9
