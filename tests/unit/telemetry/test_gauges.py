"""What a scrape shows besides finished decisions: the load, the upstreams, and the current state."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from app.calibrators.drift import SignalReport, Stability
from app.core.artifact import CalibratorStatus
from app.core.cost import Objective, Tariff
from app.economics.bypass import BypassReport
from app.economics.estimate import estimate
from app.economics.view import TrafficReport
from app.economics.window import ROW, Traffic, TrafficWindow
from app.errors import ConfigurationError
from app.telemetry.gauges import Gauges, Processes, TrafficMetrics, load, registries, reserve
from app.telemetry.snapshot import Load, Part
from tests.fakes.records import a_record, a_skip
from tests.fakes.snapshots import SERVING, a_snapshot


def shown(
    status: CalibratorStatus, traffic: Traffic, signals: SignalReport, evidence: float | None
) -> dict[object, float]:
    """What a scrape shows, by name and labels."""
    found = estimate(traffic, seconds=900, reference=status.fallback_k, tariff=Tariff(), ks=(0, 1, 5))
    registry = CollectorRegistry()
    snapshot = a_snapshot(
        calibrator=status,
        economics=TrafficReport(0.0, found, {}),
        bypass=BypassReport("auto", on=True, objective=Objective.LATENCY, reason=""),
        drift=signals,
        evidence=evidence,
    )
    registry.register(Gauges(snapshot=lambda: snapshot, version="1.2.3", keys=lambda: "0a1b"))
    found = {
        (sample.name.removeprefix("fetchwise_"), *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }
    assert (found.pop(("build_info", "1.2.3")), found.pop(("keys_info", "0a1b"))) == (1, 1)
    # Its pings are those of another clock, long ago.
    assert found.pop(("ready",)) == 0
    return found


def test_known_figures_are_exported(tmp_path: Path) -> None:
    """Gated questions that read one passage or none: gauges against k1, none against k5, and no money."""
    window = TrafficWindow(tmp_path)
    for _ in range(40):
        window.observe(a_record())
        window.observe(a_skip())
    signals = SignalReport({"margin": Stability(0.5, 0.25)}, 0.75)
    # A probe of 200 ms, and 420 ms of retrieving and reading for every second question.
    assert shown(SERVING, window.read(900), signals, 0.125) == {
        ("calibrator_info", "v1", "certified"): 1,
        ("fallback_info", "k1"): 1,
        ("bypass_active",): 1,
        ("skip_ratio",): 0.5,
        ("break_even_skip_ratio", "latency", "k1"): pytest.approx(200 / 420),
        ("gate_cost_ratio", "latency", "k1"): pytest.approx((200 + 210) / 420),
        ("break_even_skip_ratio", "tokens", "k1"): pytest.approx(48 / 129),
        ("gate_cost_ratio", "tokens", "k1"): pytest.approx((48 + 64.5) / 129),
        ("drift_psi", "margin"): 0.5,
        ("drift_psi_limit", "margin"): 0.25,
        ("estimated_accuracy",): 0.75,
        ("drift_evidence",): 0.125,
        ("calibrator_revoked",): 0,
    }
    window.close()


@pytest.mark.parametrize(
    ("status", "calibrator", "fallback"),
    [
        (CalibratorStatus("v1", False, True, "why", 1, revoked=True), ("v1", "revoked"), "k1"),
        (CalibratorStatus("v1", False, False, "another reader", 5), ("none", "uncertified"), "k5"),
    ],
    ids=["revoked", "does not match"],
)
def test_unknown_figures_are_absent(status: CalibratorStatus, calibrator: tuple[str, str], fallback: str) -> None:
    """Without traffic and feedback, the calibrator is exported, but no figure."""
    assert shown(status, Traffic(np.empty(0, ROW), 0.0, 0), SignalReport(), None) == {
        ("calibrator_info", *calibrator): 1,
        ("fallback_info", fallback): 1,
        ("bypass_active",): 1,
        ("calibrator_revoked",): status.revoked,
    }


def test_load_and_upstreams_are_exported() -> None:
    """Calls in progress go up and down, refused calls only up; an upstream that was never pinged is absent."""
    registry = CollectorRegistry()
    traffic = TrafficMetrics(registry)
    traffic.in_flight.inc(2)
    traffic.in_flight.dec()
    traffic.shed.inc()
    traffic.pinged({"reader": Part(up=True), "vectors": Part(up=False, remark="down")})
    traffic.http.start_at_zero(["/readyz"], ["/answer"])
    for route, code in (("/answer", 200), ("/answer", 429), ("/answer", 500), ("/readyz", 503)):
        traffic.http.observe(route, code, 0.1)
    # One refused, and one bug; a probe of a gateway that is not ready is no failure.
    assert load(registry, None) == Load(in_flight=1, shed=1, failed=2)
    up = [
        registry.get_sample_value("fetchwise_upstream_up", {"upstream": part})
        for part in ("reader", "vectors", "embedder")
    ]
    assert up == [1, 0, None]


def test_single_process_exports_its_own_counts() -> None:
    """It also exports the metrics of the process."""
    counted, scraped = registries(None)
    assert counted is scraped
    assert "python_info" in {family.name for family in scraped.collect()}
    assert (scraped.get_sample_value("process_resident_memory_bytes", {"worker": str(os.getpid())}) or 0) > 0


def test_each_living_process_has_its_own_metrics() -> None:
    """A worker that ended has none."""
    with subprocess.Popen(["sleep", "0"]) as ended:
        pass
    registry = CollectorRegistry()
    registry.register(Processes(lambda: [str(os.getpid()), str(os.getppid()), str(ended.pid)]))
    found = {
        sample.labels["worker"]
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "process_start_time_seconds"
    }
    assert found == {str(os.getpid()), str(os.getppid())}


def test_each_reader_is_counted() -> None:
    """Calls by result and time, and whether it answers."""
    registry = CollectorRegistry()
    traffic = TrafficMetrics(registry)
    traffic.reader_called("reader 1", "ok", 0.2)
    traffic.reader_called("reader 1", "timeout", 60.0)
    traffic.reader_pinged("reader 2", up=False)
    value = registry.get_sample_value
    assert value("fetchwise_reader_calls_total", {"server": "reader 1", "result": "timeout"}) == 1
    assert value("fetchwise_reader_call_duration_seconds_bucket", {"server": "reader 1", "le": "0.25"}) == 1
    assert value("fetchwise_reader_up", {"server": "reader 2"}) == 0


def test_workers_without_shared_counts_are_refused(tmp_path: Path) -> None:
    """The library decides at import that counts stay in the process; several workers then refuse to start."""
    with pytest.raises(ConfigurationError, match="PROMETHEUS_MULTIPROC_DIR"):
        registries(tmp_path)


def test_files_of_this_worker_have_their_room(tmp_path: Path) -> None:
    """No holes, and as much again for labels that are counted later; files of other workers do not change."""
    own, other = tmp_path / f"counter_{os.getpid()}.db", tmp_path / "counter_1.db"
    for file in (own, other):
        file.touch()
        os.truncate(file, 65536)
    reserve(tmp_path)
    assert own.stat().st_blocks * 512 >= 2 * 65536
    assert other.stat().st_blocks == 0
