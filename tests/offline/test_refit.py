"""The whole job on tables whose truth is known, and on the published ones if they are available."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.calibrators.store import ArtifactStore
from app.core.artifact import FIXED, Artifact, PolicyFit, canonical_bytes
from app.core.cost import Objective, Tariff
from app.core.effective_policy import resolve
from app.core.policy import AskOptions
from app.errors import DataError
from app.offline.evaluate.evaluate import evaluate
from app.offline.refit.fit import predict_many
from app.offline.refit.holdout import evaluate_policy, publish
from app.offline.refit.refit import Options, Summary, refit
from app.offline.refit.splits import Ledger, Test, passage_costs, split, units
from app.offline.report.report import report
from app.offline.table import Outcomes, load
from tests.fakes.walks import World as Answers
from tests.fakes.walks import walk
from tests.offline.world import IDENTITY, World
from tests.offline.world import OPTIONS as BY_PASSAGES

SHARED = Path(__file__).parents[3] / "shared" / "data" / "llama8b-outcomes"
OPTIONS = replace(BY_PASSAGES, source="world.jsonl", risk_target=0.25)


@pytest.fixture(scope="module")
def table() -> Outcomes:
    return World().draw(2500, seed=11)[0]


@pytest.fixture(scope="module")
def fitted(table: Outcomes) -> tuple[Artifact, Summary]:
    return refit(table, OPTIONS)


def test_a_refit_certifies_and_saves_where_there_is_headroom(fitted: tuple[Artifact, Summary]) -> None:
    """On a world with headroom both policies and abstention are certified, and hold on the test split."""
    artifact, summary = fitted
    for policy in artifact.policies.values():
        assert policy.certificate is not None
        assert policy.certificate.bound >= -0.02
        assert policy.certificate.reference == "every fixed action"
    assert artifact.abstention.certificate is not None
    assert artifact.abstention.certificate.bound <= 0.25
    test = artifact.report["test"]
    assert test["cost"]["money"]["graded"]["ratio_to_k5"] < 0.7
    assert test["graded_minus_fixed"]["k5"]["high"] > -0.02
    assert test["p0"]["ece"] < 0.08
    assert test["selective"]["error"]["low"] < 0.25
    assert test["selective"]["coverage"]["value"] > 0.4
    assert test["selective"]["accuracy_full"]["value"] < test["selective"]["accuracy_at_80"]["value"]
    assert sum(test["shares"]["graded"].values()) == pytest.approx(1.0)
    assert artifact.fallback_k == 5
    assert len(summary.test.outcomes) == artifact.report["splits"]["test"]["rows"]


def test_the_same_table_gives_the_same_bytes(table: Outcomes, fitted: tuple[Artifact, Summary]) -> None:
    """A refit repeats to the byte, and its version names its content."""
    again, _ = refit(table, OPTIONS)
    assert canonical_bytes(again) == canonical_bytes(fitted[0])
    assert again.version.startswith("2026-01-01-")


def test_the_gateway_decides_as_the_job_did(table: Outcomes, fitted: tuple[Artifact, Summary]) -> None:
    """Row by row, the serving code chooses the k and withholds the answers that the job counted."""
    artifact, _ = fitted
    _, validation, _ = split(table)
    outcomes = validation.outcomes
    p = predict_many(artifact.p0, outcomes.signals[0], len(outcomes))
    chosen = Ledger(validation, p, units(outcomes), {}).route(artifact.policies["graded"].thresholds)
    policy = resolve(AskOptions(), artifact, ks=artifact.ks)
    for row in range(300):
        signals = {k: {name: float(v[row]) for name, v in named.items()} for k, named in outcomes.signals.items()}
        reply = walk(policy, Answers(signals)).reply
        assert reply.k == chosen[row]
        assert reply.certified
        assert reply.confidence is not None
        assert reply.withheld == (reply.confidence < artifact.abstention.tau)


def test_the_numbers_of_passages_come_from_the_table(table: Outcomes, fitted: tuple[Artifact, Summary]) -> None:
    """The same answers as k = 0, 2 and 10, where few cost a fifth of many too, give the same thresholds for those k."""
    names = {0: 0, 1: 2, 5: 10}
    columns = ("correct", "signals", "prompt_tokens", "completion_tokens", "ms")
    renamed = {column: {names[k]: values for k, values in getattr(table, column).items()} for column in columns}
    other = replace(table, ks=(0, 2, 10), identity=replace(IDENTITY, ks=(0, 2, 10)), **renamed)
    artifact, _ = refit(other, OPTIONS)
    assert artifact.ks == (0, 2, 10)
    assert artifact.calibrators.keys() == {0, 2, 10}
    assert artifact.fallback_k == 10
    assert artifact.policies["graded"].thresholds == fitted[0].policies["graded"].thresholds
    assert artifact.report["test"]["shares"]["graded"].keys() == {"k0", "k2", "k10"}
    found = evaluate(other, resamples=20)
    assert set(found["accuracy"]) == {"k0", "k2", "k10"}
    assert "always k10" in report(other, artifact=artifact, evaluation=found)


def test_a_missing_signal_reads_five_in_the_job_too(table: Outcomes) -> None:
    """Rows without closed-book signals are counted as the gateway would serve them."""
    signals = {k: {name: v.copy() for name, v in named.items()} for k, named in table.signals.items()}
    signals[0]["seq_logprob"][::4] = np.nan
    artifact, _ = refit(replace(table, signals=signals), OPTIONS)
    assert artifact.report["test"]["shares"]["graded"]["k5"] > 0.2
    assert artifact.report["test"]["p0"]["missing"] > 0


def test_too_few_labels_give_no_certificate_and_an_estimate(table: Outcomes) -> None:
    """Sixty groups give thresholds without a certificate, a reason in words, and an estimate of labels."""
    artifact, summary = refit(
        World(level=(0.0, 0.2, 0.25), shared=0.2).draw(60, seed=2)[0],
        replace(OPTIONS, epsilon=0.01),
    )
    graded = artifact.policies["graded"]
    assert graded.certificate is None
    assert graded.uncertified_reason
    assert graded.labels_needed is None or graded.labels_needed > 60
    assert any("not certified" in note for note in summary.notes)
    assert artifact.report["abstention_policy"] == f"always-k{artifact.fallback_k}"


def test_a_table_without_reading_signals_refits_with_a_note() -> None:
    """Without open-book signals answers that were read have no calibrator, and a note says so for each."""
    artifact, summary = refit(World(reading_signals=False).draw(800, seed=3)[0], OPTIONS)
    assert artifact.calibrators.keys() == {0}
    assert sum("never abstain" in note for note in summary.notes) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"signals": ("perplexity",)}, "no signal 'perplexity' in the table: choose among seq_logprob"),
        ({"objective": Objective.LATENCY}, r"needs k0\.ms"),
        ({"objective": Objective.TOKENS}, r"needs k0\.prompt_tokens"),
        ({"tariff": Tariff()}, "needs prices"),
        ({"reference": "k7"}, "choose among every, k0, k1, k5"),
    ],
)
def test_impossible_options_are_refused(table: Outcomes, changes: dict[str, Any], words: str) -> None:
    """An unknown signal, or an axis that the table does not have, is refused with a fix."""
    with pytest.raises(DataError, match=words):
        refit(table, replace(OPTIONS, **changes))


def test_a_signal_that_cannot_be_served_is_refused_unless_nothing_will_be(table: Outcomes) -> None:
    """On a table with an identity only the gateway's own signals count; without one any signal may be tried."""
    odd = replace(table, signals={k: {"odd": v["seq_logprob"]} | v for k, v in table.signals.items()})
    with pytest.raises(DataError, match="cannot compute 'odd'"):
        refit(odd, replace(OPTIONS, signals=("odd",)))
    artifact, _ = refit(replace(odd, identity=None), replace(OPTIONS, signals=("odd",)))
    assert artifact.report["chosen"]["k0"]["signals"] == ["odd"]


def test_ten_rows_and_one_class_are_refused(table: Outcomes) -> None:
    """Too few groups, and answers that are all right, end in a message and not in an artifact."""
    with pytest.raises(DataError, match="10 groups are too few"):
        refit(table.take(np.arange(10)), OPTIONS)
    right = replace(table, correct=table.correct | {0: np.ones(len(table), dtype=bool)})
    with pytest.raises(DataError, match="only 0 groups"):
        refit(right, OPTIONS)


def test_levels_must_be_probabilities() -> None:
    """An epsilon of zero or a delta of one is refused before any work."""
    with pytest.raises(DataError, match="delta"):
        Options("x", "2026", delta=1.0)


def test_the_reference_can_be_the_papers(table: Outcomes) -> None:
    """With always-k5 as the reference the certificate names it."""
    artifact, _ = refit(table, replace(OPTIONS, reference="k5"))
    certificate = artifact.policies["graded"].certificate
    assert certificate is not None
    assert certificate.reference == "always-k5"


def test_publishing_writes_a_file_that_reads_back(tmp_path: Path, fitted: tuple[Artifact, Summary]) -> None:
    """What is published is what was fitted, checksum and all, and CURRENT names it."""
    artifact, summary = fitted
    published = publish(artifact, tmp_path / "c", test=summary.test, epsilon=0.02)
    assert published.current
    assert ArtifactStore(tmp_path / "c").current() == artifact.version
    assert canonical_bytes(ArtifactStore(tmp_path / "c").load(artifact.version)) == canonical_bytes(artifact)
    left = sorted(path.name for path in (tmp_path / "c").glob("[!.]*"))
    assert left == [f"{artifact.version}.json", "CURRENT"]
    (change,) = ArtifactStore(tmp_path / "c").history()
    assert (change.version, change.before, change.by) == (artifact.version, None, "refit")
    again = publish(artifact, tmp_path / "c", test=summary.test, epsilon=0.02)
    assert again.current


def test_a_worse_artifact_is_written_but_not_served(tmp_path: Path, fitted: tuple[Artifact, Summary]) -> None:
    """Uncertified after certified, or less accurate on the same test split, leaves CURRENT alone unless forced."""
    artifact, summary = fitted
    publish(artifact, tmp_path, test=summary.test, epsilon=0.02)
    graded = artifact.policies["graded"]
    uncertified = replace(graded, certificate=None)
    worse = replace(artifact, version="v2", policies={"graded": uncertified})
    refused = publish(worse, tmp_path, test=summary.test, epsilon=0.02)
    assert not refused.current
    assert "certified" in refused.why
    assert Path(refused.path).exists()
    blind = replace(artifact, version="v3", policies={"graded": replace(graded, thresholds=FIXED[0])})
    refused = publish(blind, tmp_path, test=summary.test, epsilon=0.02)
    assert not refused.current
    assert "right" in refused.why
    assert ArtifactStore(tmp_path).current() == artifact.version
    assert publish(blind, tmp_path, test=summary.test, epsilon=0.02, force=True).current
    assert ArtifactStore(tmp_path).current() == "v3"


def test_another_identity_publishes_nothing(tmp_path: Path, fitted: tuple[Artifact, Summary]) -> None:
    """A table of another system is refused by name, and no file appears; without identity CURRENT stays."""
    artifact, summary = fitted
    publish(artifact, tmp_path, test=summary.test, epsilon=0.02)
    other = replace(artifact, version="v2", identity=replace(IDENTITY, reader="another"))
    with pytest.raises(DataError, match=r"world\.jsonl:1: .*reader: fitted on 'reader', running 'another'"):
        publish(other, tmp_path, test=summary.test, epsilon=0.02)
    assert not (tmp_path / "v2.json").exists()
    nameless = replace(artifact, version="v3", identity=None)
    assert not publish(nameless, tmp_path, test=summary.test, epsilon=0.02, force=True).current
    assert ArtifactStore(tmp_path).current() == artifact.version


def test_an_unreadable_current_is_replaced(tmp_path: Path, fitted: tuple[Artifact, Summary]) -> None:
    """Where CURRENT points at nothing readable, the new artifact takes its place and says so."""
    artifact, summary = fitted
    (tmp_path / "CURRENT").write_text("gone\n")
    published = publish(artifact, tmp_path, test=summary.test, epsilon=0.02)
    assert published.current
    assert "could not be read" in published.why


def on_test(table: Outcomes, p: np.ndarray, confidence: np.ndarray) -> dict[str, Any]:
    book = Ledger(Test(table), p, units(table), passage_costs(table))
    fits = {"graded": PolicyFit(FIXED[2], Objective.CALLS)}
    served = book.route(FIXED[2])
    return evaluate_policy(book, fits, served=served, confidence=confidence, tau=0.0, tariff=Tariff())


def test_a_group_has_weight_one_on_test() -> None:
    """Phrasing half of the facts five times over changes no figure of p0 and no accuracy by coverage."""
    table, _ = World().draw(200, seed=5)
    p = np.random.default_rng(0).random(200)
    p[::20] = np.nan
    confidence = np.random.default_rng(1).random(200)
    often = np.repeat(np.arange(200), np.where(np.arange(200) < 100, 5, 1))
    once, many = on_test(table, p, confidence), on_test(table.take(often), p[often], confidence[often])
    for figure in ("ece", "brier"):
        assert many["p0"][figure] == pytest.approx(once["p0"][figure])
    for figure in ("accuracy_full", "accuracy_at_80", "accuracy_at_90"):
        assert many["selective"][figure].value == pytest.approx(once["selective"][figure].value, abs=1e-3)
    assert once["p0"]["missing"] == 10


def test_withholding_the_least_confident_fifth_is_reported() -> None:
    """If confidence sorts the answers, accuracy at 80 % coverage is that of the most confident 80 %."""
    table, _ = World().draw(500, seed=6)
    table = replace(table, correct=table.correct | {5: np.arange(500) >= 100})
    found = on_test(table, np.full(500, np.nan), np.arange(500) / 500)
    assert found["selective"]["accuracy_full"].value == pytest.approx(0.8)
    assert found["selective"]["accuracy_at_80"].value == pytest.approx(1.0)
    for figure in ("accuracy_full", "accuracy_at_80"):
        interval = found["selective"][figure]
        assert interval.low <= interval.value <= interval.high
    assert found["p0"] == {"ece": None, "brier": None, "missing": 500}


@pytest.mark.skipif(not SHARED.exists(), reason="needs the published outcome tables next to this checkout")
@pytest.mark.parametrize("name", ["nq", "squad"])
def test_the_published_tables_refit(name: str) -> None:
    """Real answers without k=5 signals refit into an artifact that says so and is never served."""
    artifact, summary = refit(load(SHARED / f"{name}.jsonl"), OPTIONS)
    assert artifact.identity is None
    assert 5 not in artifact.calibrators
    assert artifact.fallback_k == 5
    assert any(note.startswith("k=5") for note in summary.notes)
