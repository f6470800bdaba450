"""The monitoring tools check deploy/: configuration, rules and their unit tests, and the receiver of each severity."""

import pytest

from tests.deploy.pieces import RULE_TESTS, RULES
from tests.e2e.monitoring import DEPLOY, run_tool

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
ALERTMANAGER = DEPLOY / "alertmanager/alertmanager.yml"


def test_prometheus_accepts_its_configuration() -> None:
    """`promtool` accepts the configuration and the rules that it names."""
    run_tool("promtool", "check", "config", DEPLOY / "prometheus/prometheus.yml")
    run_tool("promtool", "check", "rules", *RULES)


def test_unit_tests_of_the_rules_pass() -> None:
    """Paths in the unit tests are relative to the tests."""
    said = run_tool("promtool", "test", "rules", *RULE_TESTS)
    assert said.count("SUCCESS") == len(RULE_TESTS)


def test_alertmanager_accepts_its_configuration() -> None:
    """`amtool` accepts the configuration."""
    run_tool("amtool", "check-config", ALERTMANAGER)


def test_the_watchdog_has_a_receiver_of_its_own() -> None:
    """Nobody is paged by it; its receiver notices when it stops."""
    arguments = (f"--config.file={ALERTMANAGER}", "severity=none", "alertname=FetchwiseWatchdog")
    assert run_tool("amtool", "config", "routes", "test", *arguments).strip() == "watchdog"


@pytest.mark.parametrize(("severity", "receiver"), [("critical", "pager"), ("warning", "tickets"), ("new", "tickets")])
def test_each_severity_goes_to_its_receiver(severity: str, receiver: str) -> None:
    """Alerts that fail questions now page someone; all others become tickets, even those without a route."""
    said = run_tool("amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}", f"severity={severity}")
    assert said.strip() == receiver
