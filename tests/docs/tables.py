"""The tables in docs/ that are generated from the code: `python -m tests.docs.tables` writes them into their pages."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from prometheus_client import CollectorRegistry

from app.api.http.errors import STATUSES
from app.core.policy import DEFAULT_KS
from app.learning.log import LogMetrics
from app.telemetry.decisions import PrometheusObserver
from app.telemetry.gauges import Gauges, LoopLag, TrafficMetrics
from app.wiring.periodic import Periodic
from tests.docs.settings_table import settings_table

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, slots=True)
class Exported:
    """A registered metric."""

    labels: tuple[str, ...]
    help: str


def metrics() -> dict[str, Exported]:
    """Every metric of the gateway by name, in order of registration."""
    registry = CollectorRegistry()
    PrometheusObserver(registry, TrafficMetrics(registry), DEFAULT_KS)
    LogMetrics(registry, DEFAULT_KS)
    LoopLag(registry)
    Periodic(registry)
    # Describing a metric computes nothing, so this is never called.
    registry.register(Gauges(snapshot=_never, version="", keys=_never))
    found = {}
    for collector in registry._collector_to_names:
        for family in collector.describe() if hasattr(collector, "describe") else collector.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = tuple(getattr(family, "_labelnames", getattr(collector, "_labelnames", ())))
            found[name] = Exported(labels, family.documentation)
    return found


def _never() -> NoReturn:
    raise AssertionError("describing a metric must not compute it")


def metrics_table() -> str:
    """One row per metric: its name, its labels, and its help."""
    rows = (
        f"| `{name}` | {', '.join(f'`{label}`' for label in metric.labels) or '–'} | {metric.help} |"
        for name, metric in metrics().items()
    )
    return "\n".join(["| metric | labels | meaning |", "|---|---|---|", *rows])


def errors_table() -> str:
    """One row per error type, ordered by status; the docstring of the exception gives the meaning."""
    rows = (
        f"| {status} | `{kind}` | {(error.__doc__ or '').partition(chr(10))[0]} |"
        for error, status, kind in sorted(STATUSES, key=lambda row: row[1])
    )
    return "\n".join(["| status | type | meaning |", "|---|---|---|", *rows])


@dataclass(frozen=True, slots=True)
class Table:
    """A table between two markers in a page."""

    page: str
    name: str
    made: Callable[[], str]

    def split(self) -> tuple[str, str, str]:
        """The page before the table, the table, and the page after it."""
        before, begin, rest = (DOCS / self.page).read_text().partition(f"<!-- {self.name} -->\n")
        table, end, after = rest.partition(f"<!-- /{self.name} -->\n")
        assert begin, f"{self.page} has no marker {self.name}"
        assert end, f"{self.page} has no end marker for {self.name}"
        return before + begin, table.strip(), end + after

    def write(self) -> None:
        """Write the generated table into the page."""
        before, _, after = self.split()
        (DOCS / self.page).write_text(f"{before}{self.made()}\n{after}")


TABLES = (
    Table("operate/settings.md", "settings", settings_table),
    Table("operate/metrics.md", "metrics", metrics_table),
    Table("ask.md", "errors", errors_table),
)

if __name__ == "__main__":
    for table in TABLES:
        table.write()
