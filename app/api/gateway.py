"""What all routes share: the running gateway, opened by the lifespan of the application."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from app.answer.answer import Answerer
from app.answer.run import Upstreams
from app.api.http.guard import Guard
from app.api.http.permits import Permits
from app.calibrators.status import LiveCalibrator
from app.core.policy import Policy
from app.core.question import Missing
from app.economics.view import TrafficReport, TrafficView
from app.learning.log import DecisionLog
from app.telemetry.gauges import TrafficMetrics
from app.telemetry.snapshot import Snapshots


@dataclass(frozen=True, slots=True)
class Gateway:
    """Everything that routes need."""

    answerer: Answerer
    upstreams: Upstreams
    guard: Guard
    permits: Permits
    metrics: TrafficMetrics
    snapshots: Snapshots
    # Metrics of all workers.
    scraped: CollectorRegistry
    live_calibrator: LiveCalibrator
    # None if decisions are not stored.
    log: DecisionLog | None
    traffic: TrafficView
    default_policy: Policy
    default_collection: str
    default_max_tokens: int
    max_question_chars: int
    # What a chat does without evidence, and whether fields that cannot be honoured are refused.
    missing: Missing
    strict: bool
    request_timeout_s: float

    async def economics(self, seconds: int | None = None) -> TrafficReport:
        """The traffic of the last so many seconds: from the snapshot if that is the default window, else computed."""
        known = self.snapshots.latest.economics
        if known is not None and seconds in {None, known.break_even.window.seconds}:
            return known
        return await asyncio.to_thread(self.traffic.cached_report, seconds)

    def deadline(self, timeout_ms: int | None) -> float:
        """The deadline of a question that arrives now, on the clock of the event loop."""
        within = self.request_timeout_s if timeout_ms is None else min(timeout_ms / 1000, self.request_timeout_s)
        return asyncio.get_running_loop().time() + within


# A coroutine, because FastAPI calls a plain function in a thread, which is slow.
async def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


TheGateway = Annotated[Gateway, Depends(_gateway)]
