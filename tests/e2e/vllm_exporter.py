"""vLLM's metrics without vLLM: the names, types and labels of vLLM 0.32 that the dashboard uses, with made-up values.

tests/vllm checks that a real vLLM has these names.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

GAUGES = {"num_requests_running": 2.0, "num_requests_waiting": 1.0, "kv_cache_usage_perc": 0.25}
# The growth of each from one scrape to the next.
COUNTERS = {
    "prefix_cache_queries": 100.0,
    "prefix_cache_hits": 60.0,
    "prompt_tokens": 100.0,
    "generation_tokens": 10.0,
    "num_preemptions": 1.0,
}
HISTOGRAMS = ("request_queue_time_seconds", "time_to_first_token_seconds")
_LABELS, _OF = ("model_name", "engine"), ("made-up", "0")


class VllmMetrics(Collector):
    """Grows by the same amount at every scrape."""

    def __init__(self) -> None:
        self._scrapes = 0

    def collect(self) -> Iterator[Metric]:
        """The values of this scrape."""
        self._scrapes += 1
        for name, value in GAUGES.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", name, labels=_LABELS)
            gauge.add_metric(_OF, value)
            yield gauge
        for name, step in COUNTERS.items():
            counter = CounterMetricFamily(f"vllm:{name}", name, labels=_LABELS)
            counter.add_metric(_OF, step * self._scrapes)
            yield counter
        for name in HISTOGRAMS:
            histogram = HistogramMetricFamily(f"vllm:{name}", name, labels=_LABELS)
            seen = float(self._scrapes)
            histogram.add_metric(_OF, [("0.1", seen), ("1.0", 2 * seen), ("+Inf", 2 * seen)], seen)
            yield histogram


@contextmanager
def vllm_exporter() -> Iterator[str]:
    """Serve the metrics on a free port; yields the address."""
    registry = CollectorRegistry()
    registry.register(VllmMetrics())
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
