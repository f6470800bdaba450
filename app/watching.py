"""Opens what runs beside the questions: the calibrator, drift, what gating costs, learning, the loop and the parts."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from app.adapters.artifact_store import ArtifactStore
from app.adapters.gatekeeper import ArtifactGatekeeper, Revocations
from app.api.gateway import Pings
from app.api.status import watch
from app.decision.artifact import Artifact
from app.decision.cost import Objective
from app.decision.policy import FULL
from app.errors import ConfigurationError
from app.explore import Budget, DiceExplorer
from app.observers.bypass import BypassWatch
from app.observers.decision_log import DecisionLog
from app.observers.drift import DriftMetrics, DriftWatch
from app.observers.gate_metrics import GateMetrics, InForce
from app.observers.gate_watch import GateWatch
from app.observers.gauges import LoopLag, TrafficMetrics
from app.observers.signal_drift import SignalDrift
from app.observers.traffic import TrafficWindow
from app.parts import KS, Parts
from app.settings import Settings
from app.shadow import ShadowRunner

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_gatekeeper(settings: Settings, parts: Parts) -> AsyncIterator[ArtifactGatekeeper]:
    """Watch the calibrator folder and what runs, and say what may decide."""
    gatekeeper = ArtifactGatekeeper(
        ArtifactStore(settings.calibrators),
        parts.reader,
        parts.embedder,
        collection=settings.collection,
        max_tokens=settings.max_tokens,
        ks=KS,
        allow_uncertified=settings.allow_uncertified,
        # Where drift is only to be told of, what was revoked before is in force again.
        revocations=Revocations(settings.data_dir / "revoked.json" if settings.drift_action == "revoke" else None),
    )
    await gatekeeper.start()
    try:
        yield gatekeeper
    finally:
        await gatekeeper.close()


@asynccontextmanager
async def watch_drift(
    settings: Settings, gatekeeper: ArtifactGatekeeper, log: DecisionLog | None, scraped: CollectorRegistry
) -> AsyncIterator[SignalDrift]:
    """Hold traffic and feedback against what the calibrator was fitted on, and show it at every scrape."""
    signals = SignalDrift(lambda: gatekeeper.serving)
    watch = None
    if log is not None:
        watch = DriftWatch(
            log,
            gatekeeper,
            tolerance=settings.drift_tolerance,
            delta=settings.drift_delta,
            revoke=settings.drift_action == "revoke",
        )
    metrics = DriftMetrics(signals.look, gatekeeper, lambda: watch.test if watch else None)
    scraped.register(metrics)
    try:
        if watch is not None:
            await watch.start()
        yield signals
    finally:
        if watch is not None:
            await watch.close()
        scraped.unregister(metrics)


@asynccontextmanager
async def watch_gate(
    settings: Settings, gatekeeper: ArtifactGatekeeper, window: TrafficWindow, scraped: CollectorRegistry
) -> AsyncIterator[tuple[GateWatch, BypassWatch]]:
    """Judge whether gating pays, show it at every scrape, and bypass the gate where the operator wants that."""
    if settings.objective is Objective.MONEY and settings.tariff.is_free:
        raise ConfigurationError("FETCHWISE_OBJECTIVE=money needs prices: set FETCHWISE_TARIFF_PROMPT_TOKEN and others")

    def deciding() -> Artifact | None:
        return gatekeeper.gate(collection=settings.collection, max_tokens=settings.max_tokens).artifact

    def reference() -> int:
        artifact = deciding()
        return artifact.fallback_action if artifact else FULL

    def version() -> str | None:
        artifact = deciding()
        return artifact.version if artifact else None

    def in_force() -> InForce:
        standing = gatekeeper.standing()
        # A calibrator that decides nothing is shown as none, whatever lies in the folder.
        version = standing.version if standing.matches else None
        return InForce(version, standing.certified, reference(), revoked=standing.revoked)

    gate_watch = GateWatch(window, seconds=settings.break_even_window_s, reference=reference, tariff=settings.tariff)
    bypass = BypassWatch(
        gate_watch, objective=settings.objective, calibrator=version, enabled=settings.bypass == "auto"
    )
    metrics = GateMetrics(in_force, gate_watch.look, bypass.on)
    scraped.register(metrics)
    try:
        async with _meanwhile(bypass.keep_considering(), "judge whether to bypass the gate"):
            yield gate_watch, bypass
    finally:
        scraped.unregister(metrics)


@dataclass(frozen=True, slots=True)
class Learning:
    """What is switched on; None where it is not."""

    # Counts what learning costs, as an observer of every decision.
    budget: Budget | None = None
    explorer: DiceExplorer | None = None
    shadows: ShadowRunner | None = None


@asynccontextmanager
async def open_learning(
    settings: Settings,
    parts: Parts,
    gatekeeper: ArtifactGatekeeper,
    log: DecisionLog | None,
    *,
    on_shadow: Callable[[str], None],
) -> AsyncIterator[Learning]:
    """Draw as the settings say; without a log nothing could be learned, so nothing is drawn."""
    if settings.shadow_share and settings.log_texts == "hash":
        raise ConfigurationError(
            "FETCHWISE_SHADOW_SHARE needs the texts, or nobody could ever judge a shadow run: set it to 0, or "
            "FETCHWISE_LOG_TEXTS=full"
        )
    if log is None or not (settings.explore_share or settings.shadow_share):
        yield Learning()
        return
    budget = Budget(settings.learning_budget)
    shadows = ShadowRunner(
        settings.shadow_share,
        budget,
        reader=parts.reader,
        embedder=parts.embedder,
        retriever=parts.vectors,
        identity=lambda: gatekeeper.running,
        on_done=log.observe,
        on_end=on_shadow,
    )
    shadows.start()
    try:
        yield Learning(
            budget,
            DiceExplorer(settings.explore_share, budget) if settings.explore_share else None,
            shadows if settings.shadow_share else None,
        )
    finally:
        await shadows.close()


@asynccontextmanager
async def watch_loop(lag: LoopLag) -> AsyncIterator[None]:
    """Keep measuring meanwhile how late the event loop is."""
    async with _meanwhile(lag.measure(), "measure the event loop's lag"):
        yield


@asynccontextmanager
async def watch_parts(pings: Pings, traffic: TrafficMetrics) -> AsyncIterator[None]:
    """Keep pinging the parts meanwhile, so that the metrics tell which of them answer."""
    async with _meanwhile(watch(pings, traffic.parts), "ping the parts"):
        yield


@asynccontextmanager
async def _meanwhile(work: Coroutine[None, None, None], name: str) -> AsyncIterator[None]:
    """Do the work beside what is within. That it fails is told: from then on nobody watches."""
    working = asyncio.create_task(work, name=name)
    working.add_done_callback(_tell_of_failure)
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def _tell_of_failure(working: "asyncio.Task[None]") -> None:
    if not working.cancelled() and (error := working.exception()) is not None:
        logger.error("gave up to %s until the next start", working.get_name(), exc_info=error)
