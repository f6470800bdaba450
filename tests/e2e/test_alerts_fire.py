"""Real alerts: a gateway with the costs of the paper, Prometheus with our rules, Alertmanager with our routes."""

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from tests.e2e.monitoring import Prometheus, alertmanager, prometheus
from tests.e2e.processes import Gateway, gateway
from tests.waiting import wait_until
from tests.wire.paper_costs import EIGHT_B, THIRTY_TWO_B, PaperCosts, PaperUpstream, paper_upstream

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# More than the alert needs before it judges.
QUESTIONS = 160
AT_ONCE = 8
GATE = "FetchwiseGateCostsMore"


@dataclass(frozen=True, slots=True)
class Stack:
    """All running processes."""

    upstream: PaperUpstream
    gateway: Gateway
    prometheus: Prometheus
    alertmanager: str

    def ask(self, questions: int) -> None:
        """Ask, and wait until Prometheus has scraped it and evaluated its rules."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            replies = list(pool.map(lambda number: self.gateway.ask(f"Question {number}?"), range(questions)))
        assert {reply.status_code for reply in replies} == {200}
        self.prometheus.until(f"sum(fetchwise_gated_total) == {questions}")
        self.prometheus.settle()

    def judged(self) -> str:
        """The verdict of `/breakeven` on the gate against always reading five passages."""
        found = httpx.get(f"{self.gateway.url}/breakeven", timeout=30).json()
        against = found["costs"]["latency"]["against"]["k5"]
        assert (found["reference"], found["sentence"]) == ("k5", against["sentence"])
        return str(against["verdict"])

    def notified(self) -> dict[str, list[str]]:
        """The alerts that Alertmanager received, with their receivers."""
        alerts = httpx.get(f"http://{self.alertmanager}/api/v2/alerts", timeout=10).json()
        return {one["labels"]["alertname"]: [receiver["name"] for receiver in one["receivers"]] for one in alerts}


@contextmanager
def stack(folder: Path, costs: PaperCosts) -> Iterator[Stack]:
    """Costs are doubled, so the noise of a busy machine matters less; alerts wait two seconds, not half an hour."""
    with paper_upstream(costs, scale=2.0) as upstream:
        asyncio.run(upstream.publish_gate(folder / "calibrators"))
        with (
            gateway(folder / "data", **upstream.settings(folder / "calibrators")) as running,
            alertmanager(folder) as manager,
        ):
            targets = {"fetchwise": [running.url.removeprefix("http://")], "vllm": [], "qdrant": []}
            with prometheus(folder / "prometheus", targets, rewrite=at_once, alertmanager=manager) as seen:
                seen.until('up{job="fetchwise"} == 1 and on (job) count by (job) (fetchwise_gated_total) == 3')
                yield Stack(upstream, running, seen, manager)


def at_once(rules: str) -> str:
    """The same rules with short waiting times."""
    return re.sub(r"\bfor: \w+", "for: 2s", rules)


def ratio(prometheus: Prometheus) -> float:
    """The latency of the gate over that of always reading."""
    return prometheus.value('fetchwise_gate_cost_ratio{cost="latency",reference="k5"}')


def test_alert_fires_with_the_costs_of_8b_and_reaches_its_receiver(tmp_path: Path) -> None:
    """A gate that loses fires its alert, which reaches its receiver."""
    with stack(tmp_path, EIGHT_B) as running:
        running.ask(QUESTIONS)
        assert running.prometheus.value("fetchwise:skip_ratio:rate15m") == pytest.approx(EIGHT_B.skip, abs=0.01)
        assert ratio(running.prometheus) > 1.0
        assert running.judged() == "costs"
        running.prometheus.until(f'ALERTS{{alertname="{GATE}",alertstate="firing",reference="k5"}}')
        wait_until(lambda: running.notified().get(GATE) == ["tickets"], f"{GATE} did not reach its receiver")
        assert running.prometheus.firing() == {GATE, "FetchwiseWatchdog"}


def test_alert_stays_quiet_if_the_gate_pays(tmp_path: Path) -> None:
    """The alert is never even pending. Most questions are skipped, so the machine's noise does not hide the saving."""
    with stack(tmp_path, replace(THIRTY_TWO_B, skip=0.8)) as running:
        running.ask(QUESTIONS)
        assert running.prometheus.value("fetchwise:gated:increase15m") >= 100
        assert ratio(running.prometheus) < 1.0
        assert running.judged() == "saves"
        assert running.prometheus.query(f'count_over_time(ALERTS{{alertname="{GATE}"}}[1h])') == []
