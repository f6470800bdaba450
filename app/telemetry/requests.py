"""Rate, errors and duration of HTTP requests, by route."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

# To the longest time that a question may take by default.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
OTHER = "other"
_FAILED = 400
# They exist from the start: a rate over a counter that appears late would miss its first increment.
_BUG = 500
_CODES = (200, 429, 503)


class HttpMetrics:
    """Counts requests. Children of labels are looked up once for each route and code, because that takes a lock."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "fetchwise_http_requests",
            "HTTP requests by route and status. The route `other` is any path without one; 499 is a client that left. "
            "A stream that fails after it began counts with the status of its error.",
            ("route", "code"),
            registry=registry,
        )
        self._duration = Histogram(
            "fetchwise_http_request_duration_seconds",
            "Time from a request to the end of its reply; without errors.",
            ("route",),
            buckets=SECONDS,
            registry=registry,
        )
        self._first_token = Histogram(
            "fetchwise_time_to_first_token_seconds",
            "Time from a POST to the first token of its answer, or to the whole reply if it is not streamed; without "
            "errors.",
            ("route",),
            buckets=SECONDS,
            registry=registry,
        )
        self._counts: dict[tuple[str, int], Counter] = {}
        self._times: dict[str, tuple[Histogram, Histogram | None]] = {}

    def start_at_zero(self, routes: Iterable[str], posted: Iterable[str]) -> None:
        """Create what these routes count in; `posted` are those that do the work."""
        for route in (*routes, OTHER):
            self._times[route] = self._duration.labels(route), None
            self._count(route, _BUG)
        for route in posted:
            self._times[route] = self._duration.labels(route), self._first_token.labels(route)
            for code in _CODES:
                self._count(route, code)
        # Connections that the server refuses.
        self._count(OTHER, 503)

    def knows(self, route: str) -> bool:
        """Whether it is the path of a route."""
        return route in self._times

    def observe(
        self, route: str, code: int, seconds: float, first_token_s: float | None = None, trace_id: str = ""
    ) -> None:
        """Count a request that has ended. A trace id becomes the exemplar of its bucket."""
        (self._counts.get((route, code)) or self._count(route, code)).inc()
        if code >= _FAILED:
            return
        exemplar = {"trace_id": trace_id} if trace_id else None
        duration, first_token = self._times[route]
        duration.observe(seconds, exemplar)
        if first_token is not None:
            first_token.observe(seconds if first_token_s is None else first_token_s, exemplar)

    def refused(self, path: str, code: int) -> None:
        """Count a request that the server refused before the application saw it."""
        self._count(path if self.knows(path) else OTHER, code).inc()

    def _count(self, route: str, code: int) -> Counter:
        return self._counts.setdefault((route, code), self._requests.labels(route, str(code)))
