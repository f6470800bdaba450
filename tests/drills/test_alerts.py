"""Every alert fires in a drill and is quiet otherwise: real gateways, Prometheus and Alertmanager.

The rules are those of deploy/, 600 times as fast. Each drill has gateways of its own, under a job of its own.
"""

import asyncio
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.pieces import alerts
from tests.drills.load import load
from tests.e2e.monitoring import RUNBOOK, Prometheus, alertmanager, prometheus, scaled, write_targets
from tests.e2e.processes import REPO, Gateway, descendants, gateway
from tests.fakes.artifacts import an_uncertified_fit
from tests.waiting import wait_until
from tests.wire.paper_costs import HOPELESS, QUICK, PaperUpstream, paper_upstream
from tests.wire.servers import free_port

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]

# The alerts of each drill. The one about the cost of gating needs costs as in the paper: tests/e2e/test_alerts_fire.py.
BY_READER = {"FetchwiseUnavailable", "FetchwiseErrorBudgetBurn", "FetchwisePartDown", "FetchwiseUpstreamErrors"}
OVERLOADED = {"FetchwiseSheddingLoad", "FetchwiseErrorBudgetBurn", "FetchwiseErrorBudgetLow"}
SLOW = {"FetchwiseLatencyBudgetBurn", "FetchwiseLatencyBudgetLow"}
CAUSES = {"FetchwiseInternalErrors", "FetchwiseTracesDropping", "FetchwiseDecisionLogFailing",
          "FetchwiseDecisionLogDropping", "FetchwiseBackgroundFailing", "FetchwiseRestarting"}  # fmt: skip
REPLICA = {"FetchwiseReplicaDown", "FetchwiseBreakerOpen"}
CALIBRATORS = {"FetchwiseCalibratorMissing", "FetchwiseCalibratorUncertified", "FetchwiseRevisionsDiffer"}
TRAFFIC = {"FetchwiseSkipRateChanged", "FetchwiseSignalsDrifted"}
ELSEWHERE = {"FetchwiseGateCostsMore"}
# Two slow scrapes make them fire for a moment, because the rules are so fast.
SCRAPED_LATE = {"FetchwiseGatewayDown", "FetchwiseUnavailable", "FetchwisePartDown"}
BUG = """
import app.answer.answer
working = app.answer.answer.Answerer.answer
async def broken(self, question, *more):
    if "bug" in question.text:
        raise RuntimeError("a bug")
    return await working(self, question, *more)
app.answer.answer.Answerer.answer = broken
"""


# Half of the probes are sure, as in the reference of the artifact, so that nothing has drifted.
STEADY = replace(QUICK, skip=0.3, one=0.2)
REFERENCE = {"k0.seq_logprob": (-0.5,)}


@dataclass
class Monitoring:
    """A running Prometheus and Alertmanager, and what is scraped."""

    prometheus: Prometheus
    alertmanager: str
    folder: Path
    scraped: list[str] = field(default_factory=list)

    @contextmanager
    def watching(self, job: str, *gateways: Gateway) -> Iterator["Watched"]:
        """Scrape these gateways under this job until the end of the block."""
        self.scraped[:] = [f"{job}/{one.url.removeprefix('http://')}" for one in gateways]
        write_targets(self.folder, "fetchwise", self.scraped)
        self.prometheus.until(f'count(fetchwise_in_flight{{job="{job}"}}) == {len(gateways)}')
        yield Watched(self, job)

    def received(self) -> dict[str, dict[str, Any]]:
        """The alerts that Alertmanager has, by job and name."""
        found = httpx.get(f"http://{self.alertmanager}/api/v2/alerts", timeout=10).json()
        return {f"{one['labels'].get('job', '')} {one['labels']['alertname']}": one for one in found}


@dataclass(frozen=True)
class Watched:
    """The alerts of one job."""

    monitoring: Monitoring
    job: str

    def firing(self) -> set[str]:
        """Without the alert on the cost of gating, which means nothing with upstreams that answer at once."""
        return self.monitoring.prometheus.firing(self.job) - ELSEWHERE

    def wait_for(self, *expected: str, within_s: float = 120.0) -> None:
        """Wait until all of these fire."""
        wanted = set(expected)
        try:
            wait_until(lambda: wanted <= self.firing(), "", within_s=within_s)
        except AssertionError:
            raise AssertionError(f"missing: {wanted - self.firing()}, firing: {self.firing()}") from None

    def wait_until_quiet(self, *still: str) -> None:
        """Wait until none but these fires."""
        wait_until(lambda: self.firing() <= set(still), f"still firing: {self.firing()}", within_s=180.0)

    def received(self, name: str) -> dict[str, Any]:
        """The alert as Alertmanager shows it; waits until it is there."""
        key = f"{self.job} {name}"
        wait_until(lambda: key in self.monitoring.received(), f"{key} did not arrive")
        return self.monitoring.received()[key]


@contextmanager
def monitored(folder: Path, *, factor: int = 600) -> Iterator[Monitoring]:
    """Prometheus and Alertmanager with the configuration of deploy/, so many times as fast."""
    targets: dict[str, list[str]] = {"fetchwise": [], "vllm": [], "qdrant": []}
    with (
        alertmanager(folder) as manager,
        prometheus(
            folder / "prometheus", targets, rewrite=partial(scaled, factor=factor), alertmanager=manager
        ) as running,
    ):
        yield Monitoring(running, manager, folder / "prometheus")


@pytest.fixture(scope="module")
def monitoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitoring]:
    """One for all drills whose windows are short."""
    with monitored(tmp_path_factory.mktemp("monitoring")) as running:
        yield running


@pytest.fixture
def upstream() -> Iterator[PaperUpstream]:
    """Upstreams that answer at once."""
    with paper_upstream(STEADY) as serving:
        yield serving


def settings_of(upstream: PaperUpstream, folder: Path, **changes: Any) -> dict[str, str]:
    """Settings on these upstreams, with a certified calibrator unless `changes` say otherwise."""
    asyncio.run(upstream.publish_gate(folder / "calibrators", quantiles=REFERENCE, **changes))
    return upstream.settings(folder / "calibrators")


def test_every_alert_has_a_drill() -> None:
    """The drills below make all alerts fire."""
    drilled = BY_READER | {"FetchwiseGatewayDown"} | OVERLOADED | SLOW | CAUSES | REPLICA | CALIBRATORS | TRAFFIC
    drilled |= {"FetchwiseAbstentionSurge", "FetchwiseDriftDetected", "FetchwiseWatchdog"} | ELSEWHERE
    assert drilled == alerts().keys()


def test_a_reader_that_is_down_pages_once(monitoring: Monitoring, upstream: PaperUpstream, tmp_path: Path) -> None:
    """One page; what follows from it is silenced. Quiet before and after, and a gateway that is gone is a ticket."""
    settings = settings_of(upstream, tmp_path)
    with ExitStack() as running:
        first, second = (running.enter_context(gateway(tmp_path / name, **settings)) for name in "ab")
        with monitoring.watching("fetchwise-reader", first, second) as watched:
            with load(first.url, callers=2, pause_s=0.05) as answered:
                answered.wait_for(100)
                assert not answered.failed
                assert watched.firing() <= SCRAPED_LATE
                wait_until(lambda: " FetchwiseWatchdog" in monitoring.received(), "no watchdog")
                assert monitoring.received()[" FetchwiseWatchdog"]["receivers"] == [{"name": "watchdog"}]
                upstream.down.add("reader")
                watched.wait_for(*BY_READER)
            paged = watched.received("FetchwiseUnavailable")
            assert paged["receivers"] == [{"name": "pager"}]
            assert paged["annotations"]["runbook_url"] == f"{RUNBOOK}#fetchwiseunavailable"
            assert "runbook" not in paged["labels"]
            for explained in ("FetchwiseErrorBudgetBurn", "FetchwiseUpstreamErrors"):
                assert watched.received(explained)["status"]["inhibitedBy"], explained
            upstream.down.clear()
            wait_until(lambda: "FetchwiseUnavailable" not in watched.firing(), "still unavailable")
            second.process.send_signal(signal.SIGKILL)
            watched.wait_for("FetchwiseGatewayDown")
            wait_until(lambda: "FetchwiseUnavailable" not in watched.firing(), "it is unavailable")
            watched.wait_until_quiet("FetchwiseGatewayDown")


def test_overload(monitoring: Monitoring, tmp_path: Path) -> None:
    """Refused questions burn the error budget, and late ones the latency budget."""
    with paper_upstream(STEADY, scale=1500.0) as upstream:
        settings = settings_of(upstream, tmp_path)
        with (
            gateway(tmp_path / "data", max_in_flight="20", queue="0", **settings) as running,
            monitoring.watching("fetchwise-overload", running) as watched,
            load(running.url, callers=40, pause_s=0.5) as asked,
        ):
            watched.wait_for(*OVERLOADED, *SLOW)
            assert {reply.status for reply in asked.replies} == {200, 429}
            wait_until(lambda: "FetchwiseUnavailable" not in watched.firing(), "it is unavailable")


def test_causes_are_tickets(monitoring: Monitoring, upstream: PaperUpstream, tmp_path: Path) -> None:
    """A bug, a dead collector, a log that is locked, damaged state and workers that end, all with two workers."""
    (tmp_path / "sitecustomize.py").write_text(BUG)
    env = {
        "PYTHONPATH": f"{tmp_path}:{REPO}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
    }
    settings = settings_of(upstream, tmp_path) | {"workers": "2", "traces": "otlp", "log_buffer": "20"}
    with (
        gateway(tmp_path / "data", env=env, **settings) as running,
        monitoring.watching("fetchwise-causes", running) as watched,
        load(running.url, callers=2),
    ):
        watched.wait_for("FetchwiseTracesDropping")
        assert running.ask("Is there a bug?").status_code == 500
        watched.wait_for("FetchwiseInternalErrors")
        assert watched.received("FetchwiseInternalErrors")["receivers"] == [{"name": "tickets"}]
        (tmp_path / "data/revoked.json").write_text("nonsense")
        watched.wait_for("FetchwiseBackgroundFailing")
        (worker, *_) = [pid for pid in descendants(running.process.pid) if _is_worker(pid)]
        os.kill(worker, signal.SIGKILL)
        watched.wait_for("FetchwiseRestarting")
        with closing(sqlite3.connect(tmp_path / "data/decisions.sqlite3", timeout=30)) as locking:
            locking.execute("BEGIN IMMEDIATE")
            watched.wait_for("FetchwiseDecisionLogFailing", "FetchwiseDecisionLogDropping")
        assert watched.firing() <= CAUSES | SCRAPED_LATE


def _is_worker(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return b"multiprocessing.spawn" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_one_of_two_readers_is_gone(monitoring: Monitoring, upstream: PaperUpstream, tmp_path: Path) -> None:
    """Every question is answered, and the replica is a ticket that silences its breaker's."""
    with paper_upstream(STEADY) as other:
        settings = settings_of(upstream, tmp_path) | {"reader": f"{upstream.url},{other.url}"}
        with (
            gateway(tmp_path / "data", **settings) as running,
            monitoring.watching("fetchwise-replica", running) as watched,
            load(running.url, callers=2) as asked,
        ):
            other.down.add("reader")
            watched.wait_for(*REPLICA)
            assert not asked.failed
            assert watched.firing() - SCRAPED_LATE == REPLICA
            assert watched.received("FetchwiseBreakerOpen")["status"]["inhibitedBy"]


def test_calibrators(monitoring: Monitoring, upstream: PaperUpstream, tmp_path: Path) -> None:
    """One gateway without a calibrator, and one with an uncertified calibrator: they also differ."""
    none = settings_of(upstream, tmp_path / "a") | {"calibrators": str(tmp_path / "empty")}
    uncertified = settings_of(upstream, tmp_path / "b", policies={"graded": an_uncertified_fit()})
    with (
        gateway(tmp_path / "none", **none) as one,
        gateway(tmp_path / "uncertified", **uncertified) as two,
        monitoring.watching("fetchwise-calibrators", one, two) as watched,
    ):
        watched.wait_for(*CALIBRATORS)
        assert watched.firing() - SCRAPED_LATE == CALIBRATORS


@pytest.mark.slow
def test_traffic_that_changes(upstream: PaperUpstream, tmp_path: Path) -> None:
    """After a day of the same questions: others that need passages, then hopeless ones, then wrong answers."""
    learning = {"solicit_share": "1", "drift_wait_hours": "0.0001"}
    with (
        gateway(tmp_path / "data", **settings_of(upstream, tmp_path), **learning) as running,
        # Enough questions in an hour also on a busy machine.
        monitored(tmp_path, factor=200) as monitoring,
        monitoring.watching("fetchwise-traffic", running) as watched,
    ):
        with load(running.url) as asked:
            for _ in range(12):
                asked.wait_for(100)
            monitoring.prometheus.until('fetchwise:gated:baseline1d{job="fetchwise-traffic"} > 1000')
            assert watched.firing() <= SCRAPED_LATE
            upstream.costs = replace(STEADY, skip=0.0, one=0.0)
            watched.wait_for(*TRAFFIC, within_s=300.0)
        with load(running.url, body={"question": f"What is {HOPELESS}?"}):
            watched.wait_for("FetchwiseAbstentionSurge")
        contradict(running, 200)
        watched.wait_for("FetchwiseDriftDetected")


def contradict(running: Gateway, count: int) -> None:
    """Judge so many given answers as wrong."""
    for number in range(count):
        receipt = running.ask(f"What is item {number}?", abstain=False).json()
        body = {"id": receipt["id"], "correct": False}
        wait_until(
            lambda body=body: httpx.post(f"{running.url}/feedback", json=body, timeout=30).status_code == 200,  # type: ignore[misc]
            "no feedback was accepted",
        )
