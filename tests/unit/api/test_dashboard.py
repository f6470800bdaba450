"""The dashboard's data: shared for a second, never computed on the event loop."""

import asyncio
import threading
from typing import Any

import pytest

from app.api.dashboard import FRESH_S, Dashboard


class Time:
    """A clock that is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Figures:
    """Counts how often it is asked, and in which thread."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.threads: set[int] = set()
        self.fail = False

    def __call__(self, seconds: int) -> dict[str, Any]:
        self.asked.append(seconds)
        self.threads.add(threading.get_ident())
        if self.fail:
            raise RuntimeError("no figures")
        return {"answers": len(self.asked)}


async def up() -> dict[str, Any]:
    """The state of a gateway that is well."""
    return {"parts": {"reader": "ok"}}


async def test_many_who_look_at_once_share_one_computation() -> None:
    """The figures are computed once a second for each window, in another thread, whoever asks."""
    figures, clock = Figures(), Time()
    dashboard = Dashboard(figures, up, clock=clock)
    first = await asyncio.gather(*(dashboard.data(900) for _ in range(5)))
    assert figures.asked == [900]
    assert all(one == first[0] for one in first)
    assert first[0]["parts"] == {"reader": "ok"}
    assert threading.get_ident() not in figures.threads
    await dashboard.data(300)
    clock.now += FRESH_S / 2
    await dashboard.data(900)
    assert figures.asked == [900, 300]
    clock.now += FRESH_S / 2
    assert (await dashboard.data(900))["answers"] == 3


async def test_one_who_leaves_does_not_take_the_figures_along() -> None:
    """A browser that closes its connection cancels its own request alone."""
    waiting = asyncio.Event()

    async def slow() -> dict[str, Any]:
        await waiting.wait()
        return {}

    dashboard = Dashboard(Figures(), slow)
    leaving, staying = asyncio.ensure_future(dashboard.data(900)), asyncio.ensure_future(dashboard.data(900))
    await asyncio.sleep(0)
    leaving.cancel()
    waiting.set()
    assert (await staying)["answers"] == 1
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_a_failure_is_not_kept() -> None:
    """Who looks next looks anew, without waiting for the second to pass."""
    figures = Figures()
    dashboard = Dashboard(figures, up, clock=Time())
    figures.fail = True
    with pytest.raises(RuntimeError, match="no figures"):
        await dashboard.data(900)
    figures.fail = False
    assert (await dashboard.data(900))["answers"] == 2
