"""What operators scrape beside finished decisions: load, parts, the event loop's lag, and what stands at the scrape."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, values
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from app.errors import ConfigurationError, Denial
from app.telemetry.snapshot import Load, Part, Snapshot

# prometheus_client reads it once, when it is imported, and keeps every value in that directory from then on.
SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PARTS = ("reader", "embedder", "vectors")
_FAILURES = ("timeout", "deadline", "unavailable", "bad_reply", "error")
_LOAD = ("fetchwise_in_flight", "fetchwise_shed_total")
# Where workers keep these two, as prometheus_client names its files.
_LOAD_FILES = ("gauge_livesum_*.db", "counter_*.db")
LAG_EVERY_S = 0.25
# Below a millisecond nobody notices, above a second everybody does.
_LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


def registries(shared: Path | None) -> tuple[CollectorRegistry, CollectorRegistry]:
    """A registry to count in, and one to scrape: the same, unless `shared` holds the counts of several workers.

    Then a scrape of any worker adds all of them up, and leaves out what only one process could say of itself.
    """
    counted = CollectorRegistry()
    if shared is None:
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=counted)
        return counted, counted
    if values.ValueClass is values.MutexValue:
        raise ConfigurationError(f"workers share their counts only if {SHARED_VARIABLE} was set before they started")
    scraped = CollectorRegistry()
    PlatformCollector(registry=scraped)
    MultiProcessCollector(scraped, path=str(shared))  # type: ignore[no-untyped-call]
    return counted, scraped


def load(counted: CollectorRegistry, shared: Path | None) -> Load:
    """Questions in flight and refused, of all workers. Blocks: the counts of several workers are in files."""
    families: Iterable[Metric]
    if shared is None:
        families = counted.restricted_registry(_LOAD).collect()
    else:
        files = [str(file) for pattern in _LOAD_FILES for file in shared.glob(pattern)]
        families = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
    values = {sample.name: int(sample.value) for family in families for sample in family.samples}
    in_flight, shed = (values.get(name, 0) for name in _LOAD)
    return Load(in_flight, shed)


class TrafficMetrics:
    """What is not a finished decision: work under way, work refused, parts that failed, were tried again or answer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.in_flight = Gauge(
            "fetchwise_in_flight", "Questions being worked on.", registry=registry, multiprocess_mode="livesum"
        )
        self.queued = Gauge(
            "fetchwise_queued", "Questions waiting in line.", registry=registry, multiprocess_mode="livesum"
        )
        self.waited = Histogram(
            "fetchwise_queue_wait_seconds",
            "Time in line of questions that had to wait, whether or not they were served in the end.",
            buckets=SECONDS,
            registry=registry,
        )
        self.shed = Counter("fetchwise_shed", "Questions refused because of load.", registry=registry)
        self._errors = Counter(
            "fetchwise_upstream_errors",
            "Failures of a part behind the gateway.",
            ("upstream", "kind"),
            registry=registry,
        )
        for upstream in PARTS:
            for kind in _FAILURES:
                self._errors.labels(upstream, kind)
        self._denied = Counter(
            "fetchwise_denied", "Requests refused for their key, or for want of one.", ("reason",), registry=registry
        )
        for why in Denial:
            self._denied.labels(why.value)
        # Of several workers, the one that cannot reach a part is the one to hear of.
        self._up = Gauge(
            "fetchwise_upstream_up",
            "Whether a part behind the gateway answered the last ping, 1 or 0.",
            ("upstream",),
            registry=registry,
            multiprocess_mode="livemin",
        )
        # Of several workers, the one that has given a part up is the one to hear of.
        self._open = Gauge(
            "fetchwise_breaker_open",
            "Share of an upstream's servers whose circuit breaker is open; 1 or 0 for a single server.",
            ("upstream",),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._retries = Counter(
            "fetchwise_retries", "Calls to a part that were tried again.", ("upstream",), registry=registry
        )
        for part in PARTS:
            self._open.labels(part)
            self._retries.labels(part)

    def denied(self, why: Denial) -> None:
        """A request was refused because of its key."""
        self._denied.labels(why.value).inc()

    def upstream_error(self, upstream: str, kind: str) -> None:
        """A part failed, whether or not the question could still be answered."""
        self._errors.labels(upstream, kind).inc()

    def pinged(self, parts: Mapping[str, Part]) -> None:
        """Every part was pinged."""
        for name, part in parts.items():
            self._up.labels(name).set(part.up)

    def breaker_open(self, upstream: str, share: float) -> None:
        """A breaker opened or closed."""
        self._open.labels(upstream).set(share)

    def retried(self, upstream: str) -> None:
        """A call was tried again."""
        self._retries.labels(upstream).inc()


class LoopLag:
    """Measures how late the event loop runs what is due, by work that is due every `LAG_EVERY_S`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = Histogram(
            "fetchwise_event_loop_lag_seconds",
            "How late the event loop came back to something that was due.",
            buckets=_LAGS,
            registry=registry,
        )
        self._due: float | None = None

    async def measure(self) -> None:
        """Note how much later than `LAG_EVERY_S` after the last call this one comes."""
        now = time.monotonic()
        if self._due is not None:
            self._lag.observe(max(0.0, now - self._due))
        self._due = now + LAG_EVERY_S


@dataclass(frozen=True, eq=False, kw_only=True)
class Gauges(Collector):
    """Gauges of the latest snapshot: the calibrator, whether gating pays, and drift. What is unknown is absent."""

    snapshot: Callable[[], Snapshot]

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The families without a sample, so that registering computes nothing."""
        yield from _families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The values of the latest snapshot."""
        calibrator, fallback, bypass, skip, even, ratio, index, limit, accuracy, evidence, revoked = families = (
            _families()
        )
        snapshot = self.snapshot()
        status, economics = snapshot.calibrator, snapshot.economics
        # A calibrator that decides nothing is shown as none, whatever lies in the folder.
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
        GaugeMetricFamily(
            "fetchwise_calibrator_info",
            "1 for the calibrator in force; the version is `none` where none matches what runs. `status` is "
            "certified, uncertified or revoked.",
            labels=("version", "status"),
        ),
        GaugeMetricFamily("fetchwise_fallback_info", "1 for what would be read without a gate.", labels=("reference",)),
        GaugeMetricFamily(
            "fetchwise_bypass_active", "1 while most questions bypass the gate, which costs more than it saves."
        ),
        GaugeMetricFamily("fetchwise_skip_ratio", "Share of gated questions in the window that read no passage."),
        GaugeMetricFamily(
            "fetchwise_break_even_skip_ratio",
            "Skip ratio from which gating is cheaper than always reading the reference; above 1 it never is.",
            labels=("cost", "reference"),
        ),
        GaugeMetricFamily(
            "fetchwise_gate_cost_ratio",
            "Cost of gating over that of always reading the reference; below 1 is a saving.",
            labels=("cost", "reference"),
        ),
        GaugeMetricFamily(
            "fetchwise_drift_psi",
            "Population stability index of a signal: the last 2,000 questions against those fitted on.",
            labels=("signal",),
        ),
        GaugeMetricFamily(
            "fetchwise_drift_psi_limit",
            "The index above which a signal differs by more than chance and habit; it falls as questions come in.",
            labels=("signal",),
        ),
        GaugeMetricFamily(
            "fetchwise_estimated_accuracy",
            "Mean confidence of the last 2,000 answers given: their accuracy, for as long as confidences are true.",
        ),
        GaugeMetricFamily(
            "fetchwise_drift_evidence",
            "How much the judgements asked for speak against the confidences shown; from 1 on, drift is shown.",
        ),
        GaugeMetricFamily("fetchwise_calibrator_revoked", "Whether the calibrator in force is revoked, 1 or 0."),
    )


def _add(family: GaugeMetricFamily, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
