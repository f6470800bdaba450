"""Rules, alerts, panels and runbook are consistent, and use metrics that the gateway exports."""

import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.api.app import paths
from app.settings import variables
from deploy.grafana.dashboard import build
from tests.deploy.pieces import (
    DASHBOARD,
    DEPLOY,
    NAME,
    RULE_TESTS,
    RUNBOOK,
    SELECTOR,
    alerts,
    expressions,
    loaded,
    panels,
    recorded,
    rules,
)
from tests.fakes.gateway import fake_gateway

# Prometheus adds the first two to every scraped sample; a histogram's buckets have the third.
ALWAYS_THERE = {"job", "instance", "le"}
# The samples of a family, also of one without any yet.
SUFFIXES = defaultdict(lambda: ("",), counter=("_total",), histogram=("_bucket", "_sum", "_count"))
# Fires all the time, and so it has no test in which it is silent.
ALWAYS = "FetchwiseWatchdog"


@pytest.fixture
async def exported(tmp_path: Path) -> AsyncIterator[dict[str, set[str]]]:
    """Every sample that a gateway exports after two questions, with its labels; and families without samples yet."""
    found: dict[str, set[str]] = {}
    async with fake_gateway(tmp_path, artifact={}) as gateway:
        for question in ("What is the capital of France?", "What is the capital of Elbonia?"):
            assert (await gateway.client.post("/answer", json={"question": question})).status_code == 200
        for family in text_string_to_metric_families((await gateway.client.get("/metrics")).text):
            for suffix in SUFFIXES[family.type]:
                found.setdefault(family.name + suffix, set())
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        yield found


def test_every_metric_in_an_expression_exists(exported: dict[str, set[str]]) -> None:
    """Every metric in an expression is exported by the gateway or recorded by a rule."""
    for where, expr in expressions().items():
        for name in NAME.findall(expr):
            if not name.startswith("vllm:"):
                assert name in (recorded() if ":" in name else exported), f"{where}: {name}"


def test_every_label_in_an_expression_exists(exported: dict[str, set[str]]) -> None:
    """A selector with a misspelt label would silently match nothing."""
    for where, expr in expressions().items():
        for name, selector in SELECTOR.findall(expr):
            labels = exported.get(name)
            if labels:
                asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
                assert asked <= labels | ALWAYS_THERE, f"{where}: {name}{{{selector}}}"


async def test_objectives_count_every_route_that_does_work(tmp_path: Path) -> None:
    """A new route that callers post to must be among those whose failures page."""
    (pattern,) = set(re.findall(r'route=~"([^"]+)"', " ".join(rule["expr"] for rule in rules())))
    async with fake_gateway(tmp_path) as gateway:
        posted = {path for path, methods in paths(gateway.app).items() if "POST" in methods}
        assert "/answer" in posted
        assert {path for path in posted if not re.fullmatch(pattern, path)} == set()


def test_runbook_and_rule_tests_name_existing_metrics(exported: dict[str, set[str]]) -> None:
    """Every metric and rule that they name exists."""
    for page in (RUNBOOK, *RULE_TESTS):
        for name in NAME.findall(page.read_text()):
            assert name in recorded() | exported.keys(), f"{page.name}: {name}"


def test_every_recording_rule_is_used() -> None:
    """A rule that nothing reads costs time for nothing."""
    used = {name for expr in expressions().values() for name in NAME.findall(expr)}
    assert recorded() <= used


def test_runbook_has_one_section_for_each_alert() -> None:
    """Each section has what an operator needs, and what was seen when it was followed in a drill."""
    _, *sections = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)
    headings = [section.splitlines()[0] for section in sections]
    assert sorted(headings) == sorted(alerts())
    for section in sections:
        assert re.findall(r"^\*\*(.+?)\*\*", section, flags=re.MULTILINE) == [
            *("What it means.", "Look at.", "Do.", "Seen.")
        ]


def test_runbook_names_existing_panels_and_settings() -> None:
    """Panels and rows that it names are on the dashboard, and settings that it names exist."""
    said = RUNBOOK.read_text()
    shown = {panel["title"] for panel in json.loads(DASHBOARD.read_text())["panels"]} | {"Fetchwise"}
    pointed_at = set(re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", re.sub(r"\s+", " ", said)))
    assert pointed_at
    assert pointed_at <= shown
    settings = set(variables())
    assert set(re.findall(r"FETCHWISE_[A-Z_]+", said)) <= settings


@pytest.mark.parametrize("name", alerts())
def test_every_alert_is_described(name: str) -> None:
    """Each has a severity, a summary, a description and a link to the runbook."""
    alert = alerts()[name]
    assert alert["labels"]["severity"] in ({"none"} if name == ALWAYS else {"critical", "warning"})
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert alert["annotations"]["runbook_url"] == f"{{{{ $externalLabels.runbook }}}}#{name.lower()}"


@pytest.mark.parametrize("name", sorted(alerts().keys() - {ALWAYS}))
def test_every_alert_is_tested_firing_and_silent(name: str) -> None:
    """Each alert has a test in which it fires and one in which it must not."""
    cases = [
        case
        for path in RULE_TESTS
        for test in loaded(path)["tests"]
        for case in test.get("alert_rule_test", ())
        if case["alertname"] == name
    ]
    assert {bool(case.get("exp_alerts")) for case in cases} == {True, False}


def test_every_recording_rule_has_an_expected_value() -> None:
    """Each rule is checked against a number computed by hand."""
    expected = {
        name
        for path in RULE_TESTS
        for test in loaded(path)["tests"]
        for case in test.get("promql_expr_test", ())
        if case.get("exp_samples")
        for name in NAME.findall(case["expr"])
    }
    assert recorded() == expected


def test_inhibition_rules_name_existing_alerts() -> None:
    """A misspelt name in Alertmanager's inhibition rules would silence nothing."""
    config = loaded(DEPLOY / "alertmanager/alertmanager.yml")
    matchers = [
        matcher
        for rule in config["inhibit_rules"]
        for side in ("source", "target")
        for matcher in rule[f"{side}_matchers"]
    ]
    for matcher in matchers:
        stem, names, rest = re.fullmatch(r'alertname =~? "?(\w+)(?:\(([\w|]+)\)(\w*))?"?', matcher).groups()  # type: ignore[union-attr]
        for name in (names or "").split("|"):
            assert f"{stem}{name}{rest or ''}" in alerts(), matcher


def test_dashboard_is_up_to_date() -> None:
    """The committed JSON is the output of `python -m deploy.grafana.dashboard`."""
    assert DASHBOARD.read_text() == build()


def test_panels_have_unique_titles_and_queries() -> None:
    """No two panels share a title, and every panel has a query."""
    titles = [panel.title for panel in panels()]
    assert len(set(titles)) == len(titles)
    assert all(panel.exprs for panel in panels())


def test_grafana_finds_the_dashboard_and_its_data_source() -> None:
    """The provider reads the folder into which compose mounts the dashboards; the one data source is the default."""
    (provider,) = loaded(DEPLOY / "grafana/provisioning/dashboards/fetchwise.yml")["providers"]
    (source,) = loaded(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    mounts = loaded(DEPLOY.parent / "docker-compose.yml")["services"]["grafana"]["volumes"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in mounts
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
