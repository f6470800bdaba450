"""The whole job on tables whose truth is known, and on the published ones if they are available."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from app.calibrators.store import ArtifactStore
from app.certify.plan import spent
from app.core.artifact import FIXED, Artifact, LadderFit, canonical_bytes
from app.core.cost import Objective, Tariff
from app.core.effective_policy import resolve
from app.core.policy import AskOptions, Policy
from app.errors import DataError
from app.offline.builder import load
from app.offline.refit.abstain import answers
from app.offline.refit.climb import answers_of, graded_states, purchases, states
from app.offline.refit.follow import Fitted, serve
from app.offline.refit.holdout import publish
from app.offline.refit.ladder import SingleAnswers
from app.offline.refit.options import Options
from app.offline.refit.refit import LoggedRows, Summary, digest_of, refit
from app.offline.refit.splits import pick, split, units
from app.offline.table import Outcomes
from tests.fakes.walks import World as Answers
from tests.fakes.walks import walk
from tests.offline.world import BY_TOKENS, IDENTITY, World

SHARED = Path(__file__).parents[3] / "shared" / "data" / "llama8b-outcomes"
OPTIONS = replace(BY_TOKENS, source="world.jsonl", risk_target=0.2, prices=(0.0, 0.06, 0.12, 0.3, 1.0))
GAIN = replace(OPTIONS, goal="gain", reference="every")
# Evidence helps, and one question in ten is out of corpus.
HELPED = World(support=2.0, outside=0.1)
# Nothing that is seen tells anything.
NOISE = World(level=(-0.2, 0.0, 0.2), slope=(0.0, 0.0, 0.0), reading=0.0, shared=0.5)


class Refitted(NamedTuple):
    """A refit, and the table it was made from."""

    table: Outcomes
    artifact: Artifact
    summary: Summary

    @property
    def ladder(self) -> LadderFit:
        """The ladder of the artifact."""
        assert self.artifact.ladder is not None
        return self.artifact.ladder

    @property
    def test(self) -> dict[str, Any]:
        """The report on the test split."""
        return dict(self.artifact.report["test"])


def refitted(world: World, groups: int, options: Options, seed: int = 11) -> Refitted:
    table = world.draw(groups, seed)[0]
    return Refitted(table, *refit(table, options))


@pytest.fixture(scope="module")
def gained() -> Refitted:
    return refitted(HELPED, 900, GAIN)


@pytest.fixture(scope="module")
def saved() -> Refitted:
    return refitted(HELPED, 900, OPTIONS)


@pytest.fixture(scope="module")
def graded() -> Refitted:
    by_passages = replace(OPTIONS, policy=Policy.GRADED, objective=Objective.MONEY, prices=(0.12,))
    return refitted(World(), 900, by_passages)


def test_a_gain_is_certified_where_evidence_helps(gained: Refitted) -> None:
    """The ladder is more accurate than every fixed k within its budget, on test as well, and a note says so."""
    certificate = gained.ladder.certificate
    assert certificate is not None
    assert certificate.bound > 0.0
    assert (certificate.epsilon, certificate.reference) == (0.0, "every fixed action")
    assert gained.ladder.goal == "gain"
    (step,) = gained.artifact.report["path"]["ladder"]
    assert step["cost"] <= GAIN.budget
    assert all(one["value"] > 0.0 for one in gained.test["ladder_minus_fixed"].values())
    assert gained.test["cost"]["tokens"]["ladder"]["ratio_to_k5"] < 0.7
    assert any("more accurate than every fixed action" in note for note in gained.summary.notes)


def test_the_rule_of_chat_has_a_certificate_and_a_report_of_its_own(gained: Refitted) -> None:
    """Train picks its price within the budget; it is reported beside the ladder and every fixed k."""
    chat = gained.artifact.chat
    assert chat is not None
    assert chat.certificate is not None
    assert (chat.certificate.spent, chat.certificate.refit) == (spent(0.1, 1), 1)
    (step,) = gained.artifact.report["path"]["chat"]
    assert (step["t"], step["cost"] <= OPTIONS.budget) == (chat.t, True)
    test = gained.test
    assert set(test["chat_minus_fixed"]) == set(test["ahead"]) == set(test["shares"]["chat"]) == {"k0", "k1", "k5"}
    assert sum(test["shares"]["chat"].values()) == pytest.approx(1.0)
    for figures in (test["accuracy"], test["cost"]["tokens"]):
        assert {"chat", "ladder", "k0", "k1", "k5"} <= set(figures)
    assert any(note.startswith("rule of chat: certified on") for note in gained.summary.notes)


def test_no_gain_is_certified_where_nothing_helps() -> None:
    """The reason says what was shown instead, and what to do next; what serves is the fallback."""
    found = refitted(NOISE, 400, GAIN)
    assert found.ladder.certificate is None
    assert "no certain gain" in (found.ladder.uncertified_reason or "")
    assert "Next: " in (found.ladder.uncertified_reason or "")
    assert any("serves, the ladder is not certified" in note for note in found.summary.notes)
    assert found.artifact.abstention.certificate is None
    assert "the ladder is not certified" in (found.artifact.abstention.uncertified_reason or "")
    # The passages of a simulated walk have no similarity, which the scope test would notice.
    policy = resolve(AskOptions(), replace(found.artifact, scope=None), ks=found.artifact.ks)
    assert walk(policy, Answers({k: {"seq_logprob": 0.0} for k in found.table.ks})).reply.k == found.artifact.fallback_k


def test_a_saving_is_certified_along_the_path(saved: Refitted) -> None:
    """Each step of the path is cheaper on train; the step served is one of them, and holds on validation."""
    path = saved.artifact.report["path"]["ladder"]
    assert [step["t"] for step in path] == sorted(step["t"] for step in path)
    assert all(later["cost"] < earlier["cost"] for earlier, later in itertools.pairwise(path))
    certificate = saved.ladder.certificate
    assert certificate is not None
    assert certificate.bound >= -OPTIONS.epsilon
    place = [step["t"] for step in path].index(saved.ladder.t)
    assert place > 0
    assert path[place]["cost"] < 0.6
    assert any("at most 0.02 less accurate" in note for note in saved.summary.notes)
    # Validation chose the step, so each has its share of the delta of abstention.
    assert saved.artifact.abstention.certificate is not None
    assert saved.artifact.abstention.certificate.spent == pytest.approx(OPTIONS.risk_delta / 2 / len(path))


def test_abstention_limits_the_error_in_truth(gained: Refitted) -> None:
    """Out-of-corpus questions count at their share, those out of scope as withheld; the truth is below the target."""
    abstention = gained.artifact.abstention
    assert abstention.certificate is not None
    population, chance = HELPED.draw(10_000, seed=99)
    given = serve(population, gained.artifact, gained.summary.stats.centroids)
    answered = answers(given.confidence, abstention.tau)
    assert (1.0 - pick(chance, given.k))[answered].mean() <= GAIN.risk_target
    assert answered.mean() > 0.4
    _, validation, _ = split(gained.table)
    # All groups are counted, also those that accuracy leaves out.
    assert abstention.certificate.n == units(validation.outcomes).count
    assert gained.ladder.certificate is not None
    assert gained.ladder.certificate.n < abstention.certificate.n
    # The scope test finds most of them, with few false alarms.
    scope = gained.artifact.report["scope"]
    assert scope["detected"]["made up"]["value"] > 0.8
    assert scope["false_alarms"]["low"] <= GAIN.alpha
    found = serve(gained.table, gained.artifact, gained.summary.stats.centroids)
    outside = found.confidence < 0.0
    assert outside[gained.table.out_of_corpus].mean() > 0.8
    assert outside[~gained.table.out_of_corpus].mean() < 0.05
    assert gained.test["shares"]["served"]["abstain"] > outside.mean()


def test_a_refit_is_counted_by_what_it_sees(gained: Refitted) -> None:
    """The same table and options are one look; other labels or options are another, and a note says what it spends."""
    digest = gained.artifact.data_window.digest
    assert digest == digest_of(gained.table, replace(GAIN, created="later", name="other", refit=7))
    assert digest != digest_of(gained.table, replace(GAIN, epsilon=0.05))
    flipped = {k: labels ^ (np.arange(len(labels)) == 0) for k, labels in gained.table.correct.items()}
    assert digest != digest_of(replace(gained.table, correct=flipped), GAIN)
    assert digest != digest_of(replace(gained.table, unlabelled=flipped), GAIN)
    one = SingleAnswers({"k0.margin": np.ones(1)}, np.ones(1, np.bool_), np.ones(1), ["a"])
    assert digest != digest_of(gained.table, GAIN, LoggedRows({("k0", 0): one}))
    assert gained.artifact.data_window.refit == 1


def test_out_of_corpus_questions_raise_the_threshold() -> None:
    """Where nothing tells that they are out of corpus, they are answered and wrong, and less may be answered."""
    options = replace(OPTIONS, prices=(0.12,), risk_target=0.35, epsilon=0.1)
    table, _ = World(support=2.0).draw(1500, seed=3)
    alone, _ = refit(table, options)
    # A fifth is out of corpus, without a trace in the evidence.
    hidden = np.arange(len(table)) % 5 == 0
    wrong = {k: labels & ~hidden for k, labels in table.correct.items()}
    joined, _ = refit(replace(table, correct=wrong, out_of_corpus=hidden), options)
    for artifact in (alone, joined):
        assert artifact.abstention.certificate is not None
    assert joined.abstention.tau > alone.abstention.tau + 0.05


def test_the_same_table_gives_the_same_bytes(graded: Refitted) -> None:
    """A refit repeats to the byte, and its version names its content."""
    by_passages = replace(OPTIONS, policy=Policy.GRADED, objective=Objective.MONEY, prices=(0.12,))
    again, _ = refit(graded.table, by_passages)
    assert canonical_bytes(again) == canonical_bytes(graded.artifact)
    assert again.version.startswith("2026-01-01-")


def test_the_same_table_gives_the_same_ladder(gained: Refitted) -> None:
    """Heads, scope, centroids and certificates repeat to the byte, too."""
    again, summary = refit(gained.table, GAIN)
    assert canonical_bytes(again) == canonical_bytes(gained.artifact)
    assert summary.stats.to_bytes() == gained.summary.stats.to_bytes()
    assert again.stats == summary.stats.digest


def test_every_state_that_is_needed_has_its_heads(gained: Refitted) -> None:
    """P of every answer of every state, Q of every purchase, and predictions ahead for chat."""
    ks = gained.table.ks
    heads, values = gained.artifact.heads, gained.ladder.values
    for state in (*states(ks), *graded_states(ks)):
        assert set(answers_of(state)) <= set(heads.get(state, {}))
    assert set(heads["search+k0"]) == set(ks)
    for state in states(ks):
        assert set(values.get(state, {})) == set(purchases(state, ks))
    assert set(gained.ladder.costs) == {"search", *(f"k{k}" for k in ks)}


def test_graded_is_certified_by_choice(graded: Refitted) -> None:
    """Then the artifact has no ladder, and serves the thresholds that were certified."""
    artifact = graded.artifact
    assert artifact.ladder is None
    assert artifact.certified
    certificate = artifact.policies["graded"].certificate
    assert certificate is not None
    assert certificate.bound >= -0.02
    assert artifact.policies["graded"].thresholds not in FIXED
    assert "for the ladder only" in (artifact.abstention.uncertified_reason or "")
    assert graded.test["cost"]["money"]["graded"]["ratio_to_k5"] < 0.8


def test_only_one_policy_is_certified(gained: Refitted) -> None:
    """With a ladder, `graded` and `binary` have thresholds to compare with, and a reason for no certificate."""
    for fit in gained.artifact.policies.values():
        assert fit.certificate is None
        assert "--policy graded" in (fit.uncertified_reason or "")


def test_the_gateway_decides_as_the_job_did_for_graded(graded: Refitted) -> None:
    """Row by row, the serving code chooses the k that the job counted, with the same confidence."""
    artifact, table = graded.artifact, graded.table
    found = serve(table, artifact, graded.summary.stats.centroids)
    policy = resolve(AskOptions(), replace(artifact, scope=None), ks=artifact.ks)
    for row in range(0, 900, 7):
        signals = {k: {name: float(v[row]) for name, v in named.items()} for k, named in table.signals.items()}
        reply = walk(policy, Answers(signals)).reply
        assert reply.k == found.k[row]
        assert reply.certified
        assert reply.confidence == pytest.approx(found.confidence[row], abs=1e-9)
    assert set(found.k) == {0, 1, 5}


def test_a_table_without_evidence_beyond_signals_refits() -> None:
    """Its heads use signals alone, and its scope has no floor."""
    found = refitted(World(), 400, replace(OPTIONS, epsilon=0.1))
    assert found.ladder.certificate is not None
    named = {name for heads in found.artifact.heads.values() for head in heads.values() for name in head.features}
    assert named == {"k0.seq_logprob", "k1.seq_logprob", "k5.seq_logprob"}
    assert found.artifact.scope is not None
    assert not found.artifact.scope.floors
    assert found.summary.stats.centroids.size == 0


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("goal", ["save", "gain"])
def test_a_table_where_every_label_is_the_same_refits(right: bool, goal: str) -> None:
    """There is nothing to learn: the cheapest answers are as good as any, and no gain exists."""
    table = World().draw(300, seed=1)[0]
    same = replace(table, correct={k: np.full(300, right) for k in table.ks})
    artifact, _ = refit(same, replace(OPTIONS, goal=goal, epsilon=0.1))
    assert artifact.ladder is not None
    assert (artifact.ladder.certificate is None) == (goal == "gain")
    certified = artifact.abstention.certificate is not None
    assert certified == (right and goal == "save")
    if goal == "save":
        found = serve(same, artifact, np.empty((0, 0), np.float32))
        assert (found.k == 0).all()


def test_rows_without_signals_read_the_most_in_the_job_too() -> None:
    """Rows without closed-book signals are counted as the gateway would serve them, and have no confidence."""
    table = HELPED.draw(500, seed=4)[0]
    hidden = np.arange(500) % 4 == 0
    evidence = table.evidence | {"k0.seq_logprob": np.where(hidden, np.nan, table.evidence["k0.seq_logprob"])}
    signals = table.signals | {0: {"seq_logprob": evidence["k0.seq_logprob"]}}
    table = replace(table, signals=signals, evidence=evidence)
    artifact, summary = refit(table, replace(OPTIONS, prices=(0.3,), epsilon=0.2))
    assert artifact.ladder is not None
    assert artifact.ladder.certificate is not None
    found = serve(table, artifact, summary.stats.centroids)
    unknown = np.isnan(found.confidence)
    assert unknown.any()
    assert hidden[unknown].all()
    assert (found.k[unknown] == 5).all()


def test_rows_without_a_vector_have_no_nearness() -> None:
    """The centroids come from the others, and a row without one is not out of scope by that alone."""
    table = HELPED.draw(500, seed=4)[0]
    assert table.vectors is not None
    bare = np.arange(500) % 3 == 0
    vectors = np.where(bare[:, None], np.float32(np.nan), table.vectors)
    artifact, summary = refit(replace(table, vectors=vectors), replace(OPTIONS, prices=(0.3,)))
    assert np.isfinite(summary.stats.centroids).all()
    assert artifact.scope is not None
    assert artifact.scope.nearness_alone is not None
    assert artifact.heads
    of = Fitted.of(replace(table, vectors=vectors), artifact.heads, artifact.scope, summary.stats.centroids)
    assert of.out_of_scope[bare & ~table.out_of_corpus].mean() < 0.1


def test_too_few_labels_give_no_certificate_and_the_next_step() -> None:
    """Sixty groups give a ladder without a certificate, and a reason in words."""
    found = refitted(World(level=(0.0, 0.2, 0.25), shared=0.2), 60, replace(OPTIONS, epsilon=0.01), seed=2)
    assert found.ladder.certificate is None
    assert found.ladder.labels_needed is not None
    assert found.ladder.labels_needed.text in (found.ladder.uncertified_reason or "")
    assert found.artifact.fallback_k == 5
    assert any(note.startswith("always-k5 serves") for note in found.summary.notes)
    assert not found.artifact.certified


def test_a_table_without_reading_signals_refits() -> None:
    """Without open-book signals the ladder decides on the probe alone, and shows a confidence for every answer."""
    found = refitted(World(reading_signals=False), 400, replace(OPTIONS, epsilon=0.1), seed=3)
    assert found.artifact.heads["search+k0+k1"][1].features == ("k0.seq_logprob",)
    given = serve(found.table, found.artifact, found.summary.stats.centroids)
    assert np.isfinite(given.confidence).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objective": Objective.LATENCY}, r"needs k0\.ms"),
        ({"objective": Objective.MONEY, "tariff": Tariff()}, "needs prices"),
        ({"reference": "k7"}, "choose among every, largest, k0, k1, k5"),
    ],
)
def test_impossible_options_are_refused(changes: dict[str, Any], words: str) -> None:
    """An unknown reference, or an objective that the table has no data for, is refused with a fix."""
    with pytest.raises(DataError, match=words):
        refit(World().draw(100, seed=1)[0], replace(OPTIONS, **changes))


def test_ten_groups_are_refused() -> None:
    """Too few groups end in a message and not in an artifact."""
    with pytest.raises(DataError, match="10 groups are too few"):
        refit(World(phrasings=5).draw(10, seed=1)[0], OPTIONS)


def test_levels_must_be_probabilities() -> None:
    """An epsilon of zero or a delta of one is refused before any work."""
    with pytest.raises(DataError, match="delta"):
        Options("x", "2026", delta=1.0)


def test_the_reference_can_be_one_k() -> None:
    """With always-k5 as the reference the certificate names it, and k1 may be better."""
    found = refitted(World(support=2.0), 400, replace(OPTIONS, reference="k5", prices=(0.12,)))
    assert found.ladder.certificate is not None
    assert found.ladder.certificate.reference == "always-k5"


def test_a_budget_that_nothing_meets_is_noted() -> None:
    """`gain` then takes the cheapest step, and says so."""
    found = refitted(World(), 100, replace(GAIN, budget=0.01, prices=(0.0, 0.3)))
    assert any("within 0.01 of always-largest's" in note for note in found.summary.notes)


def test_publishing_writes_a_file_that_reads_back(tmp_path: Path, gained: Refitted) -> None:
    """What is published is what was fitted, checksum, statistics and all, and CURRENT names it."""
    artifact, summary = gained.artifact, gained.summary
    published = publish(artifact, summary.stats, tmp_path / "c", test=summary.test)
    assert published.current
    store = ArtifactStore(tmp_path / "c")
    assert store.current() == artifact.version
    assert canonical_bytes(store.load(artifact.version)) == canonical_bytes(artifact)
    assert np.array_equal(store.load_stats(artifact).centroids, summary.stats.centroids)
    left = sorted(path.name for path in (tmp_path / "c").glob("[!.]*"))
    assert left == [f"{artifact.version}.json", "CURRENT", f"stats-{artifact.stats}.json"]
    (change,) = store.history()
    assert (change.version, change.before, change.by) == (artifact.version, None, "refit")
    assert publish(artifact, summary.stats, tmp_path / "c", test=summary.test).current


def test_a_worse_artifact_is_written_but_not_served(tmp_path: Path, gained: Refitted) -> None:
    """Uncertified after certified, or less accurate on the same test split, leaves CURRENT alone unless forced."""
    artifact, summary, ladder = gained.artifact, gained.summary, gained.ladder

    def published(one: Artifact, *, force: bool = False) -> tuple[bool, str]:
        result = publish(one, summary.stats, tmp_path, test=summary.test, force=force)
        assert Path(result.path).exists()
        return result.current, result.why

    assert published(artifact)[0]
    current, why = published(replace(artifact, version="v2", ladder=replace(ladder, certificate=None)))
    assert not current
    assert "certified" in why
    # At this price nothing but the cheapest is bought.
    blind = replace(artifact, version="v3", ladder=replace(ladder, t=100.0))
    current, why = published(blind)
    assert not current
    assert "on the test split its accuracy minus that of" in why
    assert ArtifactStore(tmp_path).current() == artifact.version
    assert published(blind, force=True)[0]
    assert ArtifactStore(tmp_path).current() == "v3"


def test_graded_artifacts_are_compared_as_they_are_served(tmp_path: Path, graded: Refitted) -> None:
    """An artifact without a ladder serves its thresholds: worse ones are refused, though its fallback is the same."""
    artifact, summary = graded.artifact, graded.summary
    assert publish(artifact, summary.stats, tmp_path, test=summary.test).current
    assert publish(artifact, summary.stats, tmp_path, test=summary.test).current
    fit = artifact.policies["graded"]
    blind = replace(artifact, version="v2", policies={"graded": replace(fit, thresholds=FIXED[0])})
    refused = publish(blind, summary.stats, tmp_path, test=summary.test)
    assert not refused.current
    assert "95 % interval -" in refused.why


def test_an_artifact_by_money_can_be_replaced(tmp_path: Path) -> None:
    """Comparing what is served needs no tariff."""
    options = replace(OPTIONS, objective=Objective.MONEY, epsilon=0.2, prices=(0.12,))
    found = refitted(World(), 200, options)
    assert found.ladder.certificate is not None
    for _ in range(2):
        published = publish(found.artifact, found.summary.stats, tmp_path, test=found.summary.test)
        assert published.current


def test_another_identity_publishes_nothing(tmp_path: Path, gained: Refitted) -> None:
    """A table of another system is refused by name, and no file appears; without identity CURRENT stays."""
    artifact, summary = gained.artifact, gained.summary
    publish(artifact, summary.stats, tmp_path, test=summary.test)
    other = replace(artifact, version="v2", identity=replace(IDENTITY, reader="another"))
    with pytest.raises(DataError, match=r"world\.jsonl:1: .*reader: fitted on 'reader', running 'another'"):
        publish(other, summary.stats, tmp_path, test=summary.test)
    assert not (tmp_path / "v2.json").exists()
    nameless = replace(artifact, version="v3", identity=None)
    assert not publish(nameless, summary.stats, tmp_path, test=summary.test, force=True).current
    assert ArtifactStore(tmp_path).current() == artifact.version


def test_an_unreadable_current_is_replaced(tmp_path: Path, gained: Refitted) -> None:
    """Where CURRENT points at nothing readable, the new artifact takes its place and says so."""
    (tmp_path / "CURRENT").write_text("gone\n")
    summary = gained.summary
    published = publish(gained.artifact, summary.stats, tmp_path, test=summary.test)
    assert published.current
    assert "could not be read" in published.why


def test_a_group_has_weight_one(saved: Refitted) -> None:
    """Phrasing half of the test's facts five times over changes no accuracy, share or mean cost of the report."""
    table = saved.table
    _, _, test = split(table)
    kept = {*test.outcomes.groups}
    often = np.repeat(
        np.arange(len(table)), [5 if group in kept and row % 2 else 1 for row, group in enumerate(table.groups)]
    )
    artifact, _ = refit(table.take(often), OPTIONS)
    once, many = saved.test, artifact.report["test"]
    assert many["n"] > once["n"]
    assert many["groups"] == once["groups"]
    for policy in ("ladder", "graded", "k1"):
        assert many["accuracy"][policy]["value"] == pytest.approx(once["accuracy"][policy]["value"])
        assert many["cost"]["tokens"][policy]["mean"] == pytest.approx(once["cost"]["tokens"][policy]["mean"])
    for figure in ("ece", "brier"):
        assert many["p0"][figure] == pytest.approx(once["p0"][figure])
        assert many["confidence"][figure] == pytest.approx(once["confidence"][figure])
    assert many["selective"]["coverage"]["value"] == pytest.approx(once["selective"]["coverage"]["value"])


@pytest.mark.skipif(not SHARED.exists(), reason="needs the published outcome tables next to this checkout")
@pytest.mark.parametrize("name", ["nq", "squad"])
def test_the_published_tables_refit(name: str) -> None:
    """Real answers without passages refit into an artifact that is never served."""
    artifact, _ = refit(load(SHARED / f"{name}.jsonl"), replace(OPTIONS, objective=Objective.MONEY))
    assert artifact.identity is None
    assert artifact.ladder is not None
    assert artifact.fallback_k == 5
