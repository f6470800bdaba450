"""One value that pages, `/metrics` and `/readyz` read, so that no request pings an upstream or computes a figure.

It is here and not in the core because it contains results of `economics` and `calibrators`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.calibrators.drift import SignalReport
from app.core.artifact import CalibratorStatus
from app.core.effective_policy import EffectivePolicy
from app.economics.bypass import BypassReport
from app.economics.view import TrafficReport
from app.errors import FetchwiseError

logger = logging.getLogger(__name__)

PING_TIMEOUT_S = 2.0
# The economics of a busy window take tens of milliseconds; they may take this share of a CPU.
ECONOMICS_SHARE = 0.01

# A function for each upstream that raises if it does not work; it may return a remark.
Pings = Mapping[str, Callable[[], Awaitable[object]]]


@dataclass(frozen=True, slots=True)
class Part:
    """Whether an upstream answered its last ping. `remark` says what is wrong, if anything is."""

    up: bool
    remark: str = ""

    def __str__(self) -> str:
        if not self.up:
            return self.remark
        return f"ok, but {self.remark}" if self.remark else "ok"


@dataclass(frozen=True, slots=True)
class Load:
    """Questions that all workers are working on, and questions that they have refused."""

    in_flight: int = 0
    shed: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the gateway, a second or two ago."""

    parts: Mapping[str, Part]
    # When the parts were pinged, on the monotonic clock.
    pinged_at: float
    calibrator: CalibratorStatus
    # The policy of a question without options.
    policy: EffectivePolicy
    bypass: BypassReport
    drift: SignalReport
    # Evidence from feedback that the confidences are too high; None without a decision log.
    evidence: float | None
    load: Load
    # The traffic of the default window; None until it has been read.
    economics: TrafficReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the snapshot comes from. `load` and `economics` block; the others read memory."""

    pings: Pings
    calibrator: Callable[[], CalibratorStatus]
    policy: Callable[[], EffectivePolicy]
    bypass: Callable[[], BypassReport]
    drift: Callable[[], SignalReport]
    evidence: Callable[[], float | None]
    load: Callable[[], Load]
    economics: Callable[[], TrafficReport]
    # Receives the result of each round of pings.
    on_pinged: Callable[[Mapping[str, Part]], None]


@dataclass(eq=False, slots=True)
class Snapshots:
    """Keeps the latest snapshot. Call `ping` and `refresh` every second or two."""

    sources: Sources
    latest: Snapshot = field(init=False)
    # The gateway is about to stop: it still answers, but load balancers are to send nothing more. Not in the snapshot:
    # a signal sets it, perhaps while a snapshot is being replaced.
    draining: bool = field(default=False, init=False)
    # When the economics are next due, on the monotonic clock.
    _due: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        starting = dict.fromkeys(self.sources.pings, Part(up=False, remark="starting"))
        self.latest = Snapshot(parts=starting, pinged_at=time.monotonic(), load=Load(), **self._in_memory())

    async def ping(self) -> None:
        """Ping every upstream concurrently. One whose ping fails in any way is marked as down."""
        pings = self.sources.pings
        found = await asyncio.gather(*(self._pinged(name, ping) for name, ping in pings.items()))
        parts = dict(zip(pings, found, strict=True))
        self.latest = replace(self.latest, parts=parts, pinged_at=time.monotonic())
        self.sources.on_pinged(parts)

    async def refresh(self) -> None:
        """Read everything else; the economics only if they are due. What blocks comes last, because it may fail."""
        self.latest = replace(self.latest, **self._in_memory())
        load = await asyncio.to_thread(self.sources.load)
        self.latest = replace(self.latest, load=load)
        if time.monotonic() >= self._due:
            await self.estimate()

    async def estimate(self) -> None:
        """Estimate the economics now."""
        found, cpu_s = await asyncio.to_thread(self._timed)
        self.latest = replace(self.latest, economics=found)
        self._due = time.monotonic() + cpu_s / ECONOMICS_SHARE

    def _in_memory(self) -> dict[str, Any]:
        sources = self.sources
        return {
            "calibrator": sources.calibrator(),
            "policy": sources.policy(),
            "bypass": sources.bypass(),
            "drift": sources.drift(),
            "evidence": sources.evidence(),
        }

    def _timed(self) -> tuple[TrafficReport, float]:
        began = time.thread_time()
        return self.sources.economics(), time.thread_time() - began

    async def _pinged(self, name: str, ping: Callable[[], Awaitable[object]]) -> Part:
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                remark = await ping()
        except TimeoutError:
            return Part(up=False, remark=f"no reply within {PING_TIMEOUT_S:g} s")
        except FetchwiseError as error:
            return Part(up=False, remark=str(error))
        except Exception as error:
            found = Part(up=False, remark=f"the ping failed: {error!r}")
            if found != self.latest.parts[name]:
                logger.exception("unexpected error in the ping of the %s", name)
            return found
        return Part(up=True, remark=str(remark or ""))
