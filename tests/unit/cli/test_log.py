"""`fetchwise log`: export, prune, stats and replay."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from app.cli.doctor import _Checked, _decision_log
from app.core.effective_policy import resolve
from app.core.feedback import Feedback
from app.core.policy import AskOptions, Reason
from app.core.record import DecisionRecord, Timings
from app.settings import read_settings
from app.storage.decisions import SqlDecisionStore
from tests.fakes.artifacts import an_artifact, closed_book
from tests.fakes.gateway import publish
from tests.fakes.records import a_record, a_skip
from tests.fakes.walks import World, walk

DAY = 86_400.0


Run = Callable[..., tuple[str, str]]


@pytest.fixture
def log(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run `fetchwise log …` on a data directory."""
    monkeypatch.setenv("FETCHWISE_DATA_DIR", str(tmp_path))
    return partial(run, "log")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A log of twelve decisions, one per day up to today; the oldest has feedback that was replaced."""
    store = SqlDecisionStore.open(str(tmp_path / "decisions.sqlite3"))
    now = time.time()
    entries = [(now - age * DAY, a_record(id=f"day{age}", signals={"margin": 2.5})) for age in range(11, 0, -1)]
    store.write([*entries, (now, a_skip(id="today", answer="Émile"))], [])
    store.write([], [(now, Feedback("day11", correct=True)), (now, Feedback("day11", correct=False, tags={"a": "b"}))])
    store.close()
    return tmp_path


def lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines, parsed."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_export_as_json_lines(log: Run, filled: Path) -> None:
    """Every decision is a line, oldest first, with its latest feedback and all earlier feedback."""
    out = filled / "log.jsonl"
    assert "12 decisions" in log("export", "--out", str(out))[0]
    rows = lines(out)
    assert [row["id"] for row in rows] == [*(f"day{age}" for age in range(11, 0, -1)), "today"]
    assert rows[0]["evidence"]["k0.margin"] == 2.5
    assert rows[0]["feedback"]["correct"] is False
    assert [one["correct"] for one in rows[0]["feedback_history"]] == [True, False]
    assert rows[-1]["answer"] == "Émile"
    log("export", "--out", str(out), "--since", "60h")
    assert [row["id"] for row in lines(out)] == ["day2", "day1", "today"]


def test_export_as_parquet(log: Run, filled: Path) -> None:
    """The suffix chooses the format; columns have types and the content of the JSON lines."""
    out, also = filled / "log.parquet", filled / "log.jsonl"
    log("export", "--out", str(out))
    log("export", "--out", str(also))
    table = pq.read_table(out)
    assert str(table.schema.field("created_at").type) == "double"
    assert str(table.schema.field("certified").type) == "bool"
    assert table.column_names == list(lines(also)[0])
    as_json = {"effective_policy", "steps"}
    rows = table.to_pylist(maps_as_pydicts="strict")
    assert [row | {name: json.loads(row[name]) for name in as_json} for row in rows] == lines(also)


def test_replay(log: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Prints how many agree; exit code 1 if a decision differs, and one line for a missing calibrator."""
    artifact = an_artifact()
    publish(tmp_path / "calibrators", artifact)
    monkeypatch.setenv("FETCHWISE_CALIBRATORS", str(tmp_path / "calibrators"))
    policy = resolve(AskOptions(), artifact, ks=artifact.ks)
    done = walk(policy, World({0: closed_book(0.875)}))
    good = DecisionRecord(a_record(id="good").question, policy, done.steps, done.available, done.reply, Timings(1.0))
    question = a_record(id="lost").question
    store = SqlDecisionStore.open(str(tmp_path / "decisions.sqlite3"), texts="hash")
    store.write([(1.0, good), (2.0, replace(good, question=question, policy=replace(policy, version="gone")))], [])
    assert log("replay", "good")[0] == "1 decisions: 1 the same, 0 different, 0 not replayed\n"
    lost, counted = log("replay")[0].splitlines()
    assert lost.startswith("lost cannot be replayed: its calibrator gone cannot be loaded: ")
    assert counted == "2 decisions: 1 the same, 0 different, 1 not replayed"
    wrong = replace(good.reply, k=1, reason=Reason.BORDERLINE)
    store.write([(3.0, replace(good, question=a_record(id="wrong").question, reply=wrong))], [])
    store.close()
    differs, counted = log("replay", "--last", "1", code=1)[0].splitlines()
    assert differs.startswith("wrong differs: k: logged 1, now 0; action: logged k1, now k0; reason: logged borderline")
    assert counted == "1 decisions: 0 the same, 1 different, 0 not replayed"
    assert "the decision log has no decision nobody" in log("replay", "nobody", code=1)[1]


def test_an_export_that_cannot_be_made_is_one_sentence(monkeypatch: pytest.MonkeyPatch, log: Run, filled: Path) -> None:
    """A missing folder or extra is an error, and no file is left behind."""
    assert "nowhere" in log("export", "--out", str(filled / "nowhere" / "log.jsonl"), code=1)[1]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "fetchwise[parquet]" in log("export", "--out", str(filled / "log.parquet"), code=1)[1]
    assert not list(filled.glob("*.parquet*"))


def test_prune(monkeypatch: pytest.MonkeyPatch, log: Run, filled: Path) -> None:
    """Old decisions and their feedback are deleted in batches; the rest stays."""
    monkeypatch.setattr("app.cli.log._PRUNED_AT_ONCE", 2)
    assert "deleted 5 decisions" in log("prune", "--older-than", "7d")[0]
    found = json.loads(log("stats", "--json")[0])
    assert (found["decisions"], found["feedback"]) == (7, 0)


@pytest.mark.parametrize("span", ["7", "week", "-1d", "1.5d", "d"])
def test_a_span_that_makes_no_sense_is_refused(log: Run, filled: Path, span: str) -> None:
    """An invalid time span deletes nothing."""
    log("prune", f"--older-than={span}", code=2)
    assert json.loads(log("stats", "--json")[0])["decisions"] == 12


def test_stats(log: Run, filled: Path) -> None:
    """Decisions and feedback by action, as a table and as JSON."""
    shown, _ = log("stats")
    for text in ("12 decisions", "0 (0%)", "schema version"):
        assert text in shown
    assert json.loads(log("stats", "--json")[0])["actions"] == [
        {"action": "k0", "decisions": 1, "judged": 0, "correct": 0},
        {"action": "k1", "decisions": 11, "judged": 1, "correct": 0},
    ]


def test_no_log_is_said_and_none_is_made(monkeypatch: pytest.MonkeyPatch, log: Run, tmp_path: Path) -> None:
    """Reading does not create a log."""
    assert "no decision log" in log("stats", code=1)[1]
    monkeypatch.setenv("FETCHWISE_DECISION_LOG", "off")
    assert "off" in log("stats", code=1)[1]
    assert list(tmp_path.iterdir()) == []


def test_a_log_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch, log: Run, filled: Path) -> None:
    """The setting takes a path or a URL."""
    elsewhere = filled / "else where.sqlite3"
    (filled / "decisions.sqlite3").rename(elsewhere)
    for where in (str(elsewhere), f"sqlite:///{elsewhere}"):
        monkeypatch.setenv("FETCHWISE_DECISION_LOG", where)
        assert json.loads(log("stats", "--json")[0])["decisions"] == 12


async def test_doctor_looks_into_the_log(monkeypatch: pytest.MonkeyPatch, log: Run, filled: Path) -> None:
    """The doctor counts decisions, or says that none are stored."""
    async with AsyncExitStack() as stack:
        assert (await _decision_log(_Checked(read_settings(), stack))).endswith("decisions.sqlite3: 12 decisions")
        monkeypatch.setenv("FETCHWISE_DECISION_LOG", "off")
        assert "decisions are not stored" in await _decision_log(_Checked(read_settings(), stack))
