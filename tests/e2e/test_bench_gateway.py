"""The gateway's benchmarks as commands, for a few seconds: they write their results. No figure is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import REPO

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def bench(script: str, *arguments: str, out: Path) -> "subprocess.CompletedProcess[str]":
    """Run one benchmark to its end."""
    return subprocess.run(
        [sys.executable, f"bench/gateway/{script}.py", *arguments, "--out", str(out)],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_side_by_side(tmp_path: Path) -> None:
    """Every system on every path, each reply with the expected number of passages."""
    systems = ("fetchwise", "aiohttp", "httpx")
    few = ("--rounds", "1", "--seconds", "3", "--connections", "4")
    done = bench("run", "--systems", *systems, *few, out=tmp_path)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "gateway.json").read_text())
    assert tuple(written) == systems
    for system in systems:
        assert tuple(written[system]) == ("k0", "k1", "k5", "chat")
        for path, cell in written[system].items():
            assert cell["errors"] == 0, done.stderr
            assert cell["rps"] > 0
            assert 0 < cell["p50_ms"] <= cell["p99_ms"]
            assert f"| {system} | {path} |" in done.stdout
    ratios = json.loads((tmp_path / "gateway-ratios.json").read_text())
    assert [bar["measured"] is None for bar in ratios["bars"]] == [False, False, True, False, False, False]
    assert (tmp_path / "gateway.png").stat().st_size > 0


def test_overload(tmp_path: Path) -> None:
    """Some of the load is served, the rest is refused, and nothing else happens."""
    done = bench("overload", "--seconds", "3", "--peak-seconds", "2", out=tmp_path)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "overload.json").read_text())
    # Right after the flood the queue may still be full: that is a refusal, too.
    assert written["errors"] == 0 or written["complaint"].startswith("429"), written["complaint"]
    assert written["served_rps"] > 0
    assert written["shed_rps"] > 0
    assert len(written["by_second"]) == 3
    assert len(written["bars"]) == 5
    assert (tmp_path / "overload.png").stat().st_size > 0


def test_attack(tmp_path: Path) -> None:
    """Every attack opens connections, and honest questions are answered beside them."""
    few = ("--connections", "30", "--seconds", "4", "--quiet-seconds", "2")
    done = bench("attack", *few, out=tmp_path)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "attack.json").read_text())
    assert sorted(written["opened"]) == ["drip", "never_read", "pipeline"]
    assert written["attacked"]["served"] > 0, written["attacked"]["complaint"]
    assert len(written["bars"]) == 3
