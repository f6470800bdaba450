"""The whole job with early decisions, on a world in which the question and the first token tell much."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.adapters.artifact_store import ArtifactStore
from app.decision.artifact import Artifact, canonical_bytes
from app.decision.policy import Ask, Gate, decide
from app.decision.pregate import consider
from app.errors import DataError
from app.refit.eval_early import early_section
from app.refit.options import Options
from app.refit.publish import publish
from app.refit.refit import Summary, refit
from app.refit.split import split
from app.refit.table import Outcomes
from tests.refit.world import World

OPTIONS = Options("early", "2026-01-01T00:00:00Z", objective="latency", methods=("logistic",), risk_target=0.25)
WORLD = World(slope=(3.0, 1.0, 0.5), shared=0.9, question_noise=0.7, first_token_noise=0.3)


@pytest.fixture(scope="module")
def table() -> Outcomes:
    return WORLD.draw(2500, seed=5)[0]


@pytest.fixture(scope="module")
def fitted(table: Outcomes) -> tuple[Artifact, Summary]:
    return refit(table, OPTIONS)


def test_a_certified_policy_spares_probes(fitted: tuple[Artifact, Summary]) -> None:
    """The policy in force decides early, under a certificate; the report says what that catches, spares and costs."""
    artifact, summary = fitted
    graded = artifact.policies["graded"]
    assert graded.certificate is not None
    assert graded.thresholds.early is not None
    assert graded.thresholds.early.unasked > 0.0
    assert artifact.foresight is not None
    found = artifact.report["test"]["early"]
    assert 0.05 < found["share_unasked"]["value"] < 1.0
    assert 0.1 < found["recall_unasked"]["value"] <= 1.0
    assert found["accuracy"]["minus_whole_probes"]["value"] > -0.03
    latency = found["cost"]["latency"]
    assert latency["probe_spent"]["value"] < 0.9
    assert latency["serial"]["over_whole_probes_serial"]["value"] < 1.0
    assert latency["overlap"]["mean"] <= latency["serial"]["mean"]
    assert latency["serial"]["mean"] == pytest.approx(artifact.report["test"]["cost"]["latency"]["graded"]["mean"])
    assert found["cost"]["tokens"]["serial"]["over_k5"]["value"] > 0.0
    assert any("of the questions are not probed" in note for note in summary.notes)
    assert any(note.startswith("graded: decides without a probe where") for note in summary.notes)
    assert any("early" in step for step in artifact.report["path"]["graded"])


def test_the_shares_in_the_report_are_those_of_deciding_each_question(
    table: Outcomes, fitted: tuple[Artifact, Summary]
) -> None:
    """The serving code, question by question, foresees as many of the test split as the report says."""
    artifact, _ = fitted
    _, _, test = split(table)
    assert test.outcomes.asked is not None
    gate, foreseen = Gate(artifact), 0
    for row in range(len(test.outcomes)):
        decision = consider(Ask(), gate, "", test.outcomes.asked.features[row].tolist())
        foreseen += decision is not None
    assert artifact.report["test"]["early"]["share_unasked"]["value"] == pytest.approx(foreseen / len(test.outcomes))
    probed = decide(Ask(), gate, {"seq_logprob": 3.0}, watched=True)
    assert (probed.k, probed.certified) == (0, True)


def test_each_means_is_certified_by_itself(table: Outcomes, fitted: tuple[Artifact, Summary]) -> None:
    """The policy in force is among the variants; each has a certificate, and its own way for the questions."""
    artifact, _ = fitted
    graded, variants = artifact.policies["graded"], artifact.variants
    assert {"whole probes", "pre-gate"} <= variants.keys()
    assert variants[graded.thresholds.means].fit == graded
    assert variants[graded.thresholds.means].abstention == artifact.abstention
    for means, variant in variants.items():
        assert variant.fit.certificate is not None
        assert (variant.flow.unasked1 + variant.flow.unasked5 > 0.0) == ("pre-gate" in means)
        assert (variant.flow.cut > 0.0) == ("early exit" in means)
    # By the serving code, question by question, on the split that certified it.
    _, validation, _ = split(table)
    assert validation.outcomes.asked is not None
    gate = Gate(artifact).by("pre-gate")
    unasked = sum(
        consider(Ask(), gate, "", row.tolist()) is not None for row in validation.outcomes.asked.features
    ) / len(validation.outcomes)
    flow = variants["pre-gate"].flow
    assert flow.unasked1 + flow.unasked5 == pytest.approx(unasked, abs=0.01)


def test_without_early_means_there_is_nothing_to_choose(table: Outcomes) -> None:
    """And the artifact has the bytes that it always had."""
    artifact, _ = refit(table, replace(OPTIONS, objective="passage"))
    assert artifact.variants == {}
    assert b"variants" not in canonical_bytes(artifact)


def test_it_reads_back_and_repeats_to_the_byte(
    tmp_path: Path, table: Outcomes, fitted: tuple[Artifact, Summary]
) -> None:
    """Early thresholds survive the file, and the same table and options give the same bytes."""
    artifact, summary = fitted
    assert publish(artifact, tmp_path, test=summary.test, epsilon=0.02).current
    assert canonical_bytes(ArtifactStore(tmp_path).load(artifact.version)) == canonical_bytes(artifact)
    assert canonical_bytes(refit(table, OPTIONS)[0]) == canonical_bytes(artifact)


def test_a_successor_is_compared_with_and_without_embeddings(
    tmp_path: Path, table: Outcomes, fitted: tuple[Artifact, Summary]
) -> None:
    """What is served is judged by its early decisions where the new table has them, and by whole probes where not."""
    artifact, summary = fitted
    publish(artifact, tmp_path, test=summary.test, epsilon=0.02)
    plain, bare = refit(replace(table, asked=None), replace(OPTIONS, objective="passage"))
    assert plain.foresight is None
    assert publish(plain, tmp_path, test=bare.test, epsilon=0.05).current
    assert publish(artifact, tmp_path, test=summary.test, epsilon=0.05).current


def test_the_page_shows_what_was_spared(table: Outcomes, fitted: tuple[Artifact, Summary]) -> None:
    """The report of an artifact that decides early has its shares and ratios; another's has no such part."""
    (page,) = early_section(fitted[0])
    assert "questions that are not probed" in page
    assert "latency, overlap, over k5" in page
    assert early_section(None) == []
    assert early_section(replace(fitted[0], report={})) == []


@pytest.mark.parametrize(
    ("changes", "foresight", "exits"),
    [
        ({"objective": "passage"}, False, False),
        ({"pregate": False}, False, True),
        ({"exits": False}, True, False),
        ({"pregate": False, "exits": False}, False, False),
    ],
)
def test_switches_leave_parts_out(table: Outcomes, changes: dict[str, Any], foresight: bool, exits: bool) -> None:
    """An objective that no spared probe shows on, or a switch, leaves foresight or exits out of the choice."""
    artifact, _ = refit(table, replace(OPTIONS, **changes))
    chosen = artifact.report["chosen"]
    assert ("question_p0" in chosen) == foresight
    assert ("exit_1" in chosen) == exits
    if not foresight:
        assert artifact.foresight is None


def test_insisting_on_what_the_table_has_not_is_refused(table: Outcomes) -> None:
    """A pre-gate wants embedded questions, exits want prefix signals; by default both are done without."""
    bare = replace(table, asked=None, signals={k: {"seq_logprob": v["seq_logprob"]} for k, v in table.signals.items()})
    with pytest.raises(DataError, match="not embedded"):
        refit(bare, replace(OPTIONS, pregate=True))
    with pytest.raises(DataError, match="no exit can be fitted"):
        refit(bare, replace(OPTIONS, exits=True))
    artifact, _ = refit(bare, OPTIONS)
    assert artifact.foresight is None
    assert artifact.exits == {}
    assert "early" not in artifact.report["test"]


def test_where_nothing_is_gained_the_artifact_says_so_and_carries_nothing() -> None:
    """Where closed-book is never worth it there is no probe to spare: a fixed action, and a note."""
    world = World(level=(-2.0, 3.0, 2.0), slope=(1.5, 0.5, 0.5), question_noise=0.3)
    artifact, summary = refit(world.draw(900, seed=2)[0], replace(OPTIONS, pregate=True))
    assert artifact.policies["graded"].thresholds.early is None
    assert artifact.foresight is None
    assert "graded: nothing is worth deciding before a probe is whole" in summary.notes
