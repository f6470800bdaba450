"""The benchmark of schedules as a command, on few questions: it writes what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import REPO

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

COLUMNS = {
    "model",
    "regime",
    "load",
    "schedule",
    "latency_ratio",
    "tokens_ratio",
    "accuracy_delta",
    "retrieval_calls_ratio",
}


def test_every_schedule_in_every_regime(tmp_path: Path) -> None:
    """Rows for each schedule at each load, bars that are judged, and two pictures; the demo table is enough."""
    command = [sys.executable, "bench/schedules/run.py", "--quick", "--llama", str(tmp_path), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=500, check=False)
    # Few questions may miss a bar by chance, which is said by 1.
    assert done.returncode in {0, 1}, done.stderr
    rows = json.loads((tmp_path / "schedules.json").read_text())
    assert all(row.keys() >= COLUMNS for row in rows)
    cells = {(row["model"], row["regime"], row["load"]) for row in rows}
    for regime in (("8B", "paper"), ("32B", "paper"), ("demo", "demo")):
        for load in (0.0, 0.8, 1.0):
            assert (*regime, load) in cells
            served = {r["schedule"] for r in rows if (r["model"], r["regime"], r["load"]) == (*regime, load)}
            assert served >= {"serial", "overlap", "overlap+exit", "race", "auto"}
    judged = json.loads((tmp_path / "schedules-bars.json").read_text())
    assert {bar["met"] for bar in judged} >= {True, None}
    assert all(bar["what"] in done.stdout for bar in judged)
    for picture in ("load", "sweep"):
        assert (tmp_path / f"schedules-{picture}.png").stat().st_size > 10_000
