"""Prometheus as an observer of finished decisions: labels from closed sets, base units, one registry passed in.

Counters start at zero for every possible label value: a rate over a counter that appears late would miss its first
increment.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Histogram

from app.core.available import Usage
from app.core.policy import ABSTAIN, Reason, action_of
from app.core.record import DecisionRecord
from app.telemetry.gauges import TrafficMetrics
from app.telemetry.requests import SECONDS

_TENTHS = tuple(edge / 10 for edge in range(1, 11))
STAGES = ("rewrite", "probe", "embed", "search", "read", "write")
# The possible reasons for an answer, whatever was read; from no passages; and by the fixed policies and the fallback.
_ANY = (Reason.CONFIDENT, Reason.UNCERTAIN, Reason.EXPLORED, Reason.OUT_OF_SCOPE)
_NONE = (Reason.RETRIEVAL_FORBIDDEN, Reason.RETRIEVAL_FAILED, Reason.NO_PASSAGES)
_FEW = (Reason.BORDERLINE, Reason.NOT_CERTIFIED, Reason.BYPASSED)
_MANY = (Reason.NO_SIGNAL, Reason.NOT_CALIBRATED, Reason.NOT_CERTIFIED, Reason.BYPASSED)


class PrometheusObserver:
    """Counts decisions, their durations and their costs."""

    def __init__(self, registry: CollectorRegistry, traffic: TrafficMetrics, ks: Sequence[int]) -> None:
        self._traffic = traffic
        self._requests = Counter(
            "fetchwise_requests", "Questions answered or withheld.", ("action", "k", "reason"), registry=registry
        )
        self._duration = Histogram(
            "fetchwise_request_duration_seconds",
            "Time from the question to its receipt.",
            ("action", "k"),
            buckets=SECONDS,
            registry=registry,
        )
        self._stage = Histogram(
            "fetchwise_stage_duration_seconds",
            "Time of one stage of a question, by the number of passages that the answer read.",
            ("stage", "k"),
            buckets=SECONDS,
            registry=registry,
        )
        self._tokens = Counter(
            "fetchwise_tokens",
            "Tokens by stage: rewrite, probe, read and write.",
            ("stage", "kind", "k"),
            registry=registry,
        )
        self._passages = Counter(
            "fetchwise_passages_read",
            "Passages in prompts, each as often as it was read.",
            ("k",),
            registry=registry,
        )
        self._truncated = Counter(
            "fetchwise_truncated", "Answers that the limit on their length cut off.", ("k",), registry=registry
        )
        self._calls = Counter(
            "fetchwise_searches", "Searches, by whether their passages were read.", ("use",), registry=registry
        )
        self._p = Histogram(
            "fetchwise_p_closed_book",
            "Calibrated probability that the closed-book answer is right.",
            buckets=_TENTHS,
            registry=registry,
        )
        self._gated = Counter(
            "fetchwise_gated", "Questions whose k the gate chose, by the largest k read.", ("k",), registry=registry
        )
        # Cached, because prometheus_client takes a lock for every lookup of a label set.
        self._requests_of, self._duration_of = cache(self._requests.labels), cache(self._duration.labels)
        self._stage_of, self._tokens_of = cache(self._stage.labels), cache(self._tokens.labels)
        self._gated_of = cache(self._gated.labels)
        self._start_at_zero(ks)

    def observe(self, record: DecisionRecord) -> None:
        """Count one finished decision."""
        k = str(record.reply.k)
        self._requests_of(record.action, k, record.reply.reason.value).inc()
        self._duration_of(record.action, k).observe(record.timings.total / 1000)
        for stage in STAGES:
            ms = getattr(record.timings, stage)
            if ms is not None:
                self._stage_of(stage, k).observe(ms / 1000)
        self._count_tokens("probe", k, record.probe_usage)
        self._count_tokens("read", k, record.read_usage)
        self._count_tokens("write", k, record.write_usage)
        self._count_tokens("rewrite", k, record.rewrite_usage)
        if record.passages_read:
            self._passages.labels(k).inc(record.passages_read)
        if record.reply.truncated:
            self._truncated.labels(k).inc()
        if record.searches:
            self._calls.labels("read" if record.passages_read else "unread").inc(record.searches)
        if record.failure is not None:
            self._traffic.upstream_error(*record.failure)
        if record.p_closed_book is not None:
            self._p.observe(record.p_closed_book)
        if record.gated:
            # Not the k of the answer: the ladder may read passages and still give the closed-book answer.
            self._gated_of(str(max(record.available.answers, default=0))).inc()

    def _start_at_zero(self, ks: Sequence[int]) -> None:
        given: dict[int, tuple[Reason, ...]] = dict.fromkeys(ks[1:], (*_ANY, Reason.RETRIEVAL_REQUIRED))
        given |= {ks[0]: _ANY + _NONE, ks[1]: given[ks[1]] + _FEW}
        given[ks[-1]] += _MANY
        for k in ks:
            label = str(k)
            for reason in given[k]:
                self._requests.labels(action_of(k), label, reason.value)
            self._requests.labels(ABSTAIN, label, Reason.LOW_CONFIDENCE.value)
            self._gated.labels(label)
            for action in (action_of(k), ABSTAIN):
                self._duration.labels(action, label)
            for stage in STAGES:
                self._stage.labels(stage, label)
            for stage, kind in product(("rewrite", "probe", "read", "write"), ("prompt", "completion")):
                self._tokens.labels(stage, kind, label)
            self._passages.labels(label)
            self._truncated.labels(label)
        for reason in (Reason.RETRIEVAL_FAILED, Reason.NO_PASSAGES, Reason.OUT_OF_SCOPE):
            self._requests.labels(ABSTAIN, "0", reason.value)
        for use in ("read", "unread"):
            self._calls.labels(use)

    def _count_tokens(self, stage: str, k: str, usage: Usage | None) -> None:
        if usage is not None:
            self._tokens_of(stage, "prompt", k).inc(usage.prompt_tokens)
            self._tokens_of(stage, "completion", k).inc(usage.completion_tokens)
