"""The snapshot: pings cannot stall or stop it, and economics take little time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.core.cost import Tariff
from app.economics.estimate import estimate
from app.economics.view import TrafficReport
from app.economics.window import ROW, Traffic
from app.errors import UpstreamUnavailable
from app.telemetry import snapshot as module
from app.telemetry.snapshot import RECENT_S, Load, Part, Snapshots, Sources
from tests.fakes.snapshots import a_snapshot

EMPTY = estimate(Traffic(np.empty(0, ROW), 0.0, 0), seconds=900, reference=5, tariff=Tariff(), ks=(0, 1, 5))


class World:
    """Everything that a snapshot shows; a test changes it."""

    def __init__(self) -> None:
        self.state = a_snapshot()
        self.pings: dict[str, Callable[[], Awaitable[object]]] = {"reader": fine, "vectors": fine}
        self.pinged: list[Mapping[str, Part]] = []
        self.estimates = 0

    def economics(self) -> TrafficReport:
        self.estimates += 1
        return TrafficReport(float(self.estimates), EMPTY, {})

    def snapshots(self, **changes: Any) -> Snapshots:
        sources: dict[str, Any] = {
            "pings": self.pings,
            "calibrator": lambda: self.state.calibrator,
            "policy": lambda: self.state.policy,
            "bypass": lambda: self.state.bypass,
            "drift": lambda: self.state.drift,
            "evidence": lambda: self.state.evidence,
            "load": lambda: self.state.load,
            "economics": self.economics,
            "on_pinged": self.pinged.append,
        }
        return Snapshots(Sources(**(sources | changes)))


async def fine() -> None:
    pass


async def partial() -> str:
    return "1 of 2 readers answer"


async def down() -> None:
    raise UpstreamUnavailable("vectors", "connection refused")


async def silent() -> None:
    await asyncio.Event().wait()


async def broken() -> None:
    raise ZeroDivisionError("a bug")


def test_upstreams_are_starting_before_the_first_ping() -> None:
    """So the gateway is not ready, and there are no economics."""
    latest = World().snapshots().latest
    assert latest.parts == dict.fromkeys(("reader", "vectors"), Part(up=False, remark="starting"))
    assert latest.economics is None


async def test_pings_run_concurrently_and_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ping ends within its timeout, and a failed one does not affect the others."""
    monkeypatch.setattr(module, "PING_TIMEOUT_S", 0.05)
    world = World()
    world.pings = {"a": fine, "b": partial, "c": down, "d": silent, "e": silent, "f": broken}
    snapshots = world.snapshots()
    await snapshots.ping()
    assert {name: str(part) for name, part in snapshots.latest.parts.items()} == {
        "a": "ok",
        "b": "ok, but 1 of 2 readers answer",
        "c": "connection refused",
        "d": "no reply within 0.05 s",
        "e": "no reply within 0.05 s",
        "f": "the ping failed: ZeroDivisionError('a bug')",
    }
    assert [name for name, part in snapshots.latest.parts.items() if part.up] == ["a", "b"]
    assert world.pinged == [snapshots.latest.parts]


async def test_next_ping_shows_a_failure_or_a_recovery() -> None:
    """The snapshot keeps the time of the ping."""
    world = World()
    snapshots = world.snapshots()
    seen = []
    for ping in (fine, down, broken, fine):
        world.pings["vectors"] = ping
        before = snapshots.latest.pinged_at
        await snapshots.ping()
        assert snapshots.latest.pinged_at >= before
        seen.append(snapshots.latest.parts["vectors"].up)
    assert seen == [True, False, False, True]


async def test_bug_in_a_ping_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback, and not again at every ping."""
    world = World()
    world.pings["vectors"] = broken
    snapshots = world.snapshots()
    for _ in range(3):
        await snapshots.ping()
    assert caplog.text.count("unexpected error in the ping of the vectors") == 1
    assert "ZeroDivisionError" in caplog.text


async def test_refresh_reads_everything_but_the_upstreams() -> None:
    """Values change together, in a new snapshot; the old one does not change."""
    world = World()
    snapshots = world.snapshots()
    before = snapshots.latest
    world.state = a_snapshot(load=Load(in_flight=3, shed=2), evidence=0.5)
    await snapshots.refresh()
    latest = snapshots.latest
    assert (latest.load, latest.evidence, latest.parts) == (Load(3, 2), 0.5, before.parts)
    assert latest.economics is not None
    assert (before.load, before.evidence) == (Load(), None)


async def test_failures_of_the_last_minutes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before the first refresh, and those that are too old, are not among them."""
    world = World()
    snapshots = world.snapshots()
    seen = []
    for at, failed in ((0.0, 5), (100.0, 7), (RECENT_S, 9), (RECENT_S + 99, 9), (RECENT_S + 101, 10)):
        monkeypatch.setattr("app.telemetry.snapshot.time.monotonic", lambda at=at: at)
        world.state = a_snapshot(load=Load(failed=failed))
        await snapshots.refresh()
        seen.append(snapshots.latest.failed)
    assert seen == [0, 2, 4, 2, 1]


async def test_failed_load_leaves_the_rest_up_to_date() -> None:
    """The last load stays; the error is raised to the caller."""
    world = World()

    def failing() -> Load:
        raise ZeroDivisionError

    snapshots = world.snapshots(load=failing)
    world.state = a_snapshot(evidence=0.5)
    with pytest.raises(ZeroDivisionError):
        await snapshots.refresh()
    assert (snapshots.latest.evidence, snapshots.latest.load) == (0.5, Load())


async def test_failed_economics_leave_the_rest_up_to_date() -> None:
    """The last economics stay; the error is raised to the caller."""
    world = World()

    def failing() -> TrafficReport:
        if world.estimates:
            raise ZeroDivisionError
        return world.economics()

    snapshots = world.snapshots(economics=failing)
    await snapshots.estimate()
    snapshots._due = 0.0
    world.state = a_snapshot(evidence=0.5)
    with pytest.raises(ZeroDivisionError):
        await snapshots.refresh()
    assert snapshots.latest.evidence == 0.5
    assert snapshots.latest.economics is not None


async def test_slow_economics_are_estimated_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """They use one per cent of a CPU: after 50 ms the next estimate is due in 5 s."""
    world = World()
    now = cpu = 1000.0

    def slow() -> TrafficReport:
        nonlocal cpu
        cpu += 0.05
        return world.economics()

    snapshots = world.snapshots(economics=slow)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, thread_time=lambda: cpu))
    taken = []
    for _ in range(12):
        await snapshots.refresh()
        taken.append(world.estimates)
        now += 1.1
    assert taken == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]
