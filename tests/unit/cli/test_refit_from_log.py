"""`fetchwise refit --from-log`: output and errors."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app.calibrators.store import ArtifactStore
from app.storage.decisions import SqlDecisionStore
from tests.offline.logs import SERVED, Hidden, step, write_log

WORLD = Hidden({0: step(0.75, 0.2, 0.9), 1: step(0.5, 0.3, 0.85), 5: step(0.0, 0.8, 0.8)})


Run = Callable[..., tuple[str, str]]


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings of a gateway with its data and calibrators in this folder."""
    monkeypatch.setenv("FETCHWISE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("FETCHWISE_CALIBRATORS", str(tmp_path / "served"))
    (tmp_path / "data").mkdir()
    ArtifactStore(tmp_path / "served").publish(SERVED)


def test_a_log_becomes_a_published_calibrator(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It reads the log of the settings; notes and artifact say which rows were used."""
    write_log(tmp_path / "data" / "decisions.sqlite3", WORLD, 600, seed=1, explore_share=0.3, shadow_share=0.4)
    out = tmp_path / "new"
    said, _ = run("refit", "--from-log", "--since", "99999d", "--out", str(out), "--clip", "8")
    assert re.search(r"- log: \d+ full rows on \d+ questions", said)
    assert "clipped at 8" in said
    assert "now served" in said
    artifact = json.loads((out / f"{(out / 'CURRENT').read_text().split()[0]}.json").read_bytes())
    assert artifact["data_window"]["source"] == "decision log"
    assert artifact["data_window"]["first"].startswith("2023-11-14")
    assert artifact["report"]["log"]["single_action_rows"] > 0
    assert artifact["identity"]["reader"] == "fake-reader"


def test_a_log_elsewhere_is_named_by_path_or_url(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A copy on another disk, as a path or a URL; too few rows are reported with what to do."""
    path = tmp_path / "copy.sqlite3"
    write_log(path, WORLD, 30, seed=1, shadow_share=1.0)
    for where in (str(path), f"sqlite:///{path}"):
        _, printed = run("refit", "--from-log", "--log", where, "--out", str(tmp_path / "new"), code=1)
        said = " ".join(printed.split())
        assert "30 questions have a shadow run and reference answers" in said
        assert "FETCHWISE_SHADOW_SHARE" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--outcomes TABLE, or --from-log"),
        (("--from-log", "--outcomes", __file__), "--outcomes TABLE, or --from-log"),
        (("--outcomes", __file__, "--since", "30d"), "need --from-log"),
        (("--from-log",), "there is no decision log at"),
    ],
    ids=["neither", "both", "since", "no log"],
)
def test_sources_that_do_not_fit_are_refused(
    run: Run,
    tmp_path: Path,
    arguments: tuple[str, ...],
    says: str,
) -> None:
    """One sentence, exit code 1, and no calibrator or database is created."""
    _, printed = run("refit", *arguments, "--out", str(tmp_path / "new"), code=1)
    assert says in " ".join(printed.split())
    assert list((tmp_path / "data").iterdir()) == []
    assert not (tmp_path / "new").exists()


def test_without_a_log_there_is_nothing_to_refit_from(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a decision log, or with an empty one, the message says what is missing."""
    monkeypatch.setenv("FETCHWISE_DECISION_LOG", "off")
    _, printed = run("refit", "--from-log", "--out", str(tmp_path / "new"), code=1)
    assert "FETCHWISE_DECISION_LOG is off" in printed
    empty = str(tmp_path / "empty.sqlite3")
    SqlDecisionStore.open(empty).close()
    _, printed = run("refit", "--from-log", "--log", empty, "--out", str(tmp_path / "new"), code=1)
    assert "no shadow run" in " ".join(printed.split())


def test_help_explains_the_log(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The help says where rows come from, which settings produce them, and what they are used for."""
    monkeypatch.setenv("COLUMNS", "200")
    printed = " ".join(run("refit", "--help")[0].replace("│", " ").split())
    for word in ("--from-log", "--since", "--clip", "FETCHWISE_SHADOW_SHARE", "FETCHWISE_EXPLORE_SHARE", "references"):
        assert word in printed
