"""Waiting for what has no event to wait for."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

# For as long as a busy machine may take; whoever waits that long has met a defect.
PATIENCE_S = 60.0


async def until(holds: Callable[[], object | Awaitable[object]], *, within_s: float = PATIENCE_S) -> None:
    """Look again and again until it holds."""
    async with asyncio.timeout(within_s):
        while True:
            found = holds()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.005)


def wait_until(holds: Callable[[], object], complaint: str, *, within_s: float = PATIENCE_S) -> None:
    """The same where no event loop runs."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)
