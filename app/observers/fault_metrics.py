"""What becomes of remote parts that fail, as metrics: breakers that are open, and calls that were tried again."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from app.observers.prometheus import PARTS


class FaultMetrics:
    """Counts in a registry; every part starts at zero."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Of several workers, the one that has given a part up is the one to hear of.
        self._open = Gauge(
            "fetchwise_breaker_open",
            "Share of a part's servers that are left alone because they failed: 1 or 0 where there is one.",
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

    def open(self, upstream: str, share: float) -> None:
        """A breaker opened or closed."""
        self._open.labels(upstream).set(share)

    def retried(self, upstream: str) -> None:
        """A call was tried again."""
        self._retries.labels(upstream).inc()
