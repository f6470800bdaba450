"""How late the event loop is: whatever blocks it shows here before anybody complains."""

import asyncio

from prometheus_client import CollectorRegistry, Histogram

EVERY_S = 0.25
# Below a millisecond nobody notices, above a second everybody does.
_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopLag:
    """Asks to be woken at a set time, over and over, and notes how late that was."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = Histogram(
            "fetchwise_event_loop_lag_seconds",
            "How late the event loop came back to something that was due.",
            buckets=_EDGES,
            registry=registry,
        )

    async def measure(self) -> None:
        """Go on until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            due = now() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._lag.observe(max(0.0, now() - due))
