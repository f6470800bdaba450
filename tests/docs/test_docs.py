"""What is written down agrees with the code: settings, errors and metrics."""

import inspect
import re
from pathlib import Path
from typing import NoReturn

import pytest
from prometheus_client import CollectorRegistry

from app import errors
from app.api.http.errors import STATUSES
from app.core.policy import DEFAULT_KS
from app.errors import FetchwiseError
from app.learning.log import LogMetrics
from app.settings import Settings
from app.telemetry.decisions import PrometheusObserver
from app.telemetry.gauges import Gauges, LoopLag, TrafficMetrics
from tests.docs.settings_table import BEGIN, END, settings_table

ROOT = Path(__file__).parents[2]


def test_every_setting_is_in_the_readme() -> None:
    """The README's table is exactly what the code says; `python -m tests.docs.settings_table` prints it anew."""
    readme = (ROOT / "README.md").read_text()
    assert readme.count(BEGIN) == readme.count(END) == 1
    written = readme.partition(BEGIN)[2].partition(END)[0].strip()
    assert written == settings_table()


def test_every_setting_has_its_help() -> None:
    """Each setting says what it is for in a sentence."""
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert f"`FETCHWISE_{name.upper()}`" in settings_table()


def test_every_variable_that_the_code_names_exists() -> None:
    """A message or a page that tells the operator to set something names a setting that is there."""
    known = {f"FETCHWISE_{name.upper()}" for name in Settings.model_fields}
    # Read by the tests and the Makefile, not by the gateway.
    others = {"FETCHWISE_ALLOW_NO_VLLM", "FETCHWISE_TEST_VLLM_PYTHON"}
    for page in [*(ROOT / "app").rglob("*.py"), ROOT / "README.md"]:
        assert variables(page.read_text()) <= known | others, page
    changelog = (ROOT / "CHANGELOG.md").read_text()
    removed = variables(changelog.partition("### Removed")[2])
    assert variables(changelog) <= known | others | removed
    assert not removed & known


def variables(text: str) -> set[str]:
    """Every setting that a text names."""
    return set(re.findall(r"FETCHWISE_[A-Z][A-Z_]*[A-Z]", text))


def exceptions() -> dict[str, type[FetchwiseError]]:
    """Every exception class of the tree, by name."""
    return {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, FetchwiseError) and kind.__module__ == errors.__name__
    }


def drawn() -> dict[str, str | None]:
    """The tree of the docstring: each name with that of its parent."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in inspect.cleandoc(errors.__doc__ or "").splitlines():
        entry = re.match(r"^((?:[│ ]   )*)([├└]── )?([A-Z]\w+)(?:\s+\S.*)?$", line)
        if entry is None or not (entry[2] or entry[3] == "FetchwiseError"):
            continue
        depth = len(entry[1]) // 4 + bool(entry[2])
        path = [*path[:depth], entry[3]]
        parents[entry[3]] = path[-2] if depth else None
    return parents


def test_the_tree_of_errors_is_as_drawn() -> None:
    """Every exception is in the picture, below its own parent, and nothing else is."""
    actual = {name: None if kind is FetchwiseError else kind.__mro__[1].__name__ for name, kind in exceptions().items()}
    assert drawn() == actual


# What no request can raise: it belongs to the start, to the commands, or to the watcher of calibrators.
NEVER_IN_A_REQUEST = {
    "ArtifactError",
    "ArtifactSchemaError",
    "ArtifactChecksumError",
    "DataError",
    "StoreInUse",
    "ConfigurationError",
}


def test_every_error_of_a_request_has_its_status() -> None:
    """Each exception that a request can raise has a row of its own in the one table."""
    listed = {kind.__name__ for kind, _, _ in STATUSES}
    assert listed == exceptions().keys() - NEVER_IN_A_REQUEST - {"FetchwiseError"}


def test_the_table_of_statuses_is_most_specific_first() -> None:
    """No row is hidden behind an earlier row for its parent, and each kind of error has its own word."""
    kinds = [kind for kind, _, _ in STATUSES]
    for place, kind in enumerate(kinds):
        assert not any(issubclass(kind, earlier) for earlier in kinds[:place]), kind
    words = [word for _, _, word in STATUSES]
    assert len(set(words)) == len(words)
    assert all(400 <= status < 600 for _, status, _ in STATUSES)


METRICS = {
    "requests_total": ("action", "k", "reason"),
    "request_duration_seconds": ("action", "k"),
    "stage_duration_seconds": ("stage", "k"),
    "tokens_total": ("stage", "kind", "k"),
    "passages_total": ("k",),
    "retrieval_calls_total": ("use",),
    "p_closed_book": (),
    "upstream_errors_total": ("upstream", "kind"),
    "breaker_open": ("upstream",),
    "retries_total": ("upstream",),
    "in_flight": (),
    "queued": (),
    "queue_wait_seconds": (),
    "shed_total": (),
    "denied_total": ("why",),
    "gated_total": ("k",),
    "part_up": ("part",),
    "event_loop_lag_seconds": (),
    "calibrator_info": ("version", "certified"),
    "fallback_info": ("reference",),
    "skip_ratio": (),
    "break_even_skip_ratio": ("cost", "reference"),
    "gate_cost_ratio": ("cost", "reference"),
    "bypass": (),
    "drift_psi": ("signal",),
    "drift_psi_limit": ("signal",),
    "drift_evidence": (),
    "drift_revoked": (),
    "estimated_accuracy": (),
    "log_dropped_total": (),
    "shadow_runs_total": ("end",),
    "feedback_total": ("correct", "action"),
}


def _never() -> NoReturn:
    raise AssertionError("nobody asked for figures")


@pytest.fixture
def exported() -> dict[str, tuple[str, ...]]:
    """Every metric of the gateway with its labels, as they are registered."""
    registry = CollectorRegistry()
    PrometheusObserver(registry, TrafficMetrics(registry), DEFAULT_KS)
    LogMetrics(registry, DEFAULT_KS)
    LoopLag(registry)
    # Describing computes nothing, so there is nothing that it would have to ask.
    registry.register(Gauges(status=_never, traffic=_never, bypassed=_never, signals=_never, drift=_never))
    found = {}
    for collector in registry._collector_to_names:
        for family in collector.describe() if hasattr(collector, "describe") else collector.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = tuple(getattr(family, "_labelnames", getattr(collector, "_labelnames", ())))
            assert family.documentation.endswith("."), name
    return found


def test_the_metrics_are_those_of_the_design(exported: dict[str, tuple[str, ...]]) -> None:
    """Every metric has its name and its labels, `_total` is for counters alone, and there is no other."""
    assert exported == {f"fetchwise_{name}": labels for name, labels in METRICS.items()}


def test_every_metric_that_a_page_names_exists(exported: dict[str, tuple[str, ...]]) -> None:
    """The README, the alerts and the dashboards speak of metrics that are there."""
    files = (path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix not in {".pyc", ".png"})
    pages = [ROOT / "README.md", *files]
    for page in pages:
        for name in re.findall(r"\bfetchwise_[a-z_]+", page.read_text()):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in exported, f"{page}: {name}"
