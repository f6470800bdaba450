"""Prometheus as an observer of finished decisions: labels from closed sets, base units, one registry passed in.

Counters start at zero with every label that can come, because a rate over a counter that appears late misses its first
step.
"""

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram

from app.decision.policy import Action, Reason
from app.decision.record import DecisionRecord, Usage
from app.observers.gauges import SECONDS, TrafficMetrics

_TENTHS = tuple(edge / 10 for edge in range(1, 11))
STAGES = ("probe", "embed", "search", "read")
KS = ("0", "1", "5")
_LABELS = {int(k): k for k in KS}
# Why each number of passages can have been read, where the answer was given.
_REASONS = {
    0: (Reason.CONFIDENT, Reason.RETRIEVAL_FORBIDDEN, Reason.RETRIEVAL_FAILED, Reason.NO_PASSAGES, Reason.EXPLORED),
    1: (
        Reason.BORDERLINE,
        Reason.RETRIEVAL_REQUIRED,
        Reason.NOT_CERTIFIED,
        Reason.BYPASSED,
        Reason.EXPLORED,
    ),
    5: (
        Reason.UNCERTAIN,
        Reason.RETRIEVAL_REQUIRED,
        Reason.NO_SIGNAL,
        Reason.NOT_CALIBRATED,
        Reason.NOT_CERTIFIED,
        Reason.BYPASSED,
        Reason.EXPLORED,
    ),
}
_WITHHELD = (
    *((k, Reason.LOW_CONFIDENCE) for k in (0, 1, 5)),
    (0, Reason.RETRIEVAL_FAILED),
    (0, Reason.NO_PASSAGES),
)


class PrometheusObserver:
    """Counts what was decided, how long it took, and what it cost."""

    def __init__(self, registry: CollectorRegistry, traffic: TrafficMetrics) -> None:
        self._traffic = traffic
        self._requests = Counter(
            "fetchwise_requests", "Questions answered or withheld.", ("action", "k", "reason"), registry=registry
        )
        self._duration = Histogram(
            "fetchwise_request_duration_seconds",
            "From the question to its receipt.",
            ("action", "k"),
            buckets=SECONDS,
            registry=registry,
        )
        self._stage = Histogram(
            "fetchwise_stage_duration_seconds",
            "One stage of a question, by the number of passages read in the end.",
            ("stage", "k"),
            buckets=SECONDS,
            registry=registry,
        )
        self._tokens = Counter(
            "fetchwise_tokens",
            "Tokens of the probe and of reading.",
            ("stage", "kind", "k"),
            registry=registry,
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
        self._gated = Counter("fetchwise_gated", "Questions whose k the gate chose.", ("k",), registry=registry)
        # Which child a set of labels means is looked up for every question: prometheus_client takes a lock for it.
        self._requests_of, self._duration_of = cache(self._requests.labels), cache(self._duration.labels)
        self._stage_of, self._tokens_of = cache(self._stage.labels), cache(self._tokens.labels)
        self._gated_of = cache(self._gated.labels)
        self._start_at_zero()

    def observe(self, record: DecisionRecord) -> None:
        """Count one finished decision."""
        k = _LABELS[record.k]
        self._requests_of(record.action.value, k, record.reason.value).inc()
        self._duration_of(record.action.value, k).observe(record.timings.total / 1000)
        for stage in STAGES:
            ms = getattr(record.timings, stage)
            if ms is not None:
                self._stage_of(stage, k).observe(ms / 1000)
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
        if record.gated:
            self._gated_of(k).inc()

    def _start_at_zero(self) -> None:
        for k, reasons in _REASONS.items():
            for reason in reasons:
                self._requests.labels(f"k{k}", str(k), reason.value)
        for k, reason in _WITHHELD:
            self._requests.labels(Action.ABSTAIN.value, str(k), reason.value)
        for k_label in KS:
            self._gated.labels(k_label)
            for action in (f"k{k_label}", Action.ABSTAIN.value):
                self._duration.labels(action, k_label)
            for stage in STAGES if k_label != "0" else STAGES[:-1]:
                self._stage.labels(stage, k_label)
            for kind in ("prompt", "completion"):
                self._tokens.labels("probe", kind, k_label)
                if k_label != "0":
                    self._tokens.labels("read", kind, k_label)
                    self._passages.labels(k_label)
        for use in ("used", "wasted"):
            self._calls.labels(use)

    def _count_tokens(self, stage: str, k: str, usage: Usage | None) -> None:
        if usage is not None:
            self._tokens_of(stage, "prompt", k).inc(usage.prompt_tokens)
            self._tokens_of(stage, "completion", k).inc(usage.completion_tokens)
