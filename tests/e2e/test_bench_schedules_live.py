"""The live benchmark of schedules as a command, on the embedded reader and four questions: what it writes is there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.adapters.artifact_store import ArtifactStore
from bench.schedules.live_systems import label_of
from tests.e2e.processes import REPO

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_side_by_side_on_the_embedded_reader(tmp_path: Path) -> None:
    """Every system on the same four questions of the test split, figures of each, bars, and a picture."""
    passages = tmp_path / "passages.jsonl"
    passages.write_text("\n".join((REPO / "demo/passages.jsonl").read_text().splitlines()[:60]) + "\n")
    store = ArtifactStore(REPO / "calibrators/demo")
    gate = label_of(store.load(store.current() or ""))
    systems = ("always-k5", "always-k1", f"{gate}, serial", f"{gate}, race")
    few = ("--questions", "4", "--warm-up", "4", "--passages", str(passages))
    command = [sys.executable, "bench/schedules/live.py", *few, "--systems", *systems]
    command += ["--data", str(tmp_path / "data"), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=500, check=False)
    # Four questions may miss a bar by chance, which is said by 1.
    assert done.returncode in {0, 1}, done.stderr
    found = json.loads((tmp_path / "schedules-live.json").read_text())
    assert (found["questions"], found["reader"]) == (4, "embedded")
    assert tuple(found["systems"]) == systems
    asked = {(answer["system"], answer["question"]) for answer in found["answers"]}
    assert len(asked) == len(found["answers"]) == 4 * len(systems)
    assert found["systems"]["always-k5"]["k"]["k5"] == found["systems"]["always-k1"]["k"]["k1"] == 1.0
    if gate == "gate":
        assert found["systems"]["gate, serial"]["stages"]["probe"]["share"] == 1.0
    assert all(own["mean_ms"]["value"] > 0.0 for own in found["systems"].values())
    assert {bar["what"] for bar in found["bars"]} >= {
        f"{gate}, serial against always-k5",
        f"{gate}, race against always-k1",
    }
    assert all(bar["what"] in done.stdout for bar in found["bars"])
    assert (tmp_path / "schedules-live.png").stat().st_size > 10_000
