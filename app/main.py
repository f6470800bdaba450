"""Wires the gateway: parts, calibrator, routes and metrics, opened and closed by one lifespan."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from app.adapters.artifact_store import ArtifactStore
from app.adapters.gatekeeper import ArtifactGatekeeper
from app.adapters.key_limits import key_meters
from app.answer import Answerer
from app.api.answer import router as answer_router
from app.api.audit import router as audit_router
from app.api.auth import Guard
from app.api.breakeven import bypass_block
from app.api.breakeven import router as breakeven_router
from app.api.calibrator_survey import CalibratorsOut, survey
from app.api.calibrators import router as calibrators_router
from app.api.dashboard import Dashboard, State
from app.api.direct import build_app, include_direct
from app.api.errors import install
from app.api.feedback import router as feedback_router
from app.api.gateway import Gateway
from app.api.limits import BodyLimit, Permits, Shedding
from app.api.middleware import SafeHeaders, let_in
from app.api.openai import chat_router, models_router
from app.api.pages import add_pages
from app.api.schemas import CalibratorState
from app.api.status import router as status_router
from app.api.status import states
from app.correlation import RequestNote
from app.errors import UnknownCollection, UpstreamUnavailable
from app.observers.bypass import BypassWatch
from app.observers.decision_log import DecisionLog, LogMetrics
from app.observers.gate_watch import GateWatch
from app.observers.gauges import LoopLag, TrafficMetrics, registries
from app.observers.operators_view import OperatorsView
from app.observers.prometheus import PrometheusObserver
from app.observers.signal_drift import SignalDrift
from app.observers.traffic import TrafficWindow, traffic_window
from app.parts import Parts, mandatory_rules, open_decision_log, open_keys, open_parts
from app.settings import Settings
from app.watching import Learning, open_gatekeeper, open_learning, watch_drift, watch_gate, watch_loop, watch_parts

if TYPE_CHECKING:
    from app.adapters.otel import Tracing

VERSION = "0.1.0"
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
    observer = PrometheusObserver(registry, traffic)
    log_metrics = LogMetrics(registry)
    lag = LoopLag(registry)
    tracing = _tracing(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            parts_opener(settings) as parts,
            open_decision_log(settings, log_metrics) as log,
            open_keys(settings) as keys,
            tracing or nullcontext(),
            open_gatekeeper(settings, parts) as gatekeeper,
            watch_drift(settings, gatekeeper, log, scraped) as signals,
            open_learning(settings, parts, gatekeeper, log, on_shadow=log_metrics.shadow) as learning,
        ):
            if parts.resilience is not None:
                parts.resilience.watch(traffic.breaker_open, traffic.retried)
            with (
                key_meters(shared.limits if shared else None) as meters,
                traffic_window(shared.traffic if shared else None) as window,
            ):
                async with (
                    watch_gate(settings, gatekeeper, window, scraped) as (gate_watch, bypass),
                    watch_loop(lag),
                ):
                    app.state.gateway = gateway = _gateway(
                        settings,
                        parts,
                        gatekeeper,
                        observer,
                        traffic,
                        log=log,
                        tracing=tracing,
                        window=window,
                        gate_watch=gate_watch,
                        bypass=bypass,
                        signals=signals,
                        learning=learning,
                        scraped=scraped,
                    )
                    app.state.guard = Guard(keys, meters)
                    view = OperatorsView(window, gate_watch, scraped)
                    app.state.dashboard = Dashboard(view.look, _state(settings, gateway, gatekeeper)).data
                    async with watch_parts(gateway.pings, traffic):
                        yield

    app = build_app(version=VERSION, lifespan=lifespan, log_questions=settings.log_questions, tracing=tracing)
    install(app, on_upstream_error=traffic.upstream_error, on_denied=traffic.denied)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(Shedding, longest_wait_s=settings.queue_wait_s)
    let_in(app, settings.cors)
    app.add_middleware(SafeHeaders)
    include_direct(app, answer_router, chat_router, feedback_router)
    app.include_router(status_router)
    app.include_router(models_router)
    app.include_router(breakeven_router)
    app.include_router(calibrators_router)
    app.include_router(audit_router)
    add_pages(app, collection=settings.collection)
    return app


def _gateway(
    settings: Settings,
    parts: Parts,
    gatekeeper: ArtifactGatekeeper,
    observer: PrometheusObserver,
    traffic: TrafficMetrics,
    *,
    log: DecisionLog | None,
    tracing: "Tracing | None",
    window: TrafficWindow,
    gate_watch: GateWatch,
    bypass: BypassWatch,
    signals: SignalDrift,
    learning: Learning,
    scraped: CollectorRegistry,
) -> Gateway:
    def calibrator() -> CalibratorState:
        return CalibratorState.model_validate(gatekeeper.standing(), from_attributes=True)

    def calibrators(most: int) -> CalibratorsOut:
        serving, standing = gatekeeper.serving, gatekeeper.standing()
        return survey(
            ArtifactStore(settings.calibrators),
            most,
            serving=serving.version if serving else None,
            standing=standing.problem,
            problem_of=gatekeeper.problem,
        )

    async def vectors() -> None:
        await parts.vectors.ping()
        try:
            await parts.vectors.count(settings.collection)
        except UnknownCollection as error:
            raise UpstreamUnavailable("vectors", f"{error}: fill it with `fetchwise ingest`") from error

    return Gateway(
        answerer=Answerer(
            reader=parts.reader,
            embedder=parts.embedder,
            retriever=parts.vectors,
            gatekeeper=gatekeeper,
            observers=[
                one
                for one in (observer, window, log, signals, learning.budget, RequestNote(), tracing)
                if one is not None
            ],
            bypassed=bypass.on,
            mandatory=mandatory_rules(settings),
            explorer=learning.explorer,
            shadows=learning.shadows,
            stages=tracing.stage if tracing else nullcontext,
            solicit_share=settings.solicit_share if log else 0.0,
        ),
        permits=Permits(
            settings.permits,
            places=settings.queue,
            longest_wait_s=settings.queue_wait_s,
            metrics=traffic,
            shadows=learning.shadows,
        ),
        scraped=scraped,
        pings={"reader": parts.reader.ping, "embedder": parts.embedder.ping, "vectors": vectors},
        calibrator=calibrator,
        calibrators=calibrators,
        log=log,
        break_even=gate_watch.look,
        bypass=bypass,
        default_policy=settings.policy,
        default_collection=settings.collection,
        default_max_tokens=settings.max_tokens,
        max_question_chars=settings.max_question_chars,
        max_earlier_chars=settings.max_earlier_chars,
        request_timeout_s=settings.request_timeout_s,
    )


def _state(settings: Settings, gateway: Gateway, gatekeeper: ArtifactGatekeeper) -> State:
    """What runs, for the dashboard: the parts, the calibrator, and the thresholds of a request that names no policy."""

    async def state() -> dict[str, Any]:
        gate = gatekeeper.gate(collection=settings.collection, max_tokens=settings.max_tokens)
        fit = gate.fit_in_force(settings.policy)
        return {
            "parts": await states(gateway.pings),
            "calibrator": gateway.calibrator().model_dump(),
            "bypass": bypass_block(gateway.bypass),
            "thresholds": {
                "tau0": fit.thresholds.tau0,
                "tau1": fit.thresholds.tau1,
                "tau_abstain": gate.tau_abstain(),
            }
            if fit
            else None,
        }

    return state


def _tracing(settings: Settings) -> "Tracing | None":
    if settings.traces == "off":
        return None
    # Imported here: an optional dependency, and slow to import.
    from app.adapters.otel import Tracing  # noqa: PLC0415

    return Tracing(VERSION)
