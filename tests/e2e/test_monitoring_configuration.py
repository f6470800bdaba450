"""The tools' own opinion of deploy/: configuration, rules and their unit tests, and where each severity is sent."""

import pytest

from tests.deploy.pieces import RULE_TESTS, RULES
from tests.e2e.monitoring import DEPLOY, run_tool

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
ALERTMANAGER = DEPLOY / "alertmanager/alertmanager.yml"


def test_prometheus_accepts_its_configuration() -> None:
    """`promtool` finds nothing wrong with it or with the rules that it names."""
    run_tool("promtool", "check", "config", DEPLOY / "prometheus/prometheus.yml")
    run_tool("promtool", "check", "rules", *RULES)


def test_the_rules_give_the_figures_that_were_worked_out() -> None:
    """Every unit test of the rules passes; their paths are relative to themselves."""
    said = run_tool("promtool", "test", "rules", *RULE_TESTS)
    assert said.count("SUCCESS") == len(RULE_TESTS)


def test_alertmanager_accepts_its_configuration() -> None:
    """`amtool` finds nothing wrong with it."""
    run_tool("amtool", "check-config", ALERTMANAGER)


@pytest.mark.parametrize(("severity", "receiver"), [("critical", "pager"), ("warning", "tickets"), ("new", "tickets")])
def test_each_severity_goes_to_its_receiver(severity: str, receiver: str) -> None:
    """Alerts about failing questions page somebody; all others, unknown ones too, wait."""
    said = run_tool("amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}", f"severity={severity}")
    assert said.strip() == receiver
