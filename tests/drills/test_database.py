"""PostgreSQL that is cut off, behind PgBouncer, or not there at the start; a full disk; a clock that is wrong."""

import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.keys import Scope
from app.calibrators.store import ArtifactStore
from app.errors import LogUnavailable
from app.storage.decisions import SqlDecisionStore
from app.storage.fleet_rates import FleetRates
from app.storage.rates import SharedRates
from app.storage.reading import count, pages
from app.wiring.gateway import key_file
from tests.drills.hosts import Host
from tests.drills.load import load
from tests.drills.pgbouncer import pgbouncer
from tests.e2e.postgres import PostgresServer
from tests.e2e.processes import Gateway, gateway, wait_ready
from tests.fakes.records import a_record
from tests.waiting import wait_until
from tests.wire.paper_costs import PaperUpstream

pytestmark = [pytest.mark.drill, pytest.mark.timeout(600)]

# How long the database is cut off; `DRILL_SECONDS=60` for the long form.
CUT_OFF_S = float(os.environ.get("DRILL_SECONDS", "15"))
# How long a stop may take; a busy machine needs more than the long form, which runs alone.
STOP_S = 40 if CUT_OFF_S >= 60 else 90
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
DAY_S = 86_400.0
# No pause for load balancers, which these drills do not have.
QUICK = {"drain_s": "0"}


@dataclass
class Judge:
    """A caller who asks and judges until the end of the block, and what was acknowledged."""

    acknowledged: dict[str, bool] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)

    def turn(self, url: str) -> int:
        """One question and one verdict; returns the status of the verdict."""
        asked = httpx.post(f"{url}/answer", json={"question": "What is it?"}, timeout=60)
        assert asked.status_code == 200, asked.text
        identifier = asked.json()["id"]
        verdict = {"id": identifier, "correct": int(identifier[-1], 16) % 2 == 0}
        status = httpx.post(f"{url}/feedback", json=verdict, timeout=60).status_code
        if status == 200:
            self.acknowledged[identifier] = verdict["correct"]
        self.statuses.append(status)
        return status


@contextmanager
def judging(url: str) -> Iterator[Judge]:
    """Ask and judge from two threads."""
    judge, done = Judge(), threading.Event()

    def work() -> None:
        while not done.is_set():
            judge.turn(url)

    with ThreadPoolExecutor(2) as pool:
        works = [pool.submit(work) for _ in range(2)]
        try:
            yield judge
        finally:
            done.set()
        for one in works:
            one.result()


def stored(where: str) -> dict[str, list[bool]]:
    """The verdicts of every logged decision, by its id."""
    store = SqlDecisionStore.open(where)
    try:
        rows = [row for page in pages(store.database, 0.0) for row in page]
    finally:
        store.close()
    return {row["id"]: [one["correct"] for one in row["feedback_history"]] for row in rows}


def metric(running: Gateway, name: str) -> float:
    """A metric without labels."""
    text = httpx.get(f"{running.url}/metrics", timeout=30).text
    return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])


def settings_of(upstream: PaperUpstream, tmp_path: Path, **more: str) -> dict[str, Any]:
    """A gateway without a calibrator on these upstreams."""
    return upstream.settings(tmp_path / "none") | QUICK | more


@pytest.fixture(params=["direct", "pooled"])
def far_log(request: pytest.FixtureRequest, far_postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database on the other host, directly or through PgBouncer on this one."""
    if request.param == "direct":
        yield far_postgres.database()
        return
    with pgbouncer(far_postgres) as url:
        yield url


def test_cut_off_database_fails_no_question(
    tmp_path: Path, upstream: PaperUpstream, far_host: Host, far_log: str
) -> None:
    """All questions are answered, `/metrics` is not held up by audits, and no acknowledged verdict is lost."""
    settings = settings_of(upstream, tmp_path, decision_log=far_log, log_buffer="100000")
    with gateway(tmp_path, **settings) as running, load(running.url, callers=2, pause_s=0.05) as asked:
        with judging(running.url) as judge:
            wait_until(lambda: len(judge.acknowledged) >= 20, "no verdict is accepted")
            asked.wait_for(20)
            far_host.cut_off()
            cut_off_at = time.monotonic()
            before = len(asked.replies)
            with ThreadPoolExecutor(8) as audits:
                waiting = [audits.submit(httpx.get, f"{running.url}/audit", timeout=90) for _ in range(8)]
                wait_until(lambda: metric(running, "fetchwise_log_failing") == 1, "the outage is not seen")
                assert [one.result().status_code for one in waiting] == [503] * 8
            wait_until(lambda: time.monotonic() > cut_off_at + CUT_OFF_S, "", within_s=2 * CUT_OFF_S)
            assert 503 in judge.statuses
            far_host.reconnect()
            refused = len(judge.statuses)
            wait_until(lambda: 200 in judge.statuses[refused:], "verdicts are refused after the outage")
        wait_until(lambda: metric(running, "fetchwise_log_failing") == 0, "the outage does not end")
        assert len(asked.replies) > before
        assert metric(running, "fetchwise_log_dropped_total") == 0
        assert httpx.get(f"{running.url}/audit", timeout=60).status_code == 200
    assert asked.failed == []
    running.process.wait(60)
    kept = stored(far_log)
    assert {one: kept.get(one) for one in judge.acknowledged} == {
        one: [said] for one, said in judge.acknowledged.items()
    }
    # Every answer is logged, also those of the outage.
    assert {json.loads(reply.body)["id"] for reply in asked.replies} <= kept.keys()


def test_gateway_stops_while_its_database_is_cut_off(
    tmp_path: Path, upstream: PaperUpstream, far_host: Host, far_log: str
) -> None:
    """SIGTERM ends it in time, whatever waits for PostgreSQL: log, drift, calibrators, audits."""
    settings = settings_of(upstream, tmp_path, decision_log=far_log) | {"calibrators": far_log}
    with gateway(tmp_path, **settings) as running, ThreadPoolExecutor(4) as audits:
        assert Judge().turn(running.url) == 200
        far_host.cut_off()
        for _ in range(4):
            audits.submit(httpx.get, f"{running.url}/audit", timeout=90)
        running.ask("What is it?")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(STOP_S) == 0


def test_gateway_starts_while_its_database_is_cut_off(
    tmp_path: Path, upstream: PaperUpstream, far_host: Host, far_postgres: PostgresServer
) -> None:
    """Questions are answered from the start; what they log is stored once the database is there, tables and all."""
    where = far_postgres.database()
    far_host.cut_off()
    settings = settings_of(upstream, tmp_path, decision_log=where) | {"calibrators": where}
    judge = Judge()
    with gateway(tmp_path, **settings) as running:
        assert judge.turn(running.url) == 503
        wait_until(lambda: "cannot be used, trying again" in running.log.read_text(), "the outage is not logged")
        far_host.reconnect()
        wait_until(lambda: judge.turn(running.url) == 200, "no verdict is accepted")
        wait_until(lambda: "works again after" in running.log.read_text(), "its end is not logged")
    running.process.wait(60)
    kept = stored(where)
    assert len(kept) == len(judge.statuses)
    assert [kept[one] for one in judge.acknowledged] == [[said] for said in judge.acknowledged.values()]


def test_keys_that_cannot_be_read_let_nobody_in(
    tmp_path: Path, upstream: PaperUpstream, far_host: Host, far_postgres: PostgresServer
) -> None:
    """503 with a key and 401 without one, and `/readyz` says so, until the keys are read; then the key works."""
    where = far_postgres.database()
    _, key = key_file(where).create(
        "caller", scopes=[Scope.ANSWER], collections=[], filter={}, per_minute=None, max_concurrent=None
    )
    far_host.cut_off()
    settings = settings_of(upstream, tmp_path, keys=where)
    with gateway(tmp_path, wait=False, **settings) as running:

        def status(**headers: str) -> int:
            try:
                asked = httpx.post(f"{running.url}/answer", json={"question": "Who?"}, headers=headers, timeout=30)
            except httpx.TransportError:
                return 0
            return asked.status_code

        wait_until(lambda: status() == 401, "the gateway does not start")
        assert status(Authorization=f"Bearer {key}") == 503
        ready = httpx.get(f"{running.url}/readyz", timeout=30)
        assert (ready.status_code, ready.json()["upstreams"]["keys"]) == (503, "not ready")
        far_host.reconnect()
        wait_ready(running)
        assert (status(Authorization=f"Bearer {key}"), status(Authorization=f"Bearer {key}x")) == (200, 401)


def test_database_of_another_version_refuses_the_start(
    tmp_path: Path, upstream: PaperUpstream, postgres: PostgresServer
) -> None:
    """Unreachable is no error, but a wrong database is: before anything slow, in one sentence."""
    where = postgres.database()
    store = SqlDecisionStore.open(where)
    with store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE schema_version SET version = '4'")
    store.close()
    for url, said in ((where.replace("/log_", "/no_log_"), "does not exist"), (where, "schema version 4")):
        settings = settings_of(upstream, tmp_path, decision_log=url)
        with gateway(tmp_path, wait=False, **settings) as running:
            assert running.process.wait(60) == 1
        text = running.log.read_text()
        assert "FETCHWISE_DECISION_LOG" in text
        assert said in text
        assert "Traceback" not in text


def _first_start(where: str, folder: str, together: Any, failed: Any) -> None:
    try:
        together.wait(60)
        store = SqlDecisionStore.open(where)
        parts = [store, key_file(where), FleetRates(SharedRates(Path(folder)), where), ArtifactStore(where)]

        def written() -> bool:
            # Thirty wait for one lock: an open that took too long is tried again after a pause.
            with suppress(LogUnavailable):
                store.write([(time.time(), a_record(id=f"start-{os.getpid()}"))], [])
                return True
            return False

        wait_until(written, "the decision is not written")
        # All of them are there at once, as running gateways are.
        together.wait(120)
        del parts
    except BaseException as error:
        together.abort()
        failed.put(repr(error))
        raise


def test_thirty_first_starts_at_once(tmp_path: Path, postgres: PostgresServer) -> None:
    """Thirty processes open the parts of a gateway on an empty database in the same moment, and all succeed."""
    where = postgres.database()
    fork = multiprocessing.get_context("fork")
    together, failed = fork.Barrier(30), fork.Queue()
    started = [
        fork.Process(target=_first_start, args=(where, str(tmp_path / str(number)), together, failed))
        for number in range(30)
    ]
    for one in started:
        one.start()
    for one in started:
        one.join(180)
    assert failed.empty(), failed.get()
    assert [one.exitcode for one in started] == [0] * 30
    assert len(stored(where)) == 30


@contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[Path]:
    """A disk of this size."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(path: Path) -> None:
    """Take all space that is left."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_full_disk_refuses_feedback_and_nothing_else(tmp_path: Path, upstream: PaperUpstream) -> None:
    """Questions are answered, verdicts are a 503, the metric says so; with space everything is stored."""
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        log = disk / "decisions.sqlite3"
        judge = Judge()
        settings = settings_of(upstream, tmp_path, decision_log=str(log))
        with gateway(tmp_path / "data", **settings) as running:
            assert judge.turn(running.url) == 200
            fill(disk / "filler")
            wait_until(lambda: judge.turn(running.url) == 503, "the disk does not fill")
            assert metric(running, "fetchwise_log_failing") == 1
            assert metric(running, "fetchwise_log_waiting") > 0
            assert httpx.get(f"{running.url}/audit", timeout=60).status_code == 200
            (disk / "filler").unlink()
            wait_until(lambda: judge.turn(running.url) == 200, "the log does not recover")
            assert metric(running, "fetchwise_log_failing") == 0
            assert metric(running, "fetchwise_log_dropped_total") == 0
        running.process.wait(60)
        kept = stored(str(log))
    assert len(kept) == len(judge.statuses)
    assert [kept[one] for one in judge.acknowledged] == [[said] for said in judge.acknowledged.values()]


def test_clock_that_is_wrong_deletes_nothing(tmp_path: Path, upstream: PaperUpstream, postgres: PostgresServer) -> None:
    """A gateway whose clock is 100 days ahead keeps a shared log that holds 90 days."""
    where = postgres.database()
    store = SqlDecisionStore.open(where)
    store.write([(time.time() - 10 * DAY_S, a_record(id=f"old{number}")) for number in range(50)], [])
    settings = settings_of(upstream, tmp_path, decision_log=where, log_retention_days="90")
    wrong = {"LD_PRELOAD": FAKETIME, "FAKETIME": "+100d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with gateway(tmp_path, env=wrong, **settings) as running:
        # Decisions are pruned after each write, so before the second.
        assert [Judge().turn(running.url) for _ in range(2)] == [200, 200]
        assert metric(running, "fetchwise_log_pruned_total") == 0
    with store.database.reading() as connection:
        newest = connection.exec_driver_sql("SELECT max(created_at) FROM decisions").scalar()
    assert newest is not None
    assert newest > time.time() + 99 * DAY_S, "the clock of the gateway was right"
    assert count(store.database, 0.0) == 52
    store.close()
