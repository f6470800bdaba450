"""What a refit reads from the log: shadow runs and current verdicts; on SQLite and PostgreSQL."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from sqlalchemy import func, select

from app.core.feedback import Feedback
from app.core.policy import Retrieval
from app.core.record import DecisionRecord, FullRun, Outcome
from app.storage import reading as decision_reading
from app.storage.decisions import SqlDecisionStore
from app.storage.reading import LoggedDecisions
from app.storage.tables import Texts, full_runs
from tests.fakes.artifacts import an_identity
from tests.fakes.records import a_record


def opened(log_at: str, texts: Texts = "full") -> SqlDecisionStore:
    return SqlDecisionStore.open(log_at, texts=texts, busy_timeout_s=20)


@pytest.fixture
def store(log_at: str) -> Iterator[SqlDecisionStore]:
    one = opened(log_at)
    yield one
    one.close()


def a_shadow(identifier: str = "0123", **changes: Any) -> FullRun:
    """A run in which reading helps."""
    outcomes = {
        k: Outcome(answer, {"seq_logprob": -0.5 / (k + 1)}, 40 + 100 * k, 5, k, 20.0 + k)
        for k, answer in ((0, "He"), (1, "She"), (5, "It was she."))
    }
    return FullRun(identifier, an_identity(**changes), outcomes, {"search.cosine": 0.5})


def logged_decisions(store: SqlDecisionStore, since: float = 0.0) -> LoggedDecisions:
    return LoggedDecisions(store.database, collection="demo", since=since)


def runs(store: SqlDecisionStore) -> int:
    with store.database.engine.connect() as connection:
        return int(connection.scalar(select(func.count()).select_from(full_runs)) or 0)


def test_a_run_comes_back_with_the_verdict_on_its_decision(store: SqlDecisionStore) -> None:
    """Everything that a refit needs."""
    record = a_record(
        signals={"seq_logprob": -0.25},
        read_signals={"seq_logprob": -0.125},
        share=0.75,
        calibrator="v1",
        tau_abstain=0.5,
    )
    store.write([(1.0, record), (2.0, a_shadow())], [(3.0, Feedback("0123", references=("she",)))])
    (one,) = logged_decisions(store).read()
    assert (one.id, one.created_at, one.question, one.k, one.reason) == ("0123", 1.0, "Who?", 1, "borderline")
    assert (one.retrieval, one.filtered, one.calibrator) == ("auto", False, "v1")
    assert (one.solicited, one.shadowed) == (False, False)
    assert one.propensities == {"k0": 0.25, "k1": 0.5, "k5": 0.25}
    assert (one.evidence["k0.seq_logprob"], one.evidence["k1.seq_logprob"]) == (-0.25, -0.125)
    assert (one.correct, one.references) == (True, ["she"])
    assert one.outcomes == {str(k): asdict(outcome) for k, outcome in a_shadow().outcomes.items()}
    assert one.full_evidence == {"search.cosine": 0.5}
    assert one.identity is not None
    assert one.identity["reader"] == "fake-reader"


def test_the_last_word_is_read_once(store: SqlDecisionStore) -> None:
    """Of several verdicts on one answer the last counts; decisions without one are not lessons."""
    store.write([(1.0, a_record(id=name)) for name in "abc"], [(2.0, Feedback("b", correct=True))])
    store.write([], [(3.0, Feedback("a", correct=True)), (4.0, Feedback("b", correct=False))])
    assert [(one.id, one.correct) for one in logged_decisions(store).read()] == [("a", True), ("b", False)]


def test_pages_join_without_gap_or_overlap(store: SqlDecisionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of several pages is read whole, in order, and only what is wanted."""
    monkeypatch.setattr(decision_reading, "PAGE", 7)
    records = [a_record(id=f"{n:03}", collection="demo" if n % 3 else "other") for n in range(60)]
    store.write([(float(n), one) for n, one in enumerate(records)], [])
    store.write([], [(99.0, Feedback(one.question.id, correct=True)) for one in records])
    read = [one.id for one in logged_decisions(store, since=10.0).read()]
    assert read == [f"{n:03}" for n in range(10, 60) if n % 3]
    assert logged_decisions(store).span() == (1, 60)


def test_an_empty_log_teaches_nothing(store: SqlDecisionStore) -> None:
    """No verdict, no run, no identity."""
    assert list(logged_decisions(store).read()) == []
    assert logged_decisions(store).span() == (0, 0)
    assert logged_decisions(store).latest_identity() is None
    assert logged_decisions(store).shadowed(labelled=True).count == 0


def test_a_run_is_kept_once_and_only_with_its_decision(store: SqlDecisionStore) -> None:
    """A batch that is written again changes nothing; a run whose decision was dropped is dropped too."""
    entries: list[tuple[float, DecisionRecord | FullRun]] = [(1.0, a_record())]
    entries += [(2.0, a_shadow()), (2.0, a_shadow("dropped"))]
    store.write(entries, [])
    store.write(entries, [])
    assert runs(store) == 1
    assert store.prune(time.time() - 4.5, limit=10) == 1
    assert runs(store) == 0


def test_withheld_answers_take_references_for_their_run(store: SqlDecisionStore) -> None:
    """There is no verdict, and the run can still be labelled."""
    store.write([(1.0, a_record(answer=None)), (2.0, a_shadow())], [])
    store.write([], [(3.0, Feedback("0123", references=("she",)))])
    (one,) = logged_decisions(store).read()
    assert (one.correct, one.references) == (None, ["she"])
    assert one.outcomes is not None


def test_with_hashes_no_answer_is_kept(log_at: str) -> None:
    """Neither the question nor an answer of a run is in the log."""
    store = opened(log_at, "hash")
    store.write([(1.0, a_record(question="Who is ill?")), (2.0, a_shadow())], [(3.0, Feedback("0123", correct=True))])
    (one,) = logged_decisions(store).read()
    store.close()
    assert one.question is None
    assert one.outcomes is not None
    assert [cell["answer"] for cell in one.outcomes.values()] == [None] * 3
    assert "she" not in str(one)


def test_the_latest_identity_and_what_waits_for_labels(store: SqlDecisionStore) -> None:
    """The last run's system counts; runs are counted by whether references ever came, with their probabilities."""
    for number, p in enumerate((0.2, 0.4, 0.9)):
        store.write([(1.0, a_record(id=str(number), p_closed_book=p)), (2.0, a_shadow(str(number)))], [])
    elsewhere = a_record(id="x", collection="other", retrieval=Retrieval.AUTO)
    store.write([(3.0, a_record(id="y")), (3.0, a_shadow("y", reader="new")), (3.0, elsewhere)], [])
    store.write([(4.0, a_shadow("x", reader="elsewhere"))], [])
    store.write(
        [], [(9.0, Feedback(name, references=("she",))) for name in "01"] + [(9.0, Feedback("2", correct=True))]
    )
    latest = logged_decisions(store).latest_identity()
    assert latest is not None
    assert latest["reader"] == "new"
    labelled = logged_decisions(store).shadowed(labelled=True)
    assert labelled.count == 2
    assert (labelled.mean, labelled.variance) == pytest.approx((0.3, 0.01))
    assert logged_decisions(store).shadowed(labelled=False).count == 2
