"""Commands: output, errors and exit codes."""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli import main
from app.cli.ask import WHY, bar
from app.core.policy import Reason
from bench.refit.make_table import write_table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic outcome table."""
    path = tmp_path_factory.mktemp("table") / "outcomes.jsonl"
    write_table(path, 500, seed=5)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run one command in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["fetchwise", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_what_commands_store_is_for_their_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever a command or a library creates, no other user can read it."""
    os.umask(0)
    assert run(monkeypatch, "--help") == 0
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "folder")] == [0o600, 0o700]


def test_the_bar_marks_p_and_the_thresholds() -> None:
    """A dot for p, and strokes for thresholds within (0, 1]."""
    drawn = bar(0.5, {"tau0": 0.8, "tau1": 0.0, "tau_abstain": None})
    assert drawn.index("●") < drawn.index("|")
    assert drawn.count("|") == 1
    assert "|" not in bar(0.5, {"tau0": 2.0, "tau1": 2.0, "tau_abstain": None})
    assert "●" in bar(1.0, {"tau0": None, "tau1": None, "tau_abstain": None})


def test_every_reason_has_words() -> None:
    """`fetchwise ask` explains every reason."""
    assert set(WHY) == {reason.value for reason in Reason}
    assert WHY["uncertain"].format(passages="ten passages") == "the model is unsure: ten passages"


def test_ask_without_a_gateway_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused connection is one sentence."""

    def refused(*_: object, **__: object) -> None:
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(httpx, "stream", refused)
    assert run(monkeypatch, "ask", "Who?") == 1
    said = capsys.readouterr().err
    assert "fetchwise serve" in said
    assert "--url" in said


def replies(monkeypatch: pytest.MonkeyPatch, status: int, **said: Any) -> list[Any]:
    """Let a gateway reply like this; returns the bodies that it receives."""
    sent: list[Any] = []

    def stream(_method: str, _url: str, *, json: Any, **_: Any) -> nullcontext[httpx.Response]:
        sent.append(json)
        return nullcontext(httpx.Response(status, **said))

    monkeypatch.setattr(httpx, "stream", stream)
    return sent


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m"


def a_receipt() -> dict[str, Any]:
    """A receipt in which every text contains control characters."""
    step = {"sentence": f"step {EVIL}"}
    return {
        "answer": f"Kings{EVIL}ton\nis it\tthere",
        "confidence": 0.5,
        "action": f"k1{EVIL}",
        "k": 1,
        "citations": [{"index": 1, "title": f"title {EVIL}", "id": "p"}],
        "decision": {
            "reason": "confident",
            "steps": [step],
            "scope": {"covers": f"capitals {EVIL}", "in_scope": False, "alarm": EVIL},
            "p_closed_book": None,
            "thresholds": {"tau0": None, "tau1": None},
            "calibrator": {"version": f"v1{EVIL}", "certified": True},
        },
        "usage": {"searches": 1, "passages": 1},
        "timings_ms": {"total": 1.0},
    }


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_answer_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """Control characters of a reply are shown, not sent to the terminal; line breaks stay."""
    replies(monkeypatch, 200, json=a_receipt())
    assert run(monkeypatch, "ask", "Where?", *options) == 0
    printed = capsys.readouterr().out
    assert all(line.isprintable() for line in printed.split("\n"))
    assert "Kings\\u001b" in printed
    assert bool(options) or "is it   there" in printed


def test_an_error_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor can the message of an error."""
    replies(monkeypatch, 503, json={"error": {"message": f"no {EVIL}"}})
    assert run(monkeypatch, "ask", "Where?") == 1
    assert all(line.isprintable() for line in capsys.readouterr().err.split("\n"))


def events(*sent: tuple[str, Any]) -> dict[str, Any]:
    """A stream of events."""
    text = ": hello\n\n" + "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in sent)
    return {"text": text, "headers": {"content-type": "text/event-stream"}}


def test_a_streamed_answer_is_printed_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`--stream` prints the pieces, then how it was decided; `--collection` is part of the question."""
    pieces = [("step", {}), ("token", {"text": "King"}), ("token", {"text": f"ston{EVIL}"})]
    sent = replies(monkeypatch, 200, **events(*pieces, ("final", a_receipt())))
    assert run(monkeypatch, "ask", "Where?", "--stream", "--collection", "handbook") == 0
    assert (sent[0]["stream"], sent[0]["collection"]) == (True, "handbook")
    printed = capsys.readouterr().out
    assert printed.startswith("Kingston")
    assert printed.count("ston") == 1
    assert "1 search made" in printed
    assert all(line.isprintable() for line in printed.split("\n"))


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ({"json": {"error": {"message": "no such collection"}}}, "no such collection"),
        ({"text": "<html>"}, "not a Fetchwise gateway"),
        ({"json": ["a", "list"]}, "not a Fetchwise gateway"),
        (events(("error", {"error": {"message": "the reader failed"}})), "the reader failed"),
        (events(("token", {"text": "King"})), "ended before"),
    ],
)
def test_an_error_names_the_gateway(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reply: dict[str, Any], says: str
) -> None:
    """One sentence says what happened, where, and which option names another gateway."""
    replies(monkeypatch, 200, **reply)
    assert run(monkeypatch, "ask", "Where?", "--stream", "--url", "http://elsewhere:1/") == 1
    said = capsys.readouterr().err
    assert says in said
    assert "http://elsewhere:1" in said
    assert "--url" in said


def test_a_wrong_setting_is_named_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the variable, not a Python field."""
    monkeypatch.setenv("FETCHWISE_PORT", "eighty")
    assert run(monkeypatch, "ask", "Who?") == 1
    assert "FETCHWISE_PORT" in capsys.readouterr().err


def test_refit_evaluate_and_report_run_on_one_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, table: Path
) -> None:
    """The three offline commands in the order of docs/labels.md."""
    folder = tmp_path / "calibrators" / "demo"
    assert run(monkeypatch, "refit", "--outcomes", str(table), "--out", str(folder)) == 0
    version = (folder / "CURRENT").read_text().split()[0]
    capsys.readouterr()
    assert run(monkeypatch, "evaluate", "--outcomes", str(table), "--json", "--resamples", "100") == 0
    result = json.loads(capsys.readouterr().out)
    # The other rows are out of corpus.
    assert result["n"] == 470
    assert set(result["accuracy"]) == {"k0", "k1", "k5"}
    assert all(isinstance(value, float) for value in result["accuracy"].values())
    frontier = {"binary", "full", "call", "passage", "random", "oracle", "normalised"}
    for signal in result["signals"].values():
        assert {"auroc", "ece_raw", "ece", "brier_raw", "brier", "nll", "frontier"} <= signal.keys()
        assert frontier <= signal["frontier"].keys()
    assert {"selective", "deploy", "harm"} <= result.keys()
    page = tmp_path / "report.html"
    artifact = str(folder / f"{version}.json")
    assert run(monkeypatch, "report", "--outcomes", str(table), "--artifact", artifact, "--out", str(page)) == 0
    assert "<svg" in page.read_text()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:40]], "501"),
        (lambda lines: [*lines, lines[5]], "already at"),
        (lambda lines: lines[:11], "groups"),
        (
            lambda lines: [*lines[:3], lines[3].replace('"seq_logprob":', '"seq_logprob":NaN,"x":', 1), *lines[4:]],
            ":4:",
        ),
    ],
    ids=["torn line", "duplicate id", "ten rows", "NaN"],
)
def test_a_bad_table_is_refused_and_nothing_published(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    table: Path,
    spoil: object,
    says: str,
) -> None:
    """Each error is one sentence with its line or its fix, exit code 1, and no file is written."""
    bad = tmp_path / "bad.jsonl"
    assert callable(spoil)
    bad.write_text("\n".join(spoil(table.read_text().splitlines())) + "\n")
    assert run(monkeypatch, "refit", "--outcomes", str(bad), "--out", str(tmp_path / "out")) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
