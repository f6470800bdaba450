"""`fetchwise calibrators`: output and errors."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from app.calibrators.listing import CalibratorList
from app.calibrators.store import ArtifactStore
from app.core.scope import Scope
from tests.fakes.artifacts import (
    a_constant,
    a_fit,
    a_ladder,
    a_ladder_artifact,
    an_abstention,
    an_artifact,
    an_identity,
    an_uncertified_fit,
)


class Console:
    """Runs commands on one folder, and returns their output."""

    def __init__(self, folder: Path, run: Callable[..., tuple[str, str]]) -> None:
        self.store = ArtifactStore(folder)
        self._run = run

    def publish(self, version: str, **changes: Any) -> None:
        self.store.publish(an_artifact(version=version, **changes))

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run `calibrators …`; returns stdout, or stderr if it fails."""
        out, err = self._run("calibrators", *arguments, code=code)
        return err if code else out + err


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., tuple[str, str]]) -> Console:
    monkeypatch.setenv("FETCHWISE_CALIBRATORS", str(tmp_path / "calibrators"))
    return Console(tmp_path / "calibrators", run)


def test_help_names_every_command(console: Console) -> None:
    """Each command says what it does and what to do next."""
    printed = console.run("--help")
    for word in ("list", "show", "diff", "promote", "rollback", "within seconds"):
        assert word in printed
    assert "the one before" in console.run("rollback", "--help")
    assert "without a restart" in " ".join(console.run("promote", "--help").split())


def test_list_of_nothing_says_what_to_do(console: Console) -> None:
    """An empty folder is not an error."""
    assert "no version is served" in console.run("list")


def test_list_marks_what_is_current(console: Console) -> None:
    """Every version has its certificate and thresholds; CURRENT has an arrow and a time."""
    console.publish("a", policies={"graded": an_uncertified_fit(0.875)}, abstention=an_abstention(certificate=None))
    console.publish("b", policies={})
    console.run("promote", "a")
    (Path(console.store.where) / "c.json").write_text("{")
    printed = console.run("list")
    (current,) = [line for line in printed.splitlines() if "→" in line]
    at = console.store.history()[-1].at
    for word in (" a ", "no", "0.875", "0.250 (not certified)", at[:16].replace("T", " ")):
        assert word in current
    assert "c cannot be served: " in printed
    assert "unreadable" in printed


def test_list_as_json_is_what_the_gateway_says(console: Console) -> None:
    """The same shape as `GET /calibrators`."""
    console.publish("a")
    console.publish("b")
    console.run("promote", "b")
    found = TypeAdapter(CalibratorList).validate_json(console.run("list", "--json"))
    assert (found.current, found.serving) == ("b", None)
    assert [(one.version, one.current, one.certified) for one in found.versions] == [
        ("b", True, True),
        ("a", False, True),
    ]
    assert found.changes[0].by == "promote"


def test_show_says_what_is_guaranteed(console: Console) -> None:
    """A table by default, the file with --json; the default version is CURRENT."""
    console.publish("a", policies={"graded": a_fit(), "binary": an_uncertified_fit()})
    console.run("promote", "a")
    printed = console.run("show")
    assert "with probability 0.95, accuracy is at least that of best_fixed minus 0.02" in printed
    assert "(800 groups, 800 labelled rows, tested at 0.025; world)" in printed
    assert "not certified: too few labels" in printed
    assert "at most 0.2 of the given answers are wrong" in printed
    assert "fake-reader" in printed
    assert console.run("show", "a", "--json") == (Path(console.store.where) / "a.json").read_text()
    console.publish("bare", identity=None)
    assert "identity" in console.run("show", "bare")


def test_diff_names_each_difference(console: Console) -> None:
    """Every value that differs, against CURRENT by default; long fields on request."""
    console.publish("a")
    console.publish("b", policies={"graded": a_fit(0.875)}, report={"test": {"accuracy": 0.5}})
    console.run("promote", "b")
    printed = console.run("diff", "a")
    assert "policies.graded.thresholds.tau0" in printed
    assert "0.875" in printed
    assert "report" not in printed
    changed = json.loads(console.run("diff", "a", "b", "--details", "--json"))
    assert changed["policies.graded.thresholds.tau0"] == {"before": 0.75, "after": 0.875}
    assert changed["report.test.accuracy"] == {"before": 0.75, "after": 0.5}
    assert changed["policies.binary.thresholds.tau0"] == {"before": 0.625, "after": None}
    assert json.loads(console.run("diff", "a", "a", "--json")) == {}


def test_a_ladder_is_shown_without_its_heads(console: Console) -> None:
    """The list and the table name t, goal and certificate; a difference of heads is one line for each."""
    scope = Scope(0.05, {}, None, ("LATIN",), "questions about geography")
    console.store.publish(a_ladder_artifact(version="a", scope=scope))
    other = a_ladder(t=0.25, goal="save", certificate=None, uncertified_reason="too few labels")
    values = {**other.values, "k0": {"search": a_constant(0.5)}}
    console.store.publish(a_ladder_artifact(version="b", ladder=replace(other, values=values)))
    console.run("promote", "a")
    assert "ladder (gain), t = 0.100" in console.run("list")
    printed = " ".join(console.run("show").split())
    for words in (
        "t = 0.100, goal gain, cost in tokens; with probability 0.95",
        "about geography",
        "search+k0",
    ):
        assert words in printed
    changed = json.loads(console.run("diff", "a", "b", "--json"))
    assert changed["ladder.t"] == {"before": 0.1, "after": 0.25}
    assert [path for path in changed if path.startswith("ladder.values")] == ["ladder.values.k0.search"]
    assert re.fullmatch("blend [0-9a-f]{8}", changed["ladder.values.k0.search"]["after"])
    (listed,) = [one for one in json.loads(console.run("list", "--json"))["versions"] if one["version"] == "b"]
    assert (listed["ladder"]["goal"], listed["ladder"]["uncertified_reason"]) == ("save", "too few labels")


def test_promote_and_roll_back(console: Console) -> None:
    """Promote, then roll back until there is no earlier version."""
    for version in ("a", "b"):
        console.publish(version)
        assert f"CURRENT is {version}" in console.run("promote", version)
    assert "CURRENT is a" in console.run("rollback")
    assert console.store.current() == "a"
    assert "has no earlier version" in console.run("rollback", code=1)


@pytest.mark.parametrize("version", ["gone", "../x", "torn", "old", "bare"])
def test_promote_refuses_what_cannot_serve(console: Console, version: str) -> None:
    """A damaged file or one without identity is refused with one sentence, and CURRENT stays."""
    console.publish("good")
    console.run("promote", "good")
    console.publish("bare", identity=None)
    for name, (old, new) in {"torn": ('"', ""), "old": ('"schema": 6', '"schema": 1')}.items():
        console.publish(name)
        path = Path(console.store.where) / f"{name}.json"
        path.write_text(path.read_text().replace(old, new))
    printed = console.run("promote", version, code=1)
    assert printed.startswith("error: ")
    assert version in printed
    assert console.store.current() == "good"


def test_promote_warns_of_another_system(console: Console) -> None:
    """A calibrator for another reader is promoted with a note about when it is served."""
    console.publish("a")
    console.publish("b", identity=an_identity(reader="new"))
    assert "note" not in console.run("promote", "a")
    assert "1 differences" in console.run("promote", "b")
    assert console.store.current() == "b"


def test_nothing_to_show(console: Console) -> None:
    """Without CURRENT a version must be named."""
    assert "name a version" in console.run("show", code=1)


def test_another_folder(console: Console, tmp_path: Path) -> None:
    """`--folder` overrides the setting."""
    other = ArtifactStore(tmp_path / "other")
    other.publish(an_artifact(version="x"))
    console.run("promote", "x", "--folder", str(Path(other.where)))
    assert other.current() == "x"
    assert console.store.current() is None
