"""`fetchwise log`: what is exported, what is deleted, and what is said."""

import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from app.adapters.decision_store import SqlDecisionStore
from app.cli import main
from app.cli.doctor import _decision_log, _Patient
from app.decision.feedback import Feedback
from app.decision.policy import Action
from app.settings import Settings
from tests.fakes.records import a_record, a_skip

DAY = 86_400.0


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run one command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["fetchwise", "log", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands look."""
    monkeypatch.setenv("FETCHWISE_DATA_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def filled(data_dir: Path) -> Path:
    """A log of twelve decisions, one a day up to today, the oldest with a verdict that was replaced."""
    store = SqlDecisionStore.open(str(data_dir / "decisions.sqlite3"))
    now = time.time()
    entries = [(now - age * DAY, a_record(id=f"day{age}", signals={"margin": 2.5})) for age in range(11, 0, -1)]
    store.write([*entries, (now, a_skip(id="today", action=Action.K0, answer="Émile"))], [])
    store.write([], [(now, Feedback("day11", correct=True)), (now, Feedback("day11", correct=False, tags={"a": "b"}))])
    store.close()
    return data_dir


def lines(path: Path) -> list[dict[str, object]]:
    """JSON lines, parsed."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_export_as_json_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], filled: Path, tmp_path: Path
) -> None:
    """Every decision is a line, oldest first, with the verdict in force and all that came before it."""
    out = tmp_path / "log.jsonl"
    assert run(monkeypatch, "export", "--out", str(out)) == 0
    assert "12 decisions" in capsys.readouterr().out
    rows = lines(out)
    assert [row["id"] for row in rows] == [*(f"day{age}" for age in range(11, 0, -1)), "today"]
    oldest = rows[0]
    assert oldest["signals"] == {"margin": 2.5}
    assert isinstance(oldest["feedback"], dict)
    assert oldest["feedback"]["correct"] is False
    assert isinstance(oldest["feedback_history"], list)
    assert [one["correct"] for one in oldest["feedback_history"]] == [True, False]
    assert rows[-1]["answer"] == "Émile"


def test_export_since(monkeypatch: pytest.MonkeyPatch, filled: Path, tmp_path: Path) -> None:
    """Only what is younger."""
    out = tmp_path / "log.jsonl"
    assert run(monkeypatch, "export", "--out", str(out), "--since", "60h") == 0
    assert [row["id"] for row in lines(out)] == ["day2", "day1", "today"]


def test_export_as_parquet(monkeypatch: pytest.MonkeyPatch, filled: Path, tmp_path: Path) -> None:
    """The file's name says the format; columns have types, and the same content as the JSON lines."""
    out, also = tmp_path / "log.parquet", tmp_path / "log.jsonl"
    assert run(monkeypatch, "export", "--out", str(out)) == 0
    assert run(monkeypatch, "export", "--out", str(also)) == 0
    table = pq.read_table(out)
    assert str(table.schema.field("created_at").type) == "double"
    assert str(table.schema.field("certified").type) == "bool"
    assert table.column_names == list(lines(also)[0])
    assert table.to_pylist(maps_as_pydicts="strict") == lines(also)


def test_parquet_without_pyarrow_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], filled: Path, tmp_path: Path
) -> None:
    """An extra that is missing is one sentence, and leaves no file."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "log.parquet"
    assert run(monkeypatch, "export", "--out", str(out)) == 1
    assert "fetchwise[parquet]" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.parquet*"))


def test_an_export_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], filled: Path, tmp_path: Path
) -> None:
    """A folder that is not there is one sentence."""
    assert run(monkeypatch, "export", "--out", str(tmp_path / "nowhere" / "log.jsonl")) == 1
    assert "nowhere" in capsys.readouterr().err


def test_prune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    """Old decisions go, a few at a time, with what was said about them; the rest stays."""
    monkeypatch.setattr("app.cli.log._PRUNED_AT_ONCE", 2)
    assert run(monkeypatch, "prune", "--older-than", "7d") == 0
    assert "5 decisions deleted" in capsys.readouterr().out
    assert run(monkeypatch, "stats", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["decisions"], found["feedback"]) == (7, 0)


def test_stats(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    """Decisions and verdicts by action, for people and for programs."""
    assert run(monkeypatch, "stats") == 0
    shown = capsys.readouterr().out
    assert "12 decisions" in shown
    assert "0 (0%)" in shown
    assert "schema version" in shown
    assert run(monkeypatch, "stats", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["actions"] == [
        {"action": "k0", "decisions": 1, "judged": 0, "correct": 0},
        {"action": "k1", "decisions": 11, "judged": 1, "correct": 0},
    ]


@pytest.mark.parametrize("span", ["7", "week", "-1d", "1.5d", "d"])
def test_a_span_that_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], filled: Path, span: str
) -> None:
    """Nothing is deleted for a typing mistake."""
    assert run(monkeypatch, "prune", f"--older-than={span}") == 2
    assert run(monkeypatch, "stats", "--json") == 0
    assert json.loads(capsys.readouterr().out)["decisions"] == 12


def test_no_log_yet_is_said_and_none_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data_dir: Path
) -> None:
    """Looking does not create."""
    assert run(monkeypatch, "stats") == 1
    assert "no decision log" in capsys.readouterr().err
    assert list(data_dir.iterdir()) == []


def test_a_log_that_is_off_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data_dir: Path
) -> None:
    """There is nothing to look into."""
    monkeypatch.setenv("FETCHWISE_DECISION_LOG", "off")
    assert run(monkeypatch, "stats") == 1
    assert "off" in capsys.readouterr().err


def test_a_log_elsewhere_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], filled: Path, tmp_path: Path
) -> None:
    """The setting takes a path or a URL."""
    elsewhere = tmp_path / "else where.sqlite3"
    (filled / "decisions.sqlite3").rename(elsewhere)
    for where in (str(elsewhere), f"sqlite:///{elsewhere}"):
        monkeypatch.setenv("FETCHWISE_DECISION_LOG", where)
        assert run(monkeypatch, "stats", "--json") == 0
        assert json.loads(capsys.readouterr().out)["decisions"] == 12


async def test_doctor_looks_into_the_log(monkeypatch: pytest.MonkeyPatch, filled: Path) -> None:
    """How many decisions there are, or that none are kept."""
    async with AsyncExitStack() as stack:
        assert (await _decision_log(_Patient(Settings(), stack))).endswith("decisions.sqlite3: 12 decisions")
        monkeypatch.setenv("FETCHWISE_DECISION_LOG", "off")
        assert "no decisions are kept" in await _decision_log(_Patient(Settings(), stack))
