"""Where metrics are registered and where they are scraped from: one place in one process, files that workers share."""

from pathlib import Path

from prometheus_client import CollectorRegistry, values
from prometheus_client.gc_collector import GCCollector
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from app.errors import ConfigurationError

# prometheus_client reads it once, when it is imported, and keeps every value in that directory from then on.
SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


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
