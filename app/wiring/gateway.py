"""Wires the gateway: parts, calibrator, routes and metrics, opened and closed by one lifespan."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI

from app.answer.answer import Answerer
from app.answer.run import Upstreams
from app.api.answer import router as answer_router
from app.api.feedback import router as feedback_router
from app.api.gateway import Gateway
from app.api.http.direct import build_app, include_direct
from app.api.http.errors import install
from app.api.http.guard import Guard
from app.api.http.middleware import SafeHeaders, allow_origins
from app.api.http.permits import BodyLimit, Permits, Shedding
from app.api.openai.routes import chat_router, models_router
from app.api.operators import FIELDS
from app.api.operators import router as operators_router
from app.api.pages import add_pages
from app.api.status import router as status_router
from app.correlation import RequestContextObserver
from app.economics.window import traffic_window
from app.learning.log import LogMetrics
from app.settings import Settings
from app.storage.rates import open_rates
from app.telemetry.decisions import PrometheusObserver
from app.telemetry.gauges import LAG_EVERY_S, Gauges, LoopLag, TrafficMetrics, load, registries
from app.wiring.parts import Parts, open_decision_log, open_fleet_rates, open_keys, open_parts
from app.wiring.periodic import Periodic
from app.wiring.watching import (
    open_learning,
    open_live_calibrator,
    open_snapshots,
    resolver,
    sampler,
    watch_calibrator,
)

if TYPE_CHECKING:
    from app.telemetry.tracing import Tracing

VERSION = "0.1.0"
KEYS_EVERY_S = 1.0
RATES_EVERY_S = 1.0
CALIBRATOR_EVERY_S = 1.0
IDENTITY_EVERY_S = 30.0
DRIFT_EVERY_S = 5.0
BYPASS_EVERY_S = 10.0
# A ping of an embedder embeds a word, which takes CPU time or money.
PING_EVERY_S = 2.0
SNAPSHOT_EVERY_S = 1.0
PartsOpener = Callable[[Settings], AbstractAsyncContextManager[Parts]]


@dataclass(frozen=True, slots=True)
class Shared:
    """Where the workers of one gateway put what they count, so that each can tell for all."""

    metrics: Path
    traffic: Path
    limits: Path


def create_app(settings: Settings, *, parts_opener: PartsOpener = open_parts, shared: Shared | None = None) -> FastAPI:
    """Build the gateway, or one of its workers; nothing is opened before the lifespan begins."""
    registry, scraped = registries(shared.metrics if shared else None)
    traffic = TrafficMetrics(registry)
    observer = PrometheusObserver(registry, traffic, settings.calibration.ks)
    log_metrics = LogMetrics(registry, settings.calibration.ks)
    lag = LoopLag(registry)
    periodic = Periodic(registry)
    tracing = _tracing(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            parts_opener(settings) as parts,
            open_decision_log(settings, log_metrics) as log,
            tracing or nullcontext(),
        ):
            keys = await open_keys(settings)
            live_calibrator = await asyncio.to_thread(open_live_calibrator, settings, parts, log)
            if parts.resilience is not None:
                parts.resilience.watch(traffic.breaker_open, traffic.retried)
            with (
                open_rates(shared.limits if shared else None) as rates,
                traffic_window(shared.traffic if shared else None) as window,
            ):
                watching = watch_calibrator(settings, live_calibrator, log, window)
                resolve = resolver(settings, live_calibrator, watching.bypass)
                snapshots = open_snapshots(
                    *(settings, parts, live_calibrator, watching, resolve),
                    load=lambda: load(registry, shared.metrics if shared else None),
                    on_pinged=traffic.pinged,
                )
                async with (
                    open_fleet_rates(settings, rates) as fleet,
                    open_learning(settings, parts, live_calibrator, log, on_shadow=log_metrics.shadow) as learning,
                    periodic,
                ):
                    observers = (
                        *(observer, window, log, watching.signals),
                        *(learning.budget, RequestContextObserver(), tracing, learning.shadows),
                    )
                    app.state.guard = Guard(keys, rates)
                    app.state.gateway = Gateway(
                        answerer=Answerer(
                            Upstreams(
                                parts.reader,
                                parts.embedder,
                                parts.vectors,
                                stages=tracing.stage if tracing else nullcontext,
                            ),
                            resolve,
                            draw=sampler(settings, learning, log).draw,
                            observers=[one for one in observers if one is not None],
                            on_observer_error=periodic.failures_of("observers"),
                        ),
                        permits=Permits(
                            settings.permits,
                            places=settings.limits.queue,
                            max_wait_s=settings.limits.queue_wait_s,
                            metrics=traffic,
                            shadows=learning.shadows,
                        ),
                        snapshots=snapshots,
                        scraped=scraped,
                        live_calibrator=live_calibrator,
                        log=log,
                        traffic=watching.traffic,
                        default_policy=settings.calibration.policy,
                        default_collection=settings.vectors.collection,
                        default_max_tokens=settings.reader.max_tokens,
                        max_question_chars=settings.limits.max_question_chars,
                        max_earlier_chars=settings.limits.max_earlier_chars,
                        request_timeout_s=settings.limits.request_timeout_s,
                    )

                    await periodic.every(KEYS_EVERY_S, "keys", keys.refresh)
                    if fleet is not None:
                        await periodic.every(RATES_EVERY_S, "rates", fleet.exchange)
                    await periodic.every(IDENTITY_EVERY_S, "identity", live_calibrator.identify)
                    await periodic.every(CALIBRATOR_EVERY_S, "calibrator", live_calibrator.refresh)
                    if watching.drift is not None:
                        await periodic.every(DRIFT_EVERY_S, "drift", watching.drift.refresh)
                    if watching.bypass.enabled:
                        await periodic.every(BYPASS_EVERY_S, "bypass", watching.bypass.refresh)
                    await periodic.every(PING_EVERY_S, "pings", snapshots.ping)
                    await periodic.every(SNAPSHOT_EVERY_S, "snapshot", snapshots.refresh)
                    await periodic.every(LAG_EVERY_S, "event loop lag", lag.measure)
                    yield

    app = build_app(
        version=VERSION, lifespan=lifespan, log_questions=settings.server.log_questions, tracing=tracing, fields=FIELDS
    )
    scraped.register(Gauges(snapshot=lambda: app.state.gateway.snapshots.latest))
    install(app, on_upstream_error=traffic.upstream_error, on_denied=traffic.denied)
    app.add_middleware(BodyLimit, max_bytes=settings.limits.max_body_bytes)
    app.add_middleware(Shedding, max_wait_s=settings.limits.queue_wait_s)
    allow_origins(app, settings.access.cors)
    app.add_middleware(SafeHeaders)
    include_direct(app, answer_router, chat_router, feedback_router)
    for router in (status_router, models_router, operators_router):
        app.include_router(router)
    add_pages(app, collection=settings.vectors.collection, ks=settings.calibration.ks)
    return app


def _tracing(settings: Settings) -> "Tracing | None":
    if settings.server.traces == "off":
        return None
    # Imported here: an optional dependency, and slow to import.
    from app.telemetry.tracing import Tracing  # noqa: PLC0415

    return Tracing(VERSION)
