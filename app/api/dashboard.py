"""What the dashboard shows: computed off the event loop, and once for everyone who looks within a second."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from app.ports import Clock

FRESH_S = 1.0
Figures = Callable[[int], dict[str, Any]]
State = Callable[[], Awaitable[dict[str, Any]]]


class Dashboard:
    """Reads the figures of a window in a thread, and the state of the gateway beside them."""

    def __init__(self, figures: Figures, state: State, *, clock: Clock = time.monotonic) -> None:
        self._figures = figures
        self._state = state
        self._clock = clock
        self._latest: dict[int, tuple[float, asyncio.Task[dict[str, Any]]]] = {}

    async def data(self, seconds: int) -> dict[str, Any]:
        """Everything that is drawn, about the last so many seconds."""
        began, task = self._latest.get(seconds, (0.0, None))
        if task is None or (task.done() and (self._clock() - began >= FRESH_S or _failed(task))):
            task = asyncio.create_task(self._look(seconds), name="read the dashboard's figures")
            self._latest[seconds] = (self._clock(), task)
        # Shared: one browser that leaves must not take the figures of the others along.
        return await asyncio.shield(task)

    async def _look(self, seconds: int) -> dict[str, Any]:
        figures, state = await asyncio.gather(asyncio.to_thread(self._figures, seconds), self._state())
        return {**figures, **state}


def _failed(task: asyncio.Task[dict[str, Any]]) -> bool:
    return task.cancelled() or task.exception() is not None
