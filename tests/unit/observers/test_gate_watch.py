"""The watch on the gate: computed once a second, remembered for a few windows, and shown at a scrape."""

from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest
from prometheus_client import CollectorRegistry

from app.decision.cost import Tariff
from app.errors import ConfigurationError
from app.observers.gate_metrics import GateMetrics, InForce
from app.observers.gate_watch import GateWatch
from app.observers.gauges import registries
from app.observers.traffic import TrafficWindow
from tests.fakes.records import a_record, a_skip


class Time:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_watch(window: TrafficWindow, clock: Time, reference: int = 5) -> GateWatch:
    return GateWatch(window, seconds=900, reference=lambda: reference, tariff=Tariff(), clock=clock)


def test_a_second_look_within_the_second_is_the_first(tmp_path: Path) -> None:
    """Nothing is computed anew before a second has gone by."""
    time = Time()
    with closing(TrafficWindow(tmp_path)) as window:
        watch = a_watch(window, time)
        first = watch.look()
        window.observe(a_record())
        time.now += 0.9
        assert watch.look() is first
        time.now += 0.1
        assert watch.look().window.answers == 1


def test_each_window_is_remembered_and_only_so_many(tmp_path: Path) -> None:
    """A caller that asks for ever other windows does not fill the memory; the one unasked for longest goes first."""
    with closing(TrafficWindow(tmp_path)) as window:
        watch = a_watch(window, Time())
        first, kept = watch.look(1), watch.look(2)
        for seconds in range(3, 18):
            watch.look(seconds)
        assert watch.look(2) is kept
        assert watch.look(1) is not first


def test_the_default_window_is_the_gauges(tmp_path: Path) -> None:
    """Without a number, the setting counts."""
    with closing(TrafficWindow(tmp_path)) as window:
        assert a_watch(window, Time()).look().window.seconds == 900


def test_what_is_known_is_shown_and_the_rest_is_absent(tmp_path: Path) -> None:
    """Gated questions that read one passage or none: gauges against k1, none against k5, and no money."""
    registry = CollectorRegistry()
    with closing(TrafficWindow(tmp_path)) as window:
        for _ in range(40):
            window.observe(a_record())
            window.observe(a_skip())
        watch = a_watch(window, Time(), reference=1)
        registry.register(GateMetrics(lambda: InForce("v1", certified=True, reference=1), watch.look, lambda: True))
        shown = {
            (sample.name.removeprefix("fetchwise_"), *sample.labels.values()): sample.value
            for family in registry.collect()
            for sample in family.samples
        }
    # A probe of 200 ms, and 420 ms of retrieving and reading for every second question.
    assert shown == {
        ("calibrator_info", "v1", "true"): 1,
        ("fallback_info", "k1"): 1,
        ("bypass",): 1,
        ("skip_ratio",): 0.5,
        ("break_even_skip_ratio", "latency", "k1"): pytest.approx(200 / 420),
        ("gate_cost_ratio", "latency", "k1"): pytest.approx((200 + 210) / 420),
        ("break_even_skip_ratio", "tokens", "k1"): pytest.approx(48 / 129),
        ("gate_cost_ratio", "tokens", "k1"): pytest.approx((48 + 64.5) / 129),
    }


def test_registering_computes_nothing() -> None:
    """The names are known without a look at the traffic."""
    registry = CollectorRegistry()
    registry.register(GateMetrics(_never, _never, _never))


def _never() -> NoReturn:
    raise AssertionError("nobody asked for figures")


def test_one_process_counts_where_it_is_scraped() -> None:
    """And says of itself what only a process can say."""
    counted, scraped = registries(None)
    assert counted is scraped
    assert {"process_resident_memory_bytes", "python_info"} <= {family.name for family in scraped.collect()}


def test_workers_that_could_not_share_are_refused(tmp_path: Path) -> None:
    """The library decided at its import that counts stay in the process: then they must not be called shared."""
    with pytest.raises(ConfigurationError, match="PROMETHEUS_MULTIPROC_DIR"):
        registries(tmp_path)
