"""Hundreds of questions on simulated upstreams, and a real Prometheus: the rules agree with the receipts."""

import asyncio
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import pytest

from tests.deploy.pieces import Panel, panels
from tests.e2e.monitoring import Prometheus, prometheus
from tests.e2e.processes import Gateway, gateway
from tests.e2e.vllm_exporter import vllm_exporter
from tests.waiting import wait_until
from tests.wire.paper_costs import HOPELESS, QUICK, paper_upstream

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# Drift needs 200 probes, and nine questions in ten are probed.
QUESTIONS = 240
AT_ONCE = 4
POLICIES = ("graded", "binary", "graded", "never", "graded", "graded", "always", "graded", "graded", "never")
CHOSEN_BY_THE_GATE = {"confident", "borderline", "uncertain", "low_confidence"}
# Receipts are rounded to a microsecond.
ROUNDED = 1e-5
Receipt = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Watched:
    """A Prometheus that scraped everything, and the receipts of everything it scraped."""

    prometheus: Prometheus
    gateway: Gateway
    receipts: list[Receipt]

    @property
    def gated(self) -> list[Receipt]:
        """The questions that the gate decided."""
        return [
            one
            for one in self.receipts
            if one["decision"]["policy"] in {"graded", "binary"}
            and one["decision"]["p_closed_book"] is not None
            and one["decision"]["reason"] in CHOSEN_BY_THE_GATE
        ]

    def mean_ms(self, *stages: str, k: int | None = None) -> float:
        """Mean time of these stages together, over the questions that ran the last of them."""
        rows = [
            one["timings_ms"]
            for one in self.receipts
            if one["timings_ms"][stages[-1]] is not None and k in {None, one["k"]}
        ]
        return fmean(sum(row[stage] for stage in stages) for row in rows)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Scrape first, then ask, then judge some answers."""
    folder = tmp_path_factory.mktemp("watched")
    with paper_upstream(QUICK) as upstream, vllm_exporter() as vllm:
        asyncio.run(upstream.publish_gate(folder / "calibrators"))
        with gateway(folder / "data", **upstream.settings(folder / "calibrators")) as running:
            targets = {"fetchwise": [running.url.removeprefix("http://")], "vllm": [vllm], "qdrant": []}
            with prometheus(folder / "prometheus", targets, rewrite=over_everything) as seen:
                seen.until('up{job="fetchwise"} == 1 and on (job) count by (job) (fetchwise_gated_total) == 3')
                receipts = ask_everything(running)
                judge(running, receipts)
                asked = f"sum(fetchwise_requests_total) == {len(receipts)} and sum(fetchwise_feedback_total) > 0"
                seen.until(asked)
                seen.settle()
                yield Watched(seen, running, receipts)


def over_everything(rules: str) -> str:
    """The same rules over the whole run; without a day before, today is the baseline."""
    return rules.replace("[15m]", "[1d]").replace("[1h]", "[1d]").replace(" offset 1h", "")


def ask_everything(running: Gateway) -> list[Receipt]:
    """Questions under every policy, some of them unanswerable."""

    def ask(number: int, policy: str) -> Receipt:
        reply = running.ask(f"What is number {number}?{HOPELESS if number % 7 == 0 else ''}", policy=policy)
        assert reply.status_code == 200, reply.text
        receipt: Receipt = reply.json()
        return receipt

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, range(QUESTIONS), islice(cycle(POLICIES), QUESTIONS)))


def judge(running: Gateway, receipts: list[Receipt]) -> None:
    """Give feedback `right` on the first answers of each action."""
    for action in ("k0", "k1", "k5"):
        given = next(one for one in receipts if one["action"] == action)

        def stored(receipt_id: str = given["id"]) -> bool:
            # The log writes asynchronously.
            body = {"id": receipt_id, "correct": True}
            return httpx.post(f"{running.url}/feedback", json=body, timeout=30).status_code == 200

        wait_until(stored, f"no feedback on {action} was accepted")


def test_every_action_was_seen(watched: Watched) -> None:
    """The traffic is as mixed as the figures below require."""
    assert len(watched.receipts) == QUESTIONS
    assert {one["action"] for one in watched.receipts} == {"k0", "k1", "k5", "abstain"}
    assert {one["k"] for one in watched.gated} == {0, 1, 5}
    assert len(watched.gated) >= 100


def test_skip_rate_and_action_mix(watched: Watched) -> None:
    """Shares of counters equal shares of receipts: every counter was zero before the first question."""
    gated = watched.gated
    skipped = sum(one["k"] == 0 for one in gated) / len(gated)
    assert watched.prometheus.value("fetchwise:skip_ratio:rate15m") == pytest.approx(skipped)
    assert watched.prometheus.value("fetchwise_skip_ratio") == pytest.approx(skipped)
    actions = [one["action"] for one in watched.receipts]
    shares = {action: actions.count(action) / QUESTIONS for action in set(actions)}
    assert watched.prometheus.by("action", "fetchwise:action_share:rate15m") == pytest.approx(shares)


def test_latency_by_action(watched: Watched) -> None:
    """Mean latency of each action, up to the rounding of a receipt."""
    expected = {
        action: fmean(one["timings_ms"]["total"] for one in watched.receipts if one["action"] == action) / 1000
        for action in {one["action"] for one in watched.receipts}
    }
    found = watched.prometheus.by("action", "fetchwise:request_duration_seconds:mean15m")
    assert found == pytest.approx(expected, rel=ROUNDED)


@pytest.mark.parametrize("k", [0, 1, 5])
def test_tokens_by_passages_read(watched: Watched, k: int) -> None:
    """Tokens of every stage, for an answer with k passages."""
    rows = [one["usage"] for one in watched.receipts if one["k"] == k]
    stages = ("rewrite", "probe", "read", "write")
    expected = {stage: sum(sum(row[stage].values()) for row in rows if row[stage]) / len(rows) for stage in stages}
    found = watched.prometheus.by("stage", f'fetchwise:tokens_per_answer:rate15m{{k="{k}"}}')
    assert dict.fromkeys(stages, 0.0) | found == pytest.approx(expected)


def test_passages_per_answer(watched: Watched) -> None:
    """Passages actually read, over all answers."""
    expected = fmean(one["usage"]["passages"] for one in watched.receipts)
    assert watched.prometheus.value("fetchwise:passages_per_answer:rate15m") == pytest.approx(expected)


def test_break_even_and_cost_of_the_gate(watched: Watched) -> None:
    """The gate against both references, and break-even, computed again from the receipts."""
    shares = {k: sum(one["k"] == k for one in watched.gated) / len(watched.gated) for k in (0, 1, 5)}
    probe = watched.mean_ms("probe")
    always = {k: watched.mean_ms("embed", "search", k=k) + watched.mean_ms("read", k=k) for k in (1, 5)}
    retrieving = (shares[1] * always[1] + shares[5] * always[5]) / (1 - shares[0])
    gate = probe + (1 - shares[0]) * retrieving
    ask = watched.prometheus.by
    # The slowest 1 % of each mean are capped in the gauges.
    assert ask("reference", 'fetchwise_gate_cost_ratio{cost="latency"}') == pytest.approx(
        {f"k{k}": gate / always[k] for k in (1, 5)}, rel=0.1
    )
    assert ask("reference", 'fetchwise_break_even_skip_ratio{cost="latency"}') == pytest.approx(
        {f"k{k}": max(0.0, 1 - (always[k] - probe) / retrieving) for k in (1, 5)}, abs=0.1
    )


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel.title)
def test_every_panel_has_data(watched: Watched, panel: Panel) -> None:
    """Each query of each panel has data here; vLLM's come from an exporter with its metric names."""
    variables = {"$job": "fetchwise", "$vllm": "vllm", "$instance": ".+", "$__rate_interval": "1d"}
    for expr in panel.exprs:
        for name, value in variables.items():
            expr = expr.replace(name, value)  # noqa: PLW2901
        assert any(not math.isnan(value) for _, value in watched.prometheus.query(expr)), expr


def test_no_alert_fires_on_a_healthy_gateway(watched: Watched, tmp_path: Path) -> None:
    """No alert about failing upstreams or lost work fires on traffic without a failure."""
    assert not watched.prometheus.firing() - {"FetchwiseGateCostsMore", "FetchwiseWatchdog"}
    assert watched.prometheus.value("sum(fetchwise_upstream_errors_total)") == 0
