"""Every command of the README and of the tour does what the page says, on a gateway that `make serve` starts."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.processes import REPO, START_TIMEOUT_S, Gateway, command_environment, descendants, wait_until_gone
from tests.waiting import PATIENCE_S, wait_until
from tests.wire.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def blocks(page: str) -> list[str]:
    """The shell blocks of a page."""
    return re.findall(r"^```sh\n(.*?)^```", (REPO / page).read_text(), re.MULTILINE | re.DOTALL)


def run(block: str, port: int, env: dict[str, str]) -> str:
    """Run a block as it is written, except for the port; returns what it prints."""
    done = subprocess.run(
        ["bash", "-euc", block.replace(":8080", f":{port}")],
        cwd=REPO,
        env=env,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def served(command: str, data: Path, port: int) -> Iterator[Gateway]:
    """The gateway that a command of a page starts; Ctrl-C stops it and everything below it."""
    env = command_environment(data, port=str(port))
    log = data / "make.log"
    with log.open("ab") as file:
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=REPO, env=env, stdout=file, stderr=file, start_new_session=True
        )
    running = Gateway(process, f"http://127.0.0.1:{port}", env, log)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            return httpx.get(f"{running.url}/readyz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_until(ready, "`make serve` did not get ready", within_s=START_TIMEOUT_S)
        yield running
    finally:
        below = descendants(process.pid)
        # As a terminal does it: to every process in the foreground.
        os.killpg(process.pid, signal.SIGINT)
        process.wait(PATIENCE_S)
        wait_until_gone([process.pid, *below])


def test_readme_and_tour(tmp_path: Path) -> None:
    """The two pages, from top to bottom: answers, abstentions, the receipt, other documents."""
    port = free_port()
    readme, tour = blocks("README.md"), blocks("docs/tour.md")
    assert "make serve" in readme[0]
    assert tour[0] == "make serve\n"
    with served("make serve", tmp_path, port) as running:
        receipt = json.loads(run(readme[1], port, running.env))
        known, unknown, programs = (run(block, port, running.env) for block in tour[1:4])
        assert "Kingston" in known
        assert unknown.count("I don't know.") == 2
        assert programs.count("Vientiane") >= 2
        assert json.loads(run(tour[4], port, running.env))["fetchwise"]["mode"] == "chat"
    (shown,) = re.findall(r"^```json\n(.*?)^```", (REPO / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert _decided(receipt) == _decided(json.loads(shown))
    ingest, serve = tour[5].strip().splitlines()
    run(ingest, port, command_environment(tmp_path))
    with served(serve, tmp_path, port) as running:
        assert running.ask("What is a calibrator?").json()["decision"]["reason"] == "not_calibrated"


def _decided(receipt: dict[str, Any]) -> tuple[object, ...]:
    """What is the same on every machine: probabilities differ in their last digits."""
    decision = receipt["decision"]
    steps = [(step["state"], step["action"]) for step in decision["steps"]]
    return receipt["action"], "Kingston" in receipt["answer"], steps, decision["calibrator"]["version"]
