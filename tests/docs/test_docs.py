"""The documentation agrees with the code: settings, errors and metrics."""

import inspect
import re
from pathlib import Path

import pytest

from app import errors
from app.api.http.errors import STATUSES
from app.errors import FetchwiseError
from app.settings import variables
from tests.docs.settings_table import settings_table
from tests.docs.tables import TABLES, Table, metrics

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_tables_are_up_to_date(table: Table) -> None:
    """Settings, metrics and errors are documented as they are in the code."""
    _, written, _ = table.split()
    assert written == table.made(), f"docs/{table.page} is out of date: run `python -m tests.docs.tables`"


def test_every_setting_has_a_help_text() -> None:
    """Each setting has a sentence on what it is for."""
    for name, (_, field) in variables().items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert f"`{name}`" in settings_table()


def test_every_named_variable_is_a_setting() -> None:
    """Messages and pages name only settings that exist."""
    known = set(variables())
    for page in [*(ROOT / "app").rglob("*.py"), *PAGES]:
        assert named_in(page.read_text()) <= known, page
    changelog = (ROOT / "CHANGELOG.md").read_text()
    removed = named_in(changelog.partition("### Removed")[2])
    assert named_in(changelog) <= known | removed
    assert not removed & known


def named_in(text: str) -> set[str]:
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
    """The tree in the docstring: each name with that of its parent."""
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


def test_error_tree_matches_its_drawing() -> None:
    """Every exception is in the drawing, below its parent, and nothing else is."""
    actual = {name: None if kind is FetchwiseError else kind.__mro__[1].__name__ for name, kind in exceptions().items()}
    assert drawn() == actual


# Not raised by requests: they belong to the start, to the commands, or to the watcher of calibrators.
NEVER_IN_A_REQUEST = {
    "ArtifactError",
    "ArtifactSchemaError",
    "ArtifactChecksumError",
    "DataError",
    "DocumentConflict",
    "StorageError",
    "StoreInUse",
    "ConfigurationError",
}


def test_every_request_error_has_a_status() -> None:
    """Each exception that a request can raise has its own row in the table of statuses."""
    listed = {kind.__name__ for kind, _, _ in STATUSES}
    assert listed == exceptions().keys() - NEVER_IN_A_REQUEST - {"FetchwiseError"}


def test_status_table_is_most_specific_first() -> None:
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
    "passages_read_total": ("k",),
    "truncated_total": ("k",),
    "searches_total": ("use",),
    "p_closed_book": (),
    "upstream_errors_total": ("upstream", "kind"),
    "breaker_open": ("upstream",),
    "retries_total": ("upstream",),
    "in_flight": (),
    "queued": (),
    "queue_wait_seconds": (),
    "shed_total": (),
    "denied_total": ("reason",),
    "gated_total": ("k",),
    "upstream_up": ("upstream",),
    "event_loop_lag_seconds": (),
    "calibrator_info": ("version", "status"),
    "fallback_info": ("reference",),
    "skip_ratio": (),
    "break_even_skip_ratio": ("cost", "reference"),
    "gate_cost_ratio": ("cost", "reference"),
    "bypass_active": (),
    "drift_psi": ("signal",),
    "drift_psi_limit": ("signal",),
    "drift_evidence": (),
    "calibrator_revoked": (),
    "estimated_accuracy": (),
    "log_dropped_total": (),
    "log_failing": (),
    "log_pruned_total": (),
    "log_waiting": (),
    "background_failures_total": ("task",),
    "shadow_runs_total": ("result",),
    "feedback_total": ("correct", "action"),
}


def test_exported_metrics_are_the_listed_ones() -> None:
    """Every metric has its name and labels, only counters end in `_total`, and there are no others."""
    exported = metrics()
    assert {name: metric.labels for name, metric in exported.items()} == {
        f"fetchwise_{name}": labels for name, labels in METRICS.items()
    }
    assert all(metric.help.endswith(".") for metric in exported.values())


def test_every_metric_named_in_docs_exists() -> None:
    """The documentation, the alerts and the dashboards name metrics that exist."""
    exported = metrics()
    files = (path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix not in {".pyc", ".png"})
    for page in [*PAGES, *files]:
        for name in re.findall(r"\bfetchwise_[a-z_]+", page.read_text()):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in exported, f"{page}: {name}"
