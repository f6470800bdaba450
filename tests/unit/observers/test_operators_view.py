"""One look of the dashboard: the rows of every worker, the report on gating, and the load, about one moment."""

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from prometheus_client import CollectorRegistry

from app.decision.cost import Tariff
from app.observers.gate_watch import GateWatch
from app.observers.gauges import TrafficMetrics
from app.observers.operators_view import OperatorsView
from app.observers.traffic import TrafficWindow
from tests.fakes.records import a_record, a_skip

NOW = 1_700_000_000.0


@pytest.fixture
def window(tmp_path: Path) -> Iterator[TrafficWindow]:
    """A window in which it is always now."""
    window = TrafficWindow(tmp_path, clock=lambda: NOW)
    yield window
    window.close()


def view(window: TrafficWindow, registry: CollectorRegistry) -> OperatorsView:
    """A view on one worker, compared with always reading one passage."""
    watch = GateWatch(window, seconds=900, reference=lambda: 1, tariff=Tariff())
    return OperatorsView(window, watch, registry, clock=lambda: NOW)


def test_rows_report_and_load_come_together(window: TrafficWindow) -> None:
    """What was answered, what gating costs, and what is under way or was refused, ready for JSON."""
    registry = CollectorRegistry()
    traffic = TrafficMetrics(registry)
    traffic.began()
    traffic.began()
    traffic.ended()
    traffic.shed()
    window.observe(a_record())
    found = orjson.loads(orjson.dumps(view(window, registry).look(300)))
    assert found["now"] == NOW
    assert found["answers"] == found["breakeven"]["window"]["answers"] == 1
    assert found["breakeven"]["window"]["seconds"] == 300
    assert found["timeline"]["bucket_seconds"] == 5
    assert (found["in_flight"], found["shed"]) == (1, 1)


def test_savings_are_against_what_would_serve_without_a_gate(window: TrafficWindow) -> None:
    """The reference of the report is the reference of the savings."""
    window.observe(a_record())
    window.observe(a_skip())
    found = view(window, CollectorRegistry()).look(900)
    assert found["breakeven"].reference == "k1"
    assert (found["saved"]["passages"], found["saved"]["passages_always"]) == (1, 2)
