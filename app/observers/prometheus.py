"""Prometheus as an observer of finished decisions: labels from closed sets, base units, one registry passed in."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app.decision.record import DecisionRecord, Usage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TENTHS = tuple(edge / 10 for edge in range(1, 11))
STAGES = ("probe", "embed", "search", "read")


class PrometheusObserver:
    """Counts what was decided, how long it took, and what it cost."""

    def __init__(self, registry: CollectorRegistry, traffic: "TrafficMetrics") -> None:
        self._traffic = traffic
        self._requests = Counter(
            "fetchwise_requests", "Questions answered or withheld.", ("action", "k", "reason"), registry=registry
        )
        self._duration = Histogram(
            "fetchwise_request_duration_seconds",
            "From the question to its receipt.",
            ("action", "k"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._stage = Histogram(
            "fetchwise_stage_duration_seconds",
            "One stage of a question, by the number of passages read in the end.",
            ("stage", "k"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._tokens = Counter(
            "fetchwise_tokens", "Tokens of the probe and of reading.", ("stage", "kind", "k"), registry=registry
        )
        self._passages = Counter("fetchwise_passages", "Passages given to the reader.", ("k",), registry=registry)
        self._calls = Counter(
            "fetchwise_retrieval_calls", "Searches, by whether their passages were read.", ("use",), registry=registry
        )
        self._p = Histogram(
            "fetchwise_p_closed_book",
            "Calibrated probability that the closed-book answer is right.",
            buckets=_TENTHS,
            registry=registry,
        )

    def observe(self, record: DecisionRecord) -> None:
        """Count one finished decision."""
        k = str(record.k)
        self._requests.labels(record.action.value, k, record.reason.value).inc()
        self._duration.labels(record.action.value, k).observe(record.timings.total / 1000)
        for stage in STAGES:
            ms = getattr(record.timings, stage)
            if ms is not None:
                self._stage.labels(stage, k).observe(ms / 1000)
        self._count_tokens("probe", k, record.probe_usage)
        self._count_tokens("read", k, record.read_usage)
        if record.citations:
            self._passages.labels(k).inc(len(record.citations))
        if record.retrieval_calls:
            self._calls.labels("used" if record.citations else "wasted").inc(record.retrieval_calls)
        if record.failure is not None:
            self._traffic.upstream_error(*record.failure)
        if record.p_closed_book is not None:
            self._p.observe(record.p_closed_book)

    def _count_tokens(self, stage: str, k: str, usage: Usage | None) -> None:
        if usage is not None:
            self._tokens.labels(stage, "prompt", k).inc(usage.prompt_tokens)
            self._tokens.labels(stage, "completion", k).inc(usage.completion_tokens)


class TrafficMetrics:
    """What is not a finished decision: work under way, work refused, parts that failed, and the calibrator."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._in_flight = Gauge("fetchwise_in_flight", "Questions being worked on.", registry=registry)
        self._shed = Counter("fetchwise_shed", "Questions refused because of load.", registry=registry)
        self._errors = Counter(
            "fetchwise_upstream_errors",
            "Failures of a part behind the gateway.",
            ("upstream", "kind"),
            registry=registry,
        )
        self._calibrator = Gauge(
            "fetchwise_calibrator_info",
            "1 for the calibrator in force; the version is `none` where none matches what runs.",
            ("version", "certified"),
            registry=registry,
        )

    def began(self) -> None:
        """A question took a permit."""
        self._in_flight.inc()

    def ended(self) -> None:
        """It gave the permit back."""
        self._in_flight.dec()

    def shed(self) -> None:
        """A question was refused."""
        self._shed.inc()

    def upstream_error(self, upstream: str, kind: str) -> None:
        """A part failed, whether or not the question could still be answered."""
        self._errors.labels(upstream, kind).inc()

    def calibrator(self, version: str | None, *, certified: bool) -> None:
        """Say which calibrator decides from now on."""
        self._calibrator.clear()
        self._calibrator.labels(version or "none", str(certified).lower()).set(1)
