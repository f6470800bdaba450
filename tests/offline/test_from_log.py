"""Refitting from the log, by simulation: what the gate's own choices hide, and what chance and shadow runs show."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import null, update

from app.calibrators.store import ArtifactStore
from app.certify.plan import train_share
from app.core.corpus_stats import CorpusStats
from app.core.feedback import Feedback
from app.core.heads import Head
from app.core.policy import Policy
from app.core.record import DecisionRecord, FullRun
from app.errors import DataError
from app.offline.from_log import Excluded, identities, read_log
from app.offline.refit.fit import fit
from app.offline.refit.refit import refit
from app.offline.refit.splits import position, split
from app.offline.table import normalise_group
from app.storage.decisions import SqlDecisionStore
from app.storage.reading import LoggedDecision, LoggedDecisions
from app.storage.tables import decisions
from tests.fakes.artifacts import an_identity
from tests.offline.logs import GRID, KS, SERVED, Hidden, a_run, decision, read, state_at, step, write_log
from tests.offline.world import OPTIONS as BY_PASSAGES

OPTIONS = replace(BY_PASSAGES, source="decision log", policy=Policy.GRADED)
# The gate reads nothing from s = 0.75 on and one passage from 0.5 on. Just below, either becomes a bad idea.
CLIFF = Hidden({0: step(0.75, 0.2, 0.9), 1: step(0.5, 0.3, 0.85), 5: step(0.0, 0.8, 0.8)})
# One passage has become as good as five: a gate that always reads five cannot show it.
BETTER = Hidden({0: step(0.75, 0.2, 0.9), 1: step(0.0, 0.85, 0.85), 5: step(0.0, 0.8, 0.8)})


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 2,000 questions about CLIFF three tenths were answered at random, and a tenth shadowed."""
    path = tmp_path_factory.mktemp("log") / "decisions.sqlite3"
    write_log(path, CLIFF, 2000, seed=3, explore_share=0.3, shadow_share=0.1)
    return path


def judged(path: Path) -> list[LoggedDecision]:
    store = SqlDecisionStore.open(str(path))
    found = list(LoggedDecisions(store.database, collection="demo", since=0.0).read())
    store.close()
    return found


def naive(logged_decisions: list[LoggedDecision]) -> dict[str, dict[int, Head]]:
    """What everybody would fit first: verdicts on what was served, each counting one."""

    def one(k: int) -> Head:
        rows = [logged for logged in logged_decisions if logged.k == k]
        name = f"k{k}.seq_logprob"
        columns = {name: np.array([row.evidence[name] for row in rows])}
        return fit("logistic", (name,), columns, np.array([bool(row.correct) for row in rows]))

    return {state_at(k): {k: one(k)} for k in KS}


def test_exploration_shows_what_the_gate_hides_from_a_naive_refit(tmp_path: Path, explored: Path) -> None:
    """Fitted on the gate's own choices p0 and p1 err by over a quarter; with exploration by less than half as much."""
    write_log(tmp_path / "gate.sqlite3", CLIFF, 2000, seed=3)
    fitted = naive(judged(tmp_path / "gate.sqlite3"))
    missed = {k: CLIFF.error(fitted, k) for k in (0, 1)}
    hidden = {0: GRID[GRID < 0.75], 1: GRID[GRID < 0.5]}
    worst = {k: CLIFF.error(fitted, k, hidden[k]) for k in (0, 1)}
    logged = read(explored)
    weighted, _ = refit(logged.outcomes, OPTIONS, logged=logged.rows)
    alone, _ = refit(logged.outcomes, OPTIONS)
    recovered = {k: CLIFF.error(weighted.heads, k) for k in (0, 1)}
    few = {k: CLIFF.error(alone.heads, k) for k in (0, 1)}
    figures = {"naive": missed, "naive where hidden": worst, "weighted": recovered, "full rows alone": few}
    print(figures)
    for k in (0, 1):
        assert missed[k] > 0.25, figures
        assert recovered[k] < 0.5 * missed[k], figures
        assert recovered[k] < few[k], figures


def test_weights_undo_the_gates_choice_where_the_model_is_wrong(explored: Path) -> None:
    """A straight line through a cliff: unweighted it sits where the gate looked, weighted it is right on average."""
    truth = float(CLIFF.chance[1](GRID).mean())
    mean = {}
    for clip in (1.0, 1e9):
        logged = read(explored, clip=clip)
        train = split(logged.outcomes)[0].outcomes
        single, name = logged.rows.single["search+k0+k1", 1], "k1.seq_logprob"
        column = np.concatenate([train.evidence[name], single.columns[name]])
        weights = np.concatenate([np.ones(len(train)), single.weights])
        line = fit("logistic", (name,), {name: column}, np.concatenate([train.correct[1], single.right]), weights)
        mean[clip] = float(np.mean([line.predict({name: s - 1.0}) for s in GRID]))
    assert abs(mean[1e9] - truth) < 0.04, (mean, truth)
    assert abs(mean[1.0] - truth) > abs(mean[1e9] - truth) + 0.04, (mean, truth)


def test_shadow_rows_find_the_policy_and_certify_it(tmp_path: Path) -> None:
    """Where one passage has become enough, the gate that reads five learns it, and the certificate is true."""
    path = tmp_path / "decisions.sqlite3"
    write_log(path, BETTER, 3000, seed=5, shadow_share=0.5)
    logged = read(path)
    artifact, summary = refit(logged.outcomes, OPTIONS, logged=logged.rows)
    graded = artifact.policies["graded"]
    before, passages_before = BETTER.served(SERVED.heads, SERVED.policies["graded"].thresholds)
    after, passages_after = BETTER.served(artifact.heads, graded.thresholds)
    figures = (before, passages_before, after, passages_after)
    assert graded.certificate is not None
    assert graded.certificate.n == artifact.report["splits"]["validation"]["groups"]
    assert after > before, figures
    assert after >= -OPTIONS.epsilon, figures
    assert passages_after < 0.5 * passages_before, figures
    assert artifact.data_window.rows == artifact.report["log"]["full_rows"] == len(logged.outcomes)
    assert artifact.data_window.first is not None
    assert artifact.data_window.last is not None
    assert artifact.data_window.first.startswith("2023-11-14T22:13")
    assert artifact.data_window.last > artifact.data_window.first
    assert any("full rows" in note for note in summary.notes)


def test_single_action_rows_touch_nothing_but_the_fits(explored: Path) -> None:
    """Splits and labels are those of full rows alone, and no weighted row is of a question held out or known whole."""
    logged = read(explored)
    artifact, _ = refit(logged.outcomes, OPTIONS, logged=logged.rows)
    alone, _ = refit(logged.outcomes, OPTIONS)
    for part in ("splits", "train_accuracy"):
        assert artifact.report[part] == alone.report[part]
    assert artifact.report["test"]["accuracy"]["k1"] == alone.report["test"]["accuracy"]["k1"]
    assert artifact.heads != alone.heads
    account = artifact.report["log"]
    assert sum(part["rows"] for part in artifact.report["splits"].values()) == account["full_rows"]
    full, share = set(logged.outcomes.ids), train_share(len(set(logged.outcomes.groups)))
    train = [
        one for one in judged(explored) if one.id not in full and position(normalise_group(one.question or "")) < share
    ]
    assert account["single_action_rows"] == len(train)
    assert {name: one["rows"] for name, one in account["worth"].items()} == {
        f"{state_at(k)}:k{k}": sum(one.k == k for one in train) for k in KS
    }


def test_the_effective_size_of_the_rows_is_reported(explored: Path) -> None:
    """Rows, Kish's size, the clip and the clipped share stand in the report and in the notes."""
    logged = read(explored, clip=5.0)
    share = train_share(len(set(logged.outcomes.groups)))
    train = [
        one
        for one in judged(explored)
        if one.outcomes is None and position(normalise_group(one.question or "")) < share and one.k == 1
    ]
    assert all(one.propensities is not None for one in train)
    weights = np.array([min(1.0 / one.propensities["k1"], 5.0) for one in train if one.propensities])
    account = logged.rows.report["log"]
    assert account["clip"] == 5.0
    worth = account["worth"]["search+k0+k1:k1"]
    assert worth["rows"] == len(train)
    assert worth["effective"] == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    assert worth["clipped"] == pytest.approx(np.mean(weights == 5.0))
    assert worth["effective"] < worth["rows"]
    (note,) = [note for note in logged.rows.notes if "single-action rows are used" in note]
    assert "clipped at 5" in note
    assert f"k=1 after search+k0+k1 {worth['rows']} rows, effective size {worth['effective']:.0f}" in note


Batch = tuple[list[tuple[float, DecisionRecord | FullRun]], list[tuple[float, Feedback]]]


def a_full_row(
    name: str,
    question: str,
    *,
    s: float = 0.6,
    right: dict[int, bool] | None = None,
    references: tuple[str, ...] = ("right",),
) -> Batch:
    """A decision, its shadow run, and reference answers."""
    run = a_run(name, s, right or dict.fromkeys(KS, True))
    record = decision(name, question, s, share=0.0, u=0.0)
    return [(1.0, record), (2.0, run)], [(3.0, Feedback(name, references=references))]


def add(store: SqlDecisionStore, *batches: Batch) -> None:
    """Write them in one go."""
    store.write([one for entries, _ in batches for one in entries], [one for _, given in batches for one in given])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlDecisionStore]:
    """A log with sixty full rows; tests add one unusual row."""
    one = SqlDecisionStore.open(str(tmp_path / "decisions.sqlite3"))
    add(one, *(a_full_row(f"full-{i}", f"Full {i}?", s=i / 60, right=dict.fromkeys(KS, i % 2 == 0)) for i in range(60)))
    yield one
    one.close()


def add_single(store: SqlDecisionStore, name: str, question: str, *, withheld: bool = False, **columns: object) -> None:
    """One judged answer, of whose row some columns are then made what they should not be."""
    record = decision(name, question, 0.6, share=0.1, u=0.9)
    if withheld:
        record = replace(record, reply=replace(record.reply, text=None, withheld=True))
    store.write([(1.0, record)], [(3.0, Feedback(name, references=("right",)))])
    if columns:
        with store.database.engine.begin() as connection:
            connection.execute(update(decisions).where(decisions.c.id == name).values(**columns))


def questions(*, train: bool) -> Iterator[str]:
    """Questions that hash to train, or to elsewhere."""
    for number in range(10_000):
        question = f"Single {number}?"
        place = position(normalise_group(question))
        # Whatever the number of groups: train is a quarter to a half.
        if place < 0.25 if train else place >= 0.5:
            yield question


def test_excluded_decisions_are_counted_by_reason(store: SqlDecisionStore, tmp_path: Path) -> None:
    """One decision for every reason to exclude it, and one that can be used."""
    train, elsewhere = questions(train=True), questions(train=False)
    add_single(store, "used", next(train))
    add_single(store, "no chance", next(train), propensities=null())
    add_single(store, "volunteered", next(train), solicited=False)
    add_single(store, "withheld", next(train), withheld=True)
    add_single(store, "gone", next(train), calibrator="lost")
    add_single(store, "narrowed", next(train), filtered=True)
    add_single(store, "required", next(train), retrieval="required")
    add_single(store, "failed", next(train), reason="no_passages", k=0)
    add_single(store, "held out", next(elsewhere))
    known = next(
        question for question in (f"Full {i}?" for i in range(60)) if position(normalise_group(question)) < 0.4
    )
    add_single(store, "known", known)
    other = a_run("other", 0.6, dict.fromkeys(KS, True), an_identity(prompts="changed"))
    # Not the latest run, or it would be the system to fit.
    store.write([(1.0, decision("other", next(train), 0.6, share=0.0, u=0.0)), (2.0, other)], [])
    store.write([], [(3.0, Feedback("other", references=("right",)))])
    add(store, a_full_row("last", "Last?"))
    private = SqlDecisionStore.open(str(tmp_path / "decisions.sqlite3"), texts="hash")
    private.write(
        [(1.0, decision("private", next(train), 0.6, share=0.1, u=0.9))], [(2.0, Feedback("private", correct=True))]
    )
    private.close()
    logged = read(tmp_path / "decisions.sqlite3")
    account = logged.rows.report["log"]
    assert account["excluded"] == {
        Excluded.NO_CHANCE.name.lower(): 1,
        Excluded.VOLUNTEERED.name.lower(): 1,
        Excluded.WITHHELD.name.lower(): 1,
        Excluded.NO_CALIBRATOR.name.lower(): 1,
        Excluded.NARROWED.name.lower(): 2,
        Excluded.DIVERTED.name.lower(): 1,
        Excluded.HELD_OUT.name.lower(): 1,
        Excluded.KNOWN_WHOLE.name.lower(): 1,
        Excluded.OTHER_SYSTEM.name.lower(): 1,
        Excluded.NO_TEXT.name.lower(): 1,
    }
    assert (account["full_rows"], account["single_action_rows"]) == (61, 1)
    (note,) = [note for note in logged.rows.notes if "left out" in note]
    assert "2 restricted by the caller" in note


def test_turns_of_chats_are_a_population_of_their_own(store: SqlDecisionStore, tmp_path: Path) -> None:
    """Their shadow runs are full rows; their verdicts are about written texts, and are only reported."""
    train = questions(train=True)
    for number in range(60):
        add(store, a_full_row(f"turn-{number}", f"Turn {number}?", s=number / 60))
    with store.database.engine.begin() as connection:
        connection.execute(update(decisions).where(decisions.c.id.like("turn-%")).values(mode="chat"))
    for name, reason in (("chosen", "uncertain"), ("drawn", "explored")):
        add_single(store, name, next(train), mode="chat", reason=reason)
    add_single(store, "volunteered", next(train), mode="chat", solicited=False)
    add_single(store, "long", next(train), mode="full")
    answers = read(tmp_path / "decisions.sqlite3")
    assert len(answers.outcomes) == 60
    assert all(name.startswith("full-") for name in answers.outcomes.ids)
    assert answers.rows.report["log"]["excluded"] == {"written": 1}
    assert answers.rows.report["log"]["turns"] == {"chosen": {}, "explored": {}}
    chats = read(tmp_path / "decisions.sqlite3", chat=True)
    assert all(name.startswith("turn-") for name in chats.outcomes.ids)
    account = chats.rows.report["log"]
    assert account["excluded"] == {"written": 2, "volunteered": 1}
    assert sum(one.n for one in account["turns"]["chosen"].values()) == 61
    assert [(k, one.n) for k, one in account["turns"]["explored"].items()] == [("k1", 1)]
    assert any("turns of chats whose k was explored: k1" in note for note in chats.rows.notes)
    assert not chats.rows.single


def test_single_rows_of_another_system_are_left_out(store: SqlDecisionStore, tmp_path: Path) -> None:
    """A calibrator that was fitted on other prompts decided about other answers."""
    add_single(store, "used", next(questions(train=True)))
    elsewhere = replace(SERVED, identity=an_identity(prompts="changed"))
    account = read(tmp_path / "decisions.sqlite3", artifact=elsewhere).rows.report["log"]
    assert account["excluded"] == {"other_system": 1}
    assert account["worth"] == {}


def test_references_that_contradict_each_other_are_left_out(store: SqlDecisionStore, tmp_path: Path) -> None:
    """Two right answers that no rule holds equal cannot both be; other words for the same can."""
    add(
        store,
        a_full_row("a", "What is it?", references=("right",)),
        a_full_row("b", "what is it", references=("left",)),
        a_full_row("c", "Which one?", references=("right",)),
        a_full_row("d", "Which one", references=("right", "the correct one")),
    )
    logged = read(tmp_path / "decisions.sqlite3")
    assert logged.rows.report["log"]["excluded"] == {"disputed": 2}
    assert {"c", "d"} <= set(logged.outcomes.ids)
    assert not {"a", "b"} & set(logged.outcomes.ids)


@pytest.mark.parametrize(
    "chances", [{"k0": 0.5, "k5": 0.5}, {"k0": 0.0, "k1": 0.0, "k5": 1.0}, {"k0": 0.9, "k1": 0.9, "k5": 0.9}]
)
def test_impossible_chances_are_refused_by_name(
    store: SqlDecisionStore, tmp_path: Path, chances: dict[str, float]
) -> None:
    """An action that had no chance was not taken by it: the log is damaged, and the decision is named."""
    add_single(store, "odd", next(questions(train=True)), propensities=chances)
    with pytest.raises(DataError, match=r"decision log:odd: k=1 was read, .* --since"):
        read(tmp_path / "decisions.sqlite3")


def test_a_signal_that_is_no_number_is_refused_by_name(store: SqlDecisionStore, tmp_path: Path) -> None:
    """In a single-action row as in a full one."""
    add_single(store, "odd", next(questions(train=True)), evidence={"k1.margin": "high"})
    with pytest.raises(DataError, match=r"decision log:odd: the evidence k1\.margin is not a number"):
        read(tmp_path / "decisions.sqlite3")


def test_too_few_full_rows_say_how_many_and_how_to_get_more(tmp_path: Path) -> None:
    """A log without runs, and one with few, name the setting and the endpoint; one of hashes says that."""
    path = tmp_path / "decisions.sqlite3"
    one = SqlDecisionStore.open(str(path))
    add_single(one, "single", "Single?")
    with pytest.raises(DataError, match=r"no shadow run.*FETCHWISE_SHADOW_SHARE.*`references`"):
        read(path)
    add(one, *(a_full_row(f"{i}", f"Full {i}?") for i in range(20)))
    one.write(
        [
            (1.0, decision("waits", "Waits?", 0.6, share=0.0, u=0.0)),
            (2.0, a_run("waits", 0.6, dict.fromkeys(KS, True))),
        ],
        [],
    )
    with pytest.raises(
        DataError,
        match=r"20 questions have a shadow run .* 50 are needed.* 1 shadow runs have no references yet.*/feedback",
    ):
        read(path)
    one.close()
    hashed = tmp_path / "hashed.sqlite3"
    private = SqlDecisionStore.open(str(hashed), texts="hash")
    private.write(
        [(1.0, decision("a", "A?", 0.6, share=0.1, u=0.9)), (2.0, a_run("a", 0.6, dict.fromkeys(KS, True)))], []
    )
    private.write([], [(3.0, Feedback("a", correct=True))])
    private.close()
    with pytest.raises(DataError, match=r"FETCHWISE_LOG_TEXTS=hash"):
        read(hashed)


def test_labels_that_are_not_a_random_sample_are_reported(store: SqlDecisionStore, tmp_path: Path) -> None:
    """Runs that wait are counted; where they look different from the labelled ones, the note says what that means."""
    fair = read(tmp_path / "decisions.sqlite3")
    assert not any("yet" in note for note in fair.rows.notes)
    add(store, *((a_full_row(f"hard-{i}", f"Hard {i}?", s=0.1)[0], []) for i in range(60)))
    (note,) = [note for note in read(tmp_path / "decisions.sqlite3").rows.notes if "yet" in note]
    assert "60 shadow runs have no reference answers yet" in note
    assert "label some at random" in note


def test_a_run_of_another_release_is_refused_or_left_out(store: SqlDecisionStore, tmp_path: Path) -> None:
    """An identity with other parts is none of ours: of the last run it is refused, before that it is left out."""
    strange = """UPDATE full_runs SET identity = '{"reader": "old"}' WHERE decision_id = '%s'"""
    with store.database.engine.begin() as connection:
        connection.exec_driver_sql(strange % "full-0")
    assert read(tmp_path / "decisions.sqlite3").rows.report["log"]["excluded"] == {"other_system": 1}
    with store.database.engine.begin() as connection:
        connection.exec_driver_sql(strange % "full-59")
    with pytest.raises(DataError, match="another version of Fetchwise"):
        read(tmp_path / "decisions.sqlite3")


def test_since_and_clip(store: SqlDecisionStore, tmp_path: Path) -> None:
    """Older decisions are not there, and a clip below one is refused."""
    with pytest.raises(DataError, match="no shadow run"):
        read(tmp_path / "decisions.sqlite3", since=10.0)
    with pytest.raises(DataError, match=r"clip is 0\.5"):
        read(tmp_path / "decisions.sqlite3", clip=0.5)


def test_versions_are_looked_up_in_every_folder(tmp_path: Path) -> None:
    """The folder that is published to, and the one that was served from; a file that is gone is None."""
    ArtifactStore(tmp_path / "b").publish(SERVED)
    identity_of = identities(tmp_path / "a", tmp_path / "b")
    assert identity_of(SERVED.version) == SERVED.identity
    assert identity_of("lost") is None


def test_evidence_with_other_word_counts_is_left_out(store: SqlDecisionStore, tmp_path: Path) -> None:
    """The table has the word counts of its last row; rows whose evidence was weighed otherwise are counted."""
    counts = CorpusStats(3, {"capital": 2})
    add_single(store, "used", next(questions(train=True)))
    add(store, a_full_row("other", "Other?"))
    with store.database.engine.begin() as connection:
        connection.execute(update(decisions).where(decisions.c.id == "other").values(calibrator="lost"))
    logged_decisions = LoggedDecisions(store.database, collection="demo", since=0.0)
    known = {SERVED.version: SERVED.identity}
    found = read_log(logged_decisions, identity_of=known.get, stats_of={SERVED.version: counts}.get)
    assert found.outcomes.stats == counts
    assert "other" not in found.outcomes.ids
    assert found.rows.report["log"]["excluded"] == {"other_words": 1}
    assert "scope.nearness" not in found.outcomes.evidence
    assert found.outcomes.evidence["k1.seq_logprob"][0] == -1.0
