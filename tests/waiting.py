"""Polling for conditions that have no event to wait for."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

# Long enough for a busy machine; a longer wait is a defect.
PATIENCE_S = 60.0


async def until(holds: Callable[[], object | Awaitable[object]], *, within_s: float = PATIENCE_S) -> None:
    """Poll until the condition holds."""
    async with asyncio.timeout(within_s):
        while True:
            found = holds()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.005)


def wait_until(holds: Callable[[], object], complaint: str, *, within_s: float = PATIENCE_S) -> None:
    """The same without an event loop."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)
