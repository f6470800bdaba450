"""The decision log of a real gateway at full speed: after a kill, no acknowledged row is lost."""

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import httpx
import pytest

from tests.e2e.processes import Gateway, fetchwise, gateway
from tests.e2e.upstreams import upstreams

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

CLIENTS = 32
# In total, over both runs of the gateway.
ANSWERS = int(os.environ.get("TEST_ANSWERS", "4000"))
QUESTION = {"question": "What is the capital of France?", "policy": "never"}


@dataclass
class Seen:
    """What the clients received: answers, and acknowledged verdicts."""

    answered: set[str] = field(default_factory=set)
    acknowledged: dict[str, bool] = field(default_factory=dict)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Settings of a gateway whose reader and embedder answer at once."""
    seed = tmp_path_factory.mktemp("seed") / "passages.jsonl"
    seed.write_text('{"title": "France", "text": "The capital of France is Paris."}\n')
    with upstreams() as settings:
        yield settings | {"seed": str(seed), "calibrators": str(seed.parent / "none")}


async def ask_and_judge(url: str, seen: Seen, *, until: Callable[[], bool]) -> None:
    """Many clients ask, judge every answer, and send every third verdict twice, until stopped or disconnected."""

    async def client(session: aiohttp.ClientSession) -> None:
        while not until():
            async with session.post("/answer", json=QUESTION) as response:
                assert response.status == 200, await response.text()
                identifier = (await response.json())["id"]
            seen.answered.add(identifier)
            verdict = {"id": identifier, "correct": int(identifier[-1], 16) % 2 == 0}
            for _ in range(1 + (len(seen.answered) % 3 == 0)):
                async with session.post("/feedback", json=verdict) as response:
                    assert response.status == 200, await response.text()
                    assert (await response.json())["replaced"] is False
                seen.acknowledged[identifier] = verdict["correct"]

    connections = aiohttp.TCPConnector(limit=CLIENTS)
    async with aiohttp.ClientSession(url, connector=connections) as session, asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(client(session))


def counted(running: Gateway, name: str) -> float:
    """The sum of a metric over its labels."""
    lines = httpx.get(f"{running.url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_kill_9_loses_no_acknowledged_verdict(tmp_path: Path, parts: dict[str, str], log_at: str) -> None:
    """Thousands of verdicts, kill -9, restart: each acknowledged verdict is stored once, with its answer."""
    first, second = Seen(), Seen()
    chosen = parts | {"decision_log": log_at}
    with gateway(tmp_path, **chosen) as running:

        def kill_in_the_middle() -> bool:
            if len(first.acknowledged) >= ANSWERS // 2:
                running.process.kill()
            return False

        with pytest.raises(ExceptionGroup) as cut_off:
            asyncio.run(ask_and_judge(running.url, first, until=kill_in_the_middle))
        assert cut_off.group_contains(aiohttp.ClientError)
        assert not cut_off.group_contains(AssertionError)
        running.process.wait(10)

    with gateway(tmp_path, **chosen) as running:
        left = ANSWERS - len(first.answered)
        asyncio.run(ask_and_judge(running.url, second, until=lambda: len(second.answered) >= left))
        # A verdict of the first run, sent again in the second: known, so it changes nothing.
        repeated, correct = next(iter(first.acknowledged.items()))
        again = httpx.post(f"{running.url}/feedback", json={"id": repeated, "correct": correct}, timeout=60)
        assert (again.status_code, again.json()["replaced"]) == (200, False)
        assert counted(running, "fetchwise_feedback_total") == len(second.acknowledged)
        assert counted(running, "fetchwise_log_dropped_total") == 0
        audit = httpx.get(f"{running.url}/audit", timeout=60).json()
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(30) == 0

    exported = fetchwise("log", "export", "--out", str(tmp_path / "log.jsonl"), env=running.env)
    assert exported.returncode == 0, exported.stderr
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    kept = {row["id"]: [one["correct"] for one in row["feedback_history"]] for row in rows}
    assert len(kept) == len(rows) == audit["answers"]
    assert second.answered <= kept.keys()
    acknowledged = first.acknowledged | second.acknowledged
    assert {identifier: kept.get(identifier) for identifier in acknowledged} == {
        identifier: [correct] for identifier, correct in acknowledged.items()
    }
    if "://" not in log_at:
        with closing(sqlite3.connect(log_at)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_log_that_cannot_be_opened_refuses_the_start(tmp_path: Path, parts: dict[str, str]) -> None:
    """The gateway refuses to start, before anything slow, and names the setting to fix in one sentence."""
    wrong = tmp_path / "letters.txt"
    wrong.write_text("Dear Ruth, " * 100)
    env = {f"FETCHWISE_{name.upper()}": value for name, value in parts.items()}
    done = fetchwise("serve", "--port", "0", env=env | {"FETCHWISE_DECISION_LOG": str(wrong)})
    assert done.returncode == 1
    assert "FETCHWISE_DECISION_LOG" in done.stderr
    assert "Traceback" not in done.stderr
