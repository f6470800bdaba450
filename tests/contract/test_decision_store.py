"""What the decision log promises, on SQLite and on PostgreSQL."""

import hashlib
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.event import listen
from sqlalchemy.exc import InternalError

from app.core.artifact import Thresholds
from app.core.available import Passage, Usage
from app.core.effective_policy import EffectivePolicy
from app.core.feedback import Asked, Feedback, Judged, Source
from app.core.ladder import Reply, Written
from app.core.question import Standalone, Writing
from app.core.record import DecisionRecord, FullRun, Outcome, Timings
from app.core.replay import Replayed, replay_logged
from app.errors import BadRequest, ConfigurationError, LogUnavailable, NothingToJudge, UnknownDecision
from app.storage.decisions import MAX_FEEDBACK, SqlDecisionStore
from app.storage.reading import asked, count, logged, pages, stats
from app.storage.tables import Texts, decisions
from tests.e2e.postgres import PostgresServer
from tests.fakes.artifacts import an_artifact, an_identity
from tests.fakes.random_walks import policies, worlds
from tests.fakes.records import a_record
from tests.fakes.walks import World, walk
from tests.waiting import wait_until

Opener = Callable[..., SqlDecisionStore]


@pytest.fixture
def open_store(log_at: str) -> Iterator[Opener]:
    """Open the same database as often as wanted, as several workers do."""
    opened: list[SqlDecisionStore] = []

    def another(texts: Texts = "full") -> SqlDecisionStore:
        opened.append(SqlDecisionStore.open(log_at, texts=texts, busy_timeout_s=20))
        return opened[-1]

    yield another
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Opener) -> SqlDecisionStore:
    """An empty log."""
    return open_store()


def since(at: float) -> float:
    """The age of what was stored at that time."""
    return time.time() - at


def everything(store: SqlDecisionStore) -> list[dict[str, Any]]:
    """The whole log, oldest first."""
    return [row for page in pages(store.database, 0.0, size=3) for row in page]


def give(store: SqlDecisionStore, identifier: str = "0123", at: float = 5.0, **said: Any) -> Judged | BadRequest:
    """One feedback, one outcome."""
    (outcome,) = store.write([], [(at, Feedback(identifier, **said))])
    return outcome


FULL = a_record(
    id="whole",
    signals={"seq_logprob": -0.25, "margin@1": 2.5},
    read_signals={"seq_logprob@1": -0.125},
    thresholds=Thresholds(0.75, 0.5),
    tau_abstain=0.25,
    calibrator="2026-01-31-0a1b2c3d",
    certified=True,
    failure=("vectors", "timeout"),
    citations=(Passage("p1", "T", "text", 0.5), Passage("p2", "T", "text", 0.25)),
    tags={"team": "night"},
    share=0.75,
    explored=True,
    solicited=True,
    shadowed=True,
)


def test_every_field_of_a_decision_is_kept(store: SqlDecisionStore) -> None:
    """What was decided, why, from what, and what it cost can all be read back."""
    store.write([(1.5, FULL)], [])
    (row,) = everything(store)
    assert row == {
        "id": "whole",
        "created_at": 1.5,
        "key": None,
        "question": "Who?",
        "answer": "She",
        "message": None,
        "collection": "demo",
        "mode": "answer",
        "standalone": None,
        "policy": "ladder",
        "retrieval": "auto",
        "abstain": True,
        "filtered": False,
        "action": "k1",
        "k": 1,
        "reason": "borderline",
        "confidence": 0.75,
        "p_closed_book": 0.625,
        "evidence": FULL.available.evidence,
        "tau_abstain": 0.25,
        "calibrator": "2026-01-31-0a1b2c3d",
        "certified": True,
        "in_scope": True,
        "truncated": False,
        "propensities": {"k0": 0.25, "k1": 0.5, "k5": 0.25},
        "explored": True,
        "solicited": True,
        "shadowed": True,
        "searches": 1,
        "passages_read": 2,
        "tags": {"team": "night"},
        "question_sha256": hashlib.sha256(b"Who?").hexdigest(),
        "answer_sha256": hashlib.sha256(b"She").hexdigest(),
        "tau0": 0.75,
        "tau1": 0.5,
        "passages": ["p1", "p2"],
        "failed_upstream": "vectors",
        "failure_kind": "timeout",
        "effective_policy": {
            "ks": [0, 1, 5],
            "kind": {"thresholds": {"tau0": 0.75, "tau1": 0.5}, "few": 1, "many": 5},
            "minimum": 0,
            "maximum": 5,
            "required": False,
            "chat": False,
            "tau": 0.25,
            "abstain": True,
            "certifiable": False,
            "sampled": {"share": 0.75, "explore": 0.5, "shadow": True, "solicit": True},
        },
        "steps": [
            {"state": state, "action": action, "wanted": 1, "why": "borderline", "p": 0.625, "options": [], "moved": []}
            for state, action in (
                ("", "read 0"),
                ("k0", "search"),
                ("search+k0", "read 1"),
                ("search+k0+k1", "stop 1"),
            )
        ],
        "probe_prompt_tokens": 40,
        "probe_completion_tokens": 8,
        "read_prompt_tokens": 120,
        "read_completion_tokens": 9,
        "write_prompt_tokens": None,
        "write_completion_tokens": None,
        "rewrite_prompt_tokens": None,
        "rewrite_completion_tokens": None,
        "probe_ms": 200.0,
        "embed_ms": 15.0,
        "search_ms": 5.0,
        "read_ms": 400.0,
        "write_ms": None,
        "rewrite_ms": None,
        "total_ms": 620.0,
        "feedback": None,
        "feedback_history": [],
    }


def test_what_is_absent_stays_absent(store: SqlDecisionStore) -> None:
    """No probability, no thresholds, no stage, no propensities: each is NULL."""
    bare = a_record(
        answer=None,
        confidence=None,
        p_closed_book=None,
        timings=Timings(total=1.0),
        probe_usage=None,
        read_usage=None,
        citations=(),
    )
    store.write([(1.0, bare)], [])
    (row,) = everything(store)
    absent = {name for name, value in row.items() if value is None}
    assert absent == {
        *("key", "answer", "answer_sha256", "confidence", "p_closed_book", "tau0", "tau1", "tau_abstain"),
        *("calibrator", "propensities", "failed_upstream", "failure_kind", "feedback"),
        *("probe_prompt_tokens", "probe_completion_tokens", "read_prompt_tokens", "read_completion_tokens"),
        *("write_prompt_tokens", "write_completion_tokens", "rewrite_prompt_tokens", "rewrite_completion_tokens"),
        *("probe_ms", "embed_ms", "search_ms", "read_ms", "write_ms", "rewrite_ms"),
        *("message", "standalone"),
    }


def a_turn(how: Literal["as_asked", "rewritten"] = "rewritten", **changes: Any) -> DecisionRecord:
    """A turn of a chat that was written from one passage."""
    record = a_record(id="turn", question="Who was she?", timings=Timings(620.0, write=80.0, rewrite=20.0), **changes)
    original = "Who was she?" if how == "as_asked" else "and her?"
    standalone = Standalone(how, original, 20.0, Usage(9, 3))
    question = replace(record.question, writing=Writing("chat"), standalone=standalone)
    return replace(record, question=question, reply=replace(record.reply, written=Written(Usage(70, 30), 1)))


def test_a_turn_of_a_chat_is_kept_with_its_question(store: SqlDecisionStore) -> None:
    """The question that was searched, how it was found, what was typed if that differs, and what both texts cost."""
    store.write([(1.0, a_turn())], [])
    (row,) = everything(store)
    kept = ("mode", "standalone", "question", "message", "write_ms", "rewrite_ms")
    assert [row[name] for name in kept] == ["chat", "rewritten", "Who was she?", "and her?", 80.0, 20.0]
    assert (row["write_prompt_tokens"], row["write_completion_tokens"]) == (70, 30)
    assert (row["rewrite_prompt_tokens"], row["rewrite_completion_tokens"]) == (9, 3)


@pytest.mark.parametrize(("texts", "how"), [("hash", "rewritten"), ("full", "as_asked")])
def test_a_message_is_kept_only_where_texts_are_and_it_says_more(
    open_store: Opener, texts: Texts, how: Literal["as_asked", "rewritten"]
) -> None:
    """It is a text of the caller like the question."""
    store = open_store(texts)
    store.write([(1.0, a_turn(how))], [])
    assert everything(store)[0]["message"] is None


def test_only_hashes_are_kept_where_texts_are_private(open_store: Opener) -> None:
    """With `hash` neither the question nor the answer is anywhere in the row; the same question has the same hash."""
    store = open_store("hash")
    store.write([(1.0, a_record(question="Who is ill?", answer="Ruth is"))], [])
    (row,) = everything(store)
    assert (row["question"], row["answer"]) == (None, None)
    assert row["question_sha256"] == hashlib.sha256(b"Who is ill?").hexdigest()
    assert row["answer_sha256"] == hashlib.sha256(b"Ruth is").hexdigest()
    assert "Ruth" not in str(row)


@given(policies, worlds)
def test_every_decision_replays_from_its_row(store: SqlDecisionStore, policy: EffectivePolicy, world: World) -> None:
    """Whatever failed, was drawn, required or withheld: the row and the calibrator give the same decision again."""
    done = walk(policy, world)
    if not isinstance(done.outcome, Reply):
        return
    question = replace(a_record().question, id=os.urandom(12).hex())
    record = DecisionRecord(question, done.policy, done.steps, done.available, done.outcome, Timings(total=1.0))
    store.write([(1.0, record)], [])
    (one,) = logged(store.database, last=1, identifier=question.id)
    heads = policy.heads or an_artifact().heads
    artifact = an_artifact(heads=heads, ladder=policy.ladder, scope=policy.scope)
    assert list(replay_logged([one], lambda _: artifact)) == [Replayed(question.id)]


def test_the_last_decisions_are_the_newest(store: SqlDecisionStore) -> None:
    """Newest first, and no more than are wanted; an id that is not there gives none."""
    store.write([(1.0, a_record(id=name)) for name in "abc"], [])
    assert [one.id for one in logged(store.database, last=2)] == ["c", "b"]
    assert [one.id for one in logged(store.database, last=2, identifier="a")] == ["a"]
    assert logged(store.database, last=2, identifier="d") == []


# Surrogates too: what a JSON parser lets pass, no database takes.
anything = st.text(st.characters(exclude_categories=()), max_size=20) | st.just("\0 and \ud800")
numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(
    question=anything,
    answer=anything,
    collection=anything,
    passage=anything,
    tags=st.dictionaries(anything, anything, max_size=2),
    number=numbers,
    tokens=st.integers(min_value=0, max_value=2**70),
)
def test_any_text_and_number_can_be_stored(
    store: SqlDecisionStore,
    question: str,
    answer: str,
    collection: str,
    passage: str,
    tags: dict[str, str],
    number: float,
    tokens: int,
) -> None:
    """Any Unicode, any float, any count: no record prevents the next ones from being stored."""
    record = a_record(
        id=os.urandom(12).hex(),
        question=question,
        answer=answer,
        collection=collection,
        citations=(Passage(passage, "", "", number),),
        tags=tags,
        signals={"margin": number},
        confidence=number,
        probe_usage=Usage(tokens, tokens),
    )
    store.write([(1.0, record)], [])
    row = everything(store)[-1]
    assert row["id"] == record.question.id
    if question.isprintable() and question.isascii():
        assert row["question"] == question
    if math.isfinite(number):
        assert row["confidence"] == number
        assert row["evidence"]["k0.margin"] == number


def test_a_decision_is_stored_once(store: SqlDecisionStore) -> None:
    """A batch that is written again stores nothing twice and overwrites nothing."""
    store.write([(1.0, a_record(id="a", answer="first"))], [])
    store.write([(2.0, a_record(id="a", answer="second")), (2.0, a_record(id="b"))], [])
    assert [(row["id"], row["answer"]) for row in everything(store)] == [("a", "first"), ("b", "She")]


def test_a_large_batch_is_stored_whole_and_in_order(store: SqlDecisionStore) -> None:
    """More than one statement takes at once."""
    store.write([(1.0, a_record(id=str(number), k=number)) for number in range(250)], [])
    assert [row["k"] for row in everything(store)] == [*range(250)]


def test_a_verdict_is_kept_with_what_came_along(store: SqlDecisionStore) -> None:
    """Comment, tags, references and time are in the log; it may come in one batch with its decision."""
    given = Feedback("a", references=("she", "Ruth"), comment="by hand", tags={"by": "me"})
    outcomes = store.write([(1.0, a_record(id="a", answer="It was she."))], [(5.0, given)])
    assert outcomes == [Judged("a", True, Source.REFERENCES, False, "k1")]
    (row,) = everything(store)
    assert row["feedback"] == {
        "created_at": 5.0,
        "key": None,
        "correct": True,
        "source": "references",
        "reference_answers": ["she", "Ruth"],
        "comment": "by hand",
        "tags": {"by": "me"},
        "replaced": False,
    }


@pytest.mark.parametrize("batches", [1, 5], ids=["in one batch", "one after the other"])
def test_the_last_verdict_counts_and_a_repeated_one_is_not_stored(store: SqlDecisionStore, batches: int) -> None:
    """The second of two equal verdicts gets the first one's outcome; the history has every change."""
    store.write([(1.0, a_record(id="a")), (1.0, a_record(id="b"))], [])
    said = [("a", True), ("a", False), ("a", False), ("b", True), ("a", True)]
    verdicts = [(2.0, Feedback(name, correct=correct)) for name, correct in said]
    size = len(verdicts) // batches
    outcomes = [one for n in range(batches) for one in store.write([], verdicts[n * size : (n + 1) * size])]
    kept = [(one.correct, one.replaced, one.repeated) for one in outcomes if isinstance(one, Judged)]
    assert kept == [
        (True, False, False),
        (False, True, False),
        (False, True, True),
        (True, False, False),
        (True, True, False),
    ]
    judged = everything(store)[0]
    assert [one["correct"] for one in judged["feedback_history"]] == [True, False, True]
    assert judged["feedback"] == judged["feedback_history"][-1]


@pytest.mark.parametrize("identifier", ["a\0", "\0", "a\ud800"], ids=["NUL after", "only NUL", "surrogate"])
def test_an_id_that_no_database_takes_is_unknown(store: SqlDecisionStore, identifier: str) -> None:
    """The others of its batch are judged, and decisions stored."""
    entries = [(1.0, a_record(id="a", answer="She"))]
    given = [(2.0, Feedback(identifier, correct=True)), (2.0, Feedback("a", correct=True))]
    refused, judged = store.write(entries, given)
    assert isinstance(refused, UnknownDecision)
    assert isinstance(judged, Judged)


def test_a_refused_verdict_does_not_affect_the_others(store: SqlDecisionStore) -> None:
    """An unknown id and a verdict on an abstention are refused, the others of the batch are kept."""
    entries = [(1.0, a_record(id="a")), (1.0, a_record(id="silent", answer=None))]
    given = [
        Feedback("nobody", correct=True),
        Feedback("silent", correct=True),
        Feedback("silent", references=("x",)),
        Feedback("a", correct=False),
    ]
    outcomes = store.write(entries, [(2.0, one) for one in given])
    assert [type(one) for one in outcomes] == [UnknownDecision, NothingToJudge, Judged, Judged]
    assert [bool(row["feedback"]) for row in everything(store)] == [True, True]


def test_what_was_answered_to_another_key_is_not_known(store: SqlDecisionStore) -> None:
    """A caller judges its own answers, and cannot find out whether another's exist."""
    store.write([(1.0, a_record(id="hers", key="her")), (1.0, a_record(id="anyone's"))], [])
    assert isinstance(give(store, "hers", correct=True, key="me"), UnknownDecision)
    assert isinstance(give(store, "hers", correct=True), UnknownDecision)
    assert isinstance(give(store, "hers", correct=True, key="her"), Judged)
    (row,) = [row for row in everything(store) if row["id"] == "hers"]
    assert [one["key"] for one in row["feedback_history"]] == ["her"]


def test_references_cannot_judge_a_text_that_is_not_kept(open_store: Opener) -> None:
    """Where only hashes are kept, a verdict is accepted and references are refused."""
    store = open_store("hash")
    store.write([(1.0, a_record()), (1.0, a_record(id="silent", answer=None))], [])
    for about in ("0123", "silent"):
        refused = give(store, about, references=("She",))
        assert isinstance(refused, NothingToJudge)
        assert "FETCHWISE_LOG_TEXTS" in str(refused)
    assert isinstance(give(store, correct=True), Judged)


def test_another_worker_and_a_later_start_find_it(open_store: Opener) -> None:
    """A decision that one process wrote can be judged by the next."""
    first = open_store()
    first.write([(1.0, a_record())], [])
    assert isinstance(give(open_store(), correct=True), Judged)
    first.close()
    assert isinstance(give(open_store(), correct=False), Judged)


def test_pruning_takes_the_oldest_first_and_their_feedback(store: SqlDecisionStore) -> None:
    """Up to the limit, from before the time, with all their feedback."""
    store.write([(float(at), a_record(id=str(at))) for at in range(10)], [])
    store.write([], [(20.0, Feedback(str(at), correct=True)) for at in (0, 1, 9)])
    assert store.prune(since(4.5), limit=2) == 2
    assert [row["id"] for row in everything(store)] == [str(at) for at in range(2, 10)]
    assert stats(store.database).feedback == 1
    assert [store.prune(since(4.5), limit=2) for _ in range(3)] == [2, 1, 0]
    assert count(store.database, 0.0) == 5
    # Pages and count agree on what `since` means.
    assert count(store.database, 7.0) == 3
    assert [len(page) for page in pages(store.database, 7.0, size=2)] == [2, 1]


def test_pruning_keeps_the_newest(store: SqlDecisionStore) -> None:
    """Beyond so many, the oldest go, whatever their time; 0 keeps all."""
    store.write([(float(at), a_record(id=str(at))) for at in range(10)], [])
    assert store.prune(since(-0.5), limit=5) == 0
    assert [store.prune(since(1.5), limit=4, most=3) for _ in range(3)] == [4, 3, 0]
    assert [row["id"] for row in everything(store)] == ["7", "8", "9"]


def test_a_host_whose_clock_is_behind_keeps_its_decisions(
    store: SqlDecisionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision is old once all before it are; a wrong time in the future stops no pruning."""
    now, day = time.time(), 86_400.0
    ages = {"ahead": -4_000, "old": 95, "young": 89, "behind": 100, "new": 0}
    store.write([(now - days * day, a_record(id=name)) for name, days in ages.items()], [])
    store.write([], [(now, Feedback("behind", correct=True))])
    # By the clock of a gateway that is behind itself, none is old.
    monkeypatch.setattr("time.time", lambda: now - 100 * day)
    assert store.prune(90 * day, limit=10) == 0
    monkeypatch.undo()
    assert [store.prune(90 * day, limit=10) for _ in range(2)] == [1, 0]
    assert [row["id"] for row in everything(store)] == ["ahead", "young", "behind", "new"]
    assert store.prune(88 * day, limit=10) == 2


def test_missing_numbers_delete_nothing(store: SqlDecisionStore) -> None:
    """Batches that failed have used numbers up: decisions are counted, also for the share that a pruning may delete."""
    store.write([(1.0, a_record(id="a")), (2.0, a_record(id="b"))], [(3.0, Feedback("a", correct=True))])
    if store.database.server:
        for _ in range(3):
            with suppress(ZeroDivisionError), store.database.writing() as connection:
                connection.exec_driver_sql("SELECT nextval('decisions_seq_seq') FROM generate_series(1, 1000)")
                raise ZeroDivisionError
    else:
        with store.database.writing() as connection:
            connection.exec_driver_sql("UPDATE sqlite_sequence SET seq = 3002 WHERE name = 'decisions'")
    store.write([(4.0, a_record(id="c")), (5.0, a_record(id="d"))], [])
    assert (store.size() > 3_000, store.size(100), store.size(3)) == (True, 4, 4)
    assert store.prune(0.0, limit=10, most=100) == 0
    assert store.prune(0.0, limit=10, most=3) == 1
    assert [row["id"] for row in everything(store)] == ["b", "c", "d"]


@pytest.mark.parametrize("batches", [1, 2])
def test_the_history_of_feedback_is_bounded(store: SqlDecisionStore, batches: int) -> None:
    """An answer is judged so many times at most; the same again is no news, and still confirmed."""
    store.write([(1.0, a_record())], [])
    said = [(2.0, Feedback("0123", correct=True, comment=str(number))) for number in range(MAX_FEEDBACK + 1)]
    half = len(said) // batches
    outcomes = store.write([], said[:half]) + store.write([], said[half:])
    assert [type(one) for one in outcomes] == [Judged] * MAX_FEEDBACK + [NothingToJudge]
    again = store.write([], [said[-2]])[0]
    assert isinstance(again, Judged)
    assert again.repeated
    assert len(everything(store)[0]["feedback_history"]) == MAX_FEEDBACK


def test_answers_that_were_drawn_for_feedback_come_in_the_order_of_asking(store: SqlDecisionStore) -> None:
    """Of one calibrator, with the first verdict within the waiting time, page by page up to a time."""
    drawn = {"solicited": True, "calibrator": "one", "confidence": 0.75, "key": "me", "k": 1}
    others: dict[str, dict[str, Any]] = {
        "not asked for": {"solicited": False},
        "other version": {"calibrator": "two"},
        "no confidence": {"confidence": None},
        "withheld": {"answer": None},
        "filtered": {"filtered": True},
        "explored": {"explored": True},
        "unjudged": {},
        "late": {},
        "shadowed": {"solicited": False, "shadowed": True},
    }
    store.write([(1.0, a_turn(**drawn))], [])
    answers = {**{f"a{number}": {} for number in range(5)}, **others}
    store.write([(1.0, a_record(id=name, **(drawn | changes))) for name, changes in answers.items()], [])
    store.write([(9.0, a_record(id="young", **drawn))], [])
    judged = [name for name in answers if name not in ("unjudged", "late", "withheld")]
    store.write([], [(2.0, Feedback(name, correct=name != "a1", key="me")) for name in reversed(judged)])
    store.write([], [(8.0, Feedback("late", correct=True, key="me"))])
    give(store, "a4", correct=False, key="me")
    found: list[Asked] = []
    while page := asked(store.database, "one", after=found[-1].position if found else 0, until=5.0, wait=5.0, limit=2):
        found += page
    assert [one.position for one in found] == sorted({one.position for one in found})
    expected = [True, False, True, True, True, None, None, True]
    assert found == [Asked(one.position, 1, 0.75, correct, "me") for one, correct in zip(found, expected, strict=True)]


def test_references_judge_the_answers_of_a_certified_shadow_run(store: SqlDecisionStore) -> None:
    """Of certified answers only: the certificate says nothing about others."""
    drawn = {"shadowed": True, "calibrator": "one", "confidence": 0.75, "k": 1, "answer": "She"}
    outcomes = {k: Outcome(answer, {}, 40, 5, k, 20.0) for k, answer in ((0, "He"), (1, "She"), (5, ""))}
    for name, certified in (("a", True), ("b", False)):
        run = FullRun(name, an_identity(), outcomes)
        store.write([(1.0, a_record(id=name, certified=certified, **drawn)), (2.0, run)], [])
        store.write([], [(3.0, Feedback(name, references=("she",)))])
    first, second = asked(store.database, "one", after=0, until=5.0, wait=5.0, limit=9)
    assert (first.correct, first.by_references, first.shadow) == (True, True, {0: False, 1: True, 5: False})
    assert (second.correct, second.by_references, second.shadow) == (True, True, {})


def test_the_drift_test_reads_by_an_index(tmp_path: Path) -> None:
    """The answers of older calibrators are not scanned, however large the log is."""
    store = SqlDecisionStore.open(str(tmp_path / "log.sqlite3"))
    sent: list[tuple[str, Any]] = []
    listen(store.database.engine, "before_cursor_execute", lambda *said: sent.append(said[2:4]))
    asked(store.database, "one", after=0, until=5.0, wait=5.0, limit=2)
    statement, parameters = sent[-1]
    with store.database.engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    store.close()
    assert "USING INDEX decisions_asked (calibrator=? AND seq>?)" in str(plan[0])


def copied(store: SqlDecisionStore, times: int) -> None:
    """Copy the one decision that is stored, a second newer each time, with a verdict on every tenth."""
    names = [str(one.name) for one in decisions.columns if one.name not in {"seq", "id", "created_at"}]
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {times})"
    with store.database.writing() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO decisions (id, created_at, {', '.join(names)}) {numbers} "
            f"SELECT 'copy' || i, d.created_at + i, {', '.join(f'd.{name}' for name in names)} FROM n, decisions d"
        )
        connection.exec_driver_sql(
            "INSERT INTO feedback (decision_id, created_at, correct, source, reference_answers, tags, replaced) "
            f"{numbers} SELECT 'copy' || (10 * i), 1.0, i - 2 * (i / 2) = 0, 'caller', '[]', '{{}}', i < 0 FROM n "
            f"WHERE 10 * i < {times}"
        )
    with store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")


def test_no_query_of_a_gateway_scans_the_log(store: SqlDecisionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits, statistics, the drift test and pruning read by an index, or a bounded number from one end."""
    monkeypatch.setattr("app.storage.reading.NEWEST", 100)
    now = time.time()
    store.write([(now - 5_000, a_record(id="first", solicited=True, calibrator="one"))], [])
    copied(store, 5_000)
    sent: list[tuple[str, Any]] = []
    listen(store.database.engine, "before_cursor_execute", lambda *said: sent.append(said[2:4]))
    assert len(store.audit_rows(since=0.0, limit=100)) == 100
    assert len(store.audit_rows(since=now - 20, limit=1_000)) in {20, 21}
    found = stats(store.database)
    assert (found.decisions, sum(one.decisions for one in found.actions)) == (5_001, 100)
    store.asked("one", after=4_900, until=now, wait=5.0, limit=100)
    assert store.size() == 5_001
    assert store.prune(4_990.0, limit=5) == 5
    assert store.prune(0.0, limit=5, most=4_900) == 5
    store.write([], [(1.0, Feedback("copy5000", correct=True))])
    queries = [(said, given) for said, given in sent if "FROM decisions" in said]
    assert len(queries) >= 10
    explain = "EXPLAIN" if store.database.server else "EXPLAIN QUERY PLAN"
    with store.database.reading() as connection:
        plans = [
            (said, "\n".join(str(row) for row in connection.exec_driver_sql(f"{explain} {said}", given).all()))
            for said, given in queries
        ]
    # SQLite calls reading the table from one end a scan too; of these queries each has a limit.
    scans = [
        said
        for said, plan in plans
        if "Seq Scan on decisions" in plan
        or (re.search(r"SCAN decisions(?! USING (COVERING )?INDEX)", plan) and "ORDER BY decisions.seq" not in said)
    ]
    assert scans == []
    for said, plan in plans:
        if "decisions.created_at >=" in said:
            assert "ix_decisions_created_at" in plan
        if "feedback.correct" in said and "decisions.calibrator" not in said:
            assert not re.search(r"(Seq Scan on|SCAN) feedback", plan), plan


@pytest.mark.e2e
def test_a_server_that_hangs_is_left(postgres: PostgresServer) -> None:
    """The network is fine, and no reply comes: the call ends, and the next one uses another connection."""
    store = SqlDecisionStore.open(postgres.database(), reply_s=0.5)
    with store.database.reading() as connection:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    os.kill(backend, signal.SIGSTOP)
    try:
        store.write([(1.0, a_record())], [])
        assert count(store.database, 0.0) == 1
    finally:
        os.kill(backend, signal.SIGCONT)
        store.close()


@pytest.mark.e2e
def test_a_lost_client_holds_no_locks(postgres: PostgresServer) -> None:
    """A gateway that is cut off within a transaction does not stop others from writing."""
    where = postgres.database()
    lost, other = SqlDecisionStore.open(where, reply_s=0.5), SqlDecisionStore.open(where, reply_s=20.0)

    def lock_and_wait() -> None:
        with lost.database.writing() as connection:
            connection.exec_driver_sql("LOCK TABLE decisions")
            # Waits until the server ends the other transaction.
            other.write([(1.0, a_record())], [])
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(InternalError, match="idle-in-transaction"):
        lock_and_wait()
    assert count(other.database, 0.0) == 1
    lost.close()
    other.close()


def test_stats_count_the_last_verdicts(store: SqlDecisionStore) -> None:
    """A verdict that was replaced counts as feedback, not as a judgement."""
    made = [{"k": 0}, {"k": 0}, {"k": 1}, {"answer": None}]
    store.write([(float(at), a_record(id=str(at), **changes)) for at, changes in enumerate(made)], [])
    store.write([], [(9.0, Feedback("0", correct=c)) for c in (True, False)] + [(9.0, Feedback("2", correct=True))])
    found = stats(store.database)
    assert (found.decisions, found.feedback, found.first_at, found.last_at) == (4, 3, 0.0, 3.0)
    counted = {one.action: (one.decisions, one.judged, one.correct) for one in found.actions}
    assert counted == {"k0": (2, 1, 0), "k1": (1, 1, 1), "abstain": (1, 0, 0)}


def at_once(*work: Callable[[], object]) -> None:
    """Run each in a thread of its own, all from the same moment on; what one raises is raised here."""
    start = threading.Barrier(len(work))

    def run(one: Callable[[], object]) -> None:
        start.wait()
        one()

    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(run, one) for one in work]:
            done.result()


def test_workers_that_start_at_once_make_one_log(open_store: Opener) -> None:
    """The first creates the tables; the others use them."""
    at_once(*[open_store] * 6)
    assert everything(open_store()) == []


def test_several_workers_write_at_once(open_store: Opener) -> None:
    """Four writers on one database: every row of each is there once, and so is every verdict."""
    stores = [open_store() for _ in range(4)]

    def work(store: SqlDecisionStore, name: str) -> None:
        for turn in range(10):
            record = a_record(id=f"{name}{turn}")
            store.write([(1.0, record)], [(2.0, Feedback(record.question.id, correct=turn % 2 == 0))])

    at_once(*[partial(work, store, name) for store, name in zip(stores, "abcd", strict=True)])
    rows = everything(stores[0])
    assert len({row["id"] for row in rows}) == len(rows) == 40
    assert all(len(row["feedback_history"]) == 1 for row in rows)


def test_two_workers_judge_the_same_answers(open_store: Opener) -> None:
    """The same verdicts through two workers at once, in opposite order, are kept once; neither waits for the other."""
    stores = [open_store() for _ in range(2)]
    stores[0].write([(1.0, a_record(id=str(n))) for n in range(20)], [])
    verdicts = [(2.0, Feedback(str(n), correct=True)) for n in range(20)]
    at_once(partial(stores[0].write, [], verdicts), partial(stores[1].write, [], verdicts[::-1]))
    assert [len(row["feedback_history"]) for row in everything(stores[0])] == [1] * 20


def test_two_workers_prune_at_once(open_store: Opener) -> None:
    """Every old decision is deleted, and counted once."""
    stores = [open_store() for _ in range(2)]
    stores[0].write([(1.0, a_record(id=str(n))) for n in range(200)], [])
    gone: list[int] = []

    def prune(store: SqlDecisionStore) -> None:
        while found := store.prune(since(4.5), limit=20):
            gone.append(found)

    at_once(*[partial(prune, store) for store in stores])
    assert sum(gone) == 200
    assert count(stores[0].database, 0.0) == 0


def test_a_database_of_another_version_is_refused(open_store: Opener) -> None:
    """The error says what to do, and nothing is changed."""
    store = open_store()
    store.write([(1.0, a_record())], [])
    with store.database.engine.begin() as connection:
        connection.execute(text("UPDATE schema_version SET version = '4'"))
    with pytest.raises(ConfigurationError, match=r"schema version 4, .* move it away .* or name another one"):
        open_store()
    assert len(everything(store)) == 1


def test_a_table_of_another_program_is_not_touched(log_at: str) -> None:
    """A database with a table of that name is refused."""
    theirs = create_engine(log_at if "://" in log_at else f"sqlite:///{log_at}")
    with theirs.begin() as connection:
        connection.execute(text("CREATE TABLE decisions (verdict TEXT)"))
    with pytest.raises(ConfigurationError, match="not Fetchwise's"):
        SqlDecisionStore.open(log_at)
    assert inspect(theirs).get_table_names() == ["decisions"]
    theirs.dispose()


def works(store: SqlDecisionStore) -> bool:
    """Whether the log can be read now."""
    try:
        return store.size() >= 0
    except LogUnavailable:
        return False


@pytest.mark.e2e
def test_a_server_that_restarts_is_found_again(postgres: PostgresServer) -> None:
    """While it is down nothing is stored and each call raises; then it works again, also after a crash."""
    # Without a driver, as most servers are named: the one that is installed is taken.
    store = SqlDecisionStore.open(postgres.database().replace("+psycopg", ""))
    for number, how in enumerate((signal.SIGINT, signal.SIGKILL)):
        store.write([(1.0, a_record(id=str(number)))], [])
        postgres.stop(how)
        try:
            with pytest.raises(LogUnavailable, match="cannot be written"):
                store.write([(1.0, a_record(id="lost"))], [])
            with pytest.raises(LogUnavailable, match="cannot be read"):
                count(store.database, 0.0)
        finally:
            postgres.start()
        wait_until(partial(works, store), "it is not found again")
        assert isinstance(give(store, str(number), correct=True), Judged)
    assert [row["id"] for row in everything(store)] == ["0", "1"]
    store.close()
