"""The contents of deploy/ as data: the rules, their tests, the alerts, the panels and the runbook."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = sorted((DEPLOY / "prometheus/rules").glob("*.yml"))
RULE_TESTS = sorted((DEPLOY / "prometheus/tests").glob("*.yml"))
DASHBOARD = DEPLOY / "grafana/dashboards/fetchwise.json"
RUNBOOK = DEPLOY / "runbook.md"
# A metric of the gateway, a recording rule, or a metric of vLLM.
NAME = re.compile(r"(?<![\w:])(?:fetchwise[_:][a-z0-9_:]+|vllm:[a-z0-9_]+)")
SELECTOR = re.compile(rf"({NAME.pattern})\{{([^}}]*)\}}")


@dataclass(frozen=True, slots=True)
class Panel:
    """One dashboard panel and its queries."""

    title: str
    exprs: tuple[str, ...]


def loaded(path: Path) -> Any:
    """A YAML file."""
    return yaml.safe_load(path.read_text())


@cache
def rules() -> tuple[dict[str, Any], ...]:
    """Every rule, recording and alerting."""
    return tuple(rule for path in RULES for group in loaded(path)["groups"] for rule in group["rules"])


def alerts() -> dict[str, dict[str, Any]]:
    """The alerting rules by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def recorded() -> set[str]:
    """The names that recording rules write."""
    return {rule["record"] for rule in rules() if "record" in rule}


def panels() -> list[Panel]:
    """Every panel with a query."""
    board = json.loads(DASHBOARD.read_text())
    return [
        Panel(panel["title"], tuple(target["expr"] for target in panel["targets"]))
        for panel in board["panels"]
        if panel["type"] != "row"
    ]


def expressions() -> dict[str, str]:
    """Every expression, by its location."""
    found = {f"rule {rule.get('record') or rule['alert']} {rule.get('labels', '')}": rule["expr"] for rule in rules()}
    return found | {f"panel {panel.title}, {expr}": expr for panel in panels() for expr in panel.exprs}
