"""What the routes share: the running gateway, as the application's lifespan opened it."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from app.answer.answer import Answerer
from app.api.http.permits import Permits
from app.calibrators.status import LiveCalibrator
from app.core.policy import Policy
from app.economics.view import TrafficReport, TrafficView
from app.learning.log import DecisionLog
from app.telemetry.snapshot import Snapshots


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the routes need; opened and closed by the application's lifespan."""

    answerer: Answerer
    permits: Permits
    snapshots: Snapshots
    # What a scrape of this worker shows of all of them.
    scraped: CollectorRegistry
    live_calibrator: LiveCalibrator
    # The folder of calibrators.
    calibrators: Path
    # None where no decisions are kept.
    log: DecisionLog | None
    traffic: TrafficView
    default_policy: Policy
    default_collection: str
    default_max_tokens: int
    max_question_chars: int
    max_earlier_chars: int
    request_timeout_s: float

    async def economics(self, seconds: int | None = None) -> TrafficReport:
        """The traffic of the last so many seconds: from the snapshot if that is the default window, else computed."""
        known = self.snapshots.latest.economics
        if known is not None and seconds in {None, known.break_even.window.seconds}:
            return known
        return await asyncio.to_thread(self.traffic.cached_report, seconds)

    def deadline(self, timeout_ms: int | None) -> float:
        """When a question that begins now must be done, on the loop's clock."""
        within = self.request_timeout_s if timeout_ms is None else min(timeout_ms / 1000, self.request_timeout_s)
        return asyncio.get_running_loop().time() + within


# A coroutine though it waits for nothing: anything else FastAPI calls in a thread, which costs more than all the rest.
async def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


TheGateway = Annotated[Gateway, Depends(_gateway)]
