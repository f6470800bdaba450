"""Metrics besides those of finished decisions: load, upstreams, event loop lag, and gauges of the snapshot."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, values
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from app.errors import ConfigurationError, Denial
from app.telemetry.requests import SECONDS, HttpMetrics
from app.telemetry.snapshot import Load, Part, Snapshot

# prometheus_client reads it once, at import, and then keeps every value in that directory.
SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
PARTS = ("reader", "embedder", "vectors")
_FAILURES = ("timeout", "deadline", "unavailable", "bad_reply", "error")
_IN_FLIGHT, _SHED, _REQUESTS = "fetchwise_in_flight", "fetchwise_shed_total", "fetchwise_http_requests_total"
# The files of these metrics, as prometheus_client names them.
_LOAD_FILES = ("gauge_livesum_*.db", "counter_*.db")
LAG_EVERY_S = 0.25
# Below a millisecond a lag does not matter; above a second every caller notices it.
_LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


def registries(shared: Path | None) -> tuple[CollectorRegistry, CollectorRegistry]:
    """A registry to count in, and one to scrape: the same, unless `shared` contains the counts of several workers.

    Then a scrape of any worker returns their sum, and the metrics of each process.
    """
    counted = CollectorRegistry()
    if shared is None:
        for collector in (PlatformCollector, GCCollector):
            collector(registry=counted)
        counted.register(Processes(lambda: [str(os.getpid())]))
        return counted, counted
    if values.ValueClass is values.MutexValue:
        raise ConfigurationError(f"to share counts between workers, set {SHARED_VARIABLE} before they start")
    scraped = CollectorRegistry()
    PlatformCollector(registry=scraped)
    MultiProcessCollector(scraped, path=str(shared))  # type: ignore[no-untyped-call]
    # The supervisor removes this file of a worker that has ended.
    scraped.register(Processes(lambda: [file.stem.rpartition("_")[2] for file in shared.glob("gauge_livesum_*.db")]))
    return counted, scraped


def reserve(shared: Path) -> None:
    """Give the files of this worker's counts their room on the disk, and as much again for what is counted later.

    They are mapped into memory and have holes: to write into one on a full disk would kill the worker.
    """
    for path in shared.glob(f"*_{os.getpid()}.db"):
        with path.open("r+b") as file:
            # The first growth of a file doubles it.
            os.posix_fallocate(file.fileno(), 0, 2 * path.stat().st_size)


@dataclass(frozen=True, eq=False)
class Processes(Collector):
    """prometheus_client's metrics of a process, for each worker: CPU, memory, open files, start."""

    pids: Callable[[], Iterable[str]]

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering reads nothing."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Every metric with the label `worker`, the process id."""
        merged: dict[str, Metric] = {}
        for pid in sorted(self.pids()):
            for family in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                known = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    known.add_sample(sample.name, {"worker": pid}, sample.value)
        yield from merged.values()


def load(counted: CollectorRegistry, shared: Path | None) -> Load:
    """Questions in flight and refused, and failed requests, over all workers. Blocks: several keep counts in files."""
    families: Iterable[Metric]
    if shared is None:
        families = counted.restricted_registry((_IN_FLIGHT, _SHED, _REQUESTS)).collect()
    else:
        files = [str(file) for pattern in _LOAD_FILES for file in shared.glob(pattern)]
        families = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
    found = dict.fromkeys((_IN_FLIGHT, _SHED, _REQUESTS), 0)
    for sample in (sample for family in families for sample in family.samples if sample.name in found):
        if sample.name != _REQUESTS or _is_failure(sample.labels):
            found[sample.name] += int(sample.value)
    return Load(found[_IN_FLIGHT], found[_SHED], found[_SHED] + found[_REQUESTS])


def _is_failure(labels: Mapping[str, str]) -> bool:
    # A probe that finds the gateway not ready is no request that failed.
    return labels["code"] >= "500" and labels["route"] != "/readyz"


class TrafficMetrics:
    """Requests, load and upstreams: questions in flight and refused; failures, retries, breakers and pings."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.http = HttpMetrics(registry)
        self.in_flight = Gauge(
            "fetchwise_in_flight", "Questions being answered.", registry=registry, multiprocess_mode="livesum"
        )
        self.in_flight_limit = Gauge(
            "fetchwise_in_flight_limit",
            "Questions that may be answered at once; more wait or are refused.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.queued = Gauge(
            "fetchwise_queued", "Questions waiting for a permit.", registry=registry, multiprocess_mode="livesum"
        )
        self.waited = Histogram(
            "fetchwise_queue_wait_seconds",
            "Time that questions waited for a permit, whether or not they got one.",
            buckets=SECONDS,
            registry=registry,
        )
        self.shed = Counter("fetchwise_shed", "Questions refused because of load.", registry=registry)
        self._errors = Counter(
            "fetchwise_upstream_errors",
            "Failed calls to an upstream.",
            ("upstream", "kind"),
            registry=registry,
        )
        for upstream in PARTS:
            for kind in _FAILURES:
                self._errors.labels(upstream, kind)
        self._denied = Counter(
            "fetchwise_denied",
            "Requests refused because of a key, or without keys because of their host or origin.",
            ("reason",),
            registry=registry,
        )
        for why in Denial:
            self._denied.labels(why.value)
        # Show the worst worker: the one that cannot reach the upstream.
        self._up = Gauge(
            "fetchwise_upstream_up",
            "Whether an upstream answered its last ping, 1 or 0.",
            ("upstream",),
            registry=registry,
            multiprocess_mode="livemin",
        )
        # Show the worst worker: the one with the open breaker.
        self._open = Gauge(
            "fetchwise_breaker_open",
            "Share of an upstream's servers whose circuit breaker is open; 1 or 0 for a single server.",
            ("upstream",),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._retries = Counter(
            "fetchwise_retries", "Calls to an upstream that were retried.", ("upstream",), registry=registry
        )
        for part in PARTS:
            self._open.labels(part)
            self._retries.labels(part)
        # Show the worst worker here too.
        self._reader_up = Gauge(
            "fetchwise_reader_up",
            "Whether one of several readers answered its last ping with the expected model, 1 or 0.",
            ("server",),
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._reader_calls = Counter(
            "fetchwise_reader_calls", "Calls to each reader, by result.", ("server", "result"), registry=registry
        )
        self._reader_seconds = Histogram(
            "fetchwise_reader_call_duration_seconds",
            "Time of a call to each reader, whether or not it failed.",
            ("server",),
            buckets=SECONDS,
            registry=registry,
        )
        self._calls_of, self._seconds_of = cache(self._reader_calls.labels), cache(self._reader_seconds.labels)
        self.spans_dropped = Counter(
            "fetchwise_spans_dropped", "Spans that the trace collector did not accept.", registry=registry
        )

    def denied(self, why: Denial) -> None:
        """Count a request that was refused because of its key."""
        self._denied.labels(why.value).inc()

    def upstream_error(self, upstream: str, kind: str) -> None:
        """Count a failed call, whether or not the question could still be answered."""
        self._errors.labels(upstream, kind).inc()

    def pinged(self, parts: Mapping[str, Part]) -> None:
        """Set which upstreams answered their ping."""
        for name, part in parts.items():
            self._up.labels(name).set(part.up)

    def breaker_open(self, upstream: str, share: float) -> None:
        """Set the share of open breakers."""
        self._open.labels(upstream).set(share)

    def retried(self, upstream: str) -> None:
        """Count a retry."""
        self._retries.labels(upstream).inc()

    def reader_pinged(self, server: str, up: bool) -> None:  # noqa: FBT001 - a callback
        """Set whether one of several readers answered its ping."""
        self._reader_up.labels(server).set(up)

    def reader_called(self, server: str, result: str, seconds: float) -> None:
        """Count a call to a reader as `ok` or by the kind of its failure."""
        self._calls_of(server, result).inc()
        self._seconds_of(server).observe(seconds)


class LoopLag:
    """Measures the event loop's lag with a task that is due every `LAG_EVERY_S`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = Histogram(
            "fetchwise_event_loop_lag_seconds",
            "How late the event loop runs a task that is due.",
            buckets=_LAGS,
            registry=registry,
        )
        self._due: float | None = None

    async def measure(self) -> None:
        """Record how much later than `LAG_EVERY_S` after the last call this one is."""
        now = time.monotonic()
        if self._due is not None:
            self._lag.observe(max(0.0, now - self._due))
        self._due = now + LAG_EVERY_S


@dataclass(frozen=True, eq=False, kw_only=True)
class Gauges(Collector):
    """Gauges of the latest snapshot: the calibrator, whether gating pays, and drift. Unknown values are absent."""

    snapshot: Callable[[], Snapshot]
    version: str
    keys: Callable[[], str]

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The families without a sample, so that registering computes nothing."""
        yield from _families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The values of the latest snapshot."""
        families = _families()
        build, keys, ready, calibrator, fallback, bypass, skip, even, ratio, *others = families
        index, limit, accuracy, evidence, revoked = others
        snapshot = self.snapshot()
        build.add_metric((self.version,), 1)
        keys.add_metric((self.keys(),), 1)
        ready.add_metric((), snapshot.ready(time.monotonic()))
        status, economics = snapshot.calibrator, snapshot.economics
        # A calibrator that does not match is shown as `none`, whatever is in the folder.
        version = status.version if status.matches else None
        state = "revoked" if status.revoked else "certified" if status.certified else "uncertified"
        calibrator.add_metric((version or "none", state), 1)
        fallback.add_metric((f"k{status.fallback_k}",), 1)
        bypass.add_metric((), snapshot.bypass.on)
        if economics is not None:
            _add(skip, (), economics.break_even.skip_rate.value)
            for cost, view in economics.break_even.costs.items():
                for reference, comparison in view.against.items() if view else ():
                    _add(even, (cost, reference), comparison.break_even_skip.value)
                    _add(ratio, (cost, reference), comparison.gate_cost_ratio.value)
        for signal, stability in snapshot.drift.signals.items():
            index.add_metric((signal,), stability.index)
            limit.add_metric((signal,), stability.limit)
        _add(accuracy, (), snapshot.drift.accuracy)
        _add(evidence, (), snapshot.evidence)
        revoked.add_metric((), status.revoked)
        yield from families


def _families() -> tuple[GaugeMetricFamily, ...]:
    return (
        GaugeMetricFamily("fetchwise_build_info", "1 for the running version.", labels=("version",)),
        GaugeMetricFamily(
            "fetchwise_keys_info", "1 for the revision of the keys in use; `none` without keys.", labels=("revision",)
        ),
        GaugeMetricFamily("fetchwise_ready", "Whether questions can be answered, as `/readyz` says, 1 or 0."),
        GaugeMetricFamily(
            "fetchwise_calibrator_info",
            "1 for the served calibrator; the version is `none` if none matches the running system. `status` is "
            "certified, uncertified or revoked.",
            labels=("version", "status"),
        ),
        GaugeMetricFamily(
            "fetchwise_fallback_info", "1 for the k that would be read without the gate.", labels=("reference",)
        ),
        GaugeMetricFamily(
            "fetchwise_bypass_active", "1 while most questions bypass the gate, which costs more than it saves."
        ),
        GaugeMetricFamily("fetchwise_skip_ratio", "Share of gated questions in the window that read no passage."),
        GaugeMetricFamily(
            "fetchwise_break_even_skip_ratio",
            "Skip ratio above which `graded` or `binary` is cheaper than always reading the reference; above 1: never.",
            labels=("cost", "reference"),
        ),
        GaugeMetricFamily(
            "fetchwise_gate_cost_ratio",
            "Cost of gating over the cost of always reading the reference k; below 1, gating saves.",
            labels=("cost", "reference"),
        ),
        GaugeMetricFamily(
            "fetchwise_drift_psi",
            "Population stability index of a kind of evidence: the last 2,000 questions compared with the train split.",
            labels=("signal",),
        ),
        GaugeMetricFamily(
            "fetchwise_drift_psi_limit",
            "The index above which this evidence has drifted; it falls as the number of questions grows.",
            labels=("signal",),
        ),
        GaugeMetricFamily(
            "fetchwise_estimated_accuracy",
            "Mean confidence of the last 2,000 answers: an estimate of their accuracy while confidences are right.",
        ),
        GaugeMetricFamily(
            "fetchwise_drift_evidence",
            "Evidence from feedback that the calibrator no longer holds; drift is detected at 1.",
        ),
        GaugeMetricFamily("fetchwise_calibrator_revoked", "Whether the served calibrator is revoked, 1 or 0."),
    )


def _add(family: GaugeMetricFamily, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
