"""Resources of a process, from Linux, and counts of the gateway: one sample per second."""

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

MB = 1024 * 1024
_LAG = "fetchwise_event_loop_lag_seconds"


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample; `lags` counts the event loop's lags so far, by upper edge in seconds."""

    at: float
    requests: int
    rss: int
    fds: int
    threads: int
    in_flight: float
    lags: dict[float, float]


def used(pid: int) -> tuple[int, int, int]:
    """Resident bytes, open file descriptors and threads."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    fds = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return int(status["VmRSS"].split()[0]) * 1024, fds, int(status["Threads"])


def open_files(pid: int) -> dict[str, int]:
    """The targets of its file descriptors, to find a leak: sockets and pipes by kind, files by name."""
    found: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # A file may be closed after it was listed.
        with suppress(FileNotFoundError):
            found[str(link.readlink()).partition(":[")[0]] += 1
    return dict(found)


def counted(exposition: str) -> tuple[float, dict[float, float]]:
    """Questions in flight, and the event loop's lags, from a scrape."""
    in_flight, lags = math.nan, dict[float, float]()
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == "fetchwise_in_flight":
                in_flight = sample.value
            elif sample.name == f"{_LAG}_bucket":
                lags[float(sample.labels["le"])] = sample.value
    return in_flight, lags


def quantile(lags: dict[float, float], share: float, before: dict[float, float] | None = None) -> float:
    """The upper edge below which this share of the lags since `before` lies; NaN if there were none."""
    since = {edge: count - (before or {}).get(edge, 0.0) for edge, count in sorted(lags.items())}
    total = since.get(math.inf, 0.0)
    if total <= 0:
        return math.nan
    return next(edge for edge, count in since.items() if count >= share * total)
