"""Opens the parts of a gateway, connects them, and keeps them up to date."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from app.access import keys_required
from app.access.keys import KeyFile, KeyStore
from app.answer.answer import Answerer
from app.answer.run import Upstreams
from app.api.app import VERSION, Application, build_app
from app.api.gateway import Gateway
from app.api.http.guard import Guard
from app.api.http.permits import Permits
from app.calibrators import open_drift, open_live_calibrator
from app.calibrators.drift import SignalDrift
from app.core.effective_policy import NOT_SAMPLED
from app.core.policy import AskOptions
from app.core.question import Question
from app.correlation import RequestContextObserver
from app.economics import open_economics
from app.economics.window import TrafficWindow
from app.learning import open_learning, open_log
from app.learning.log import LogMetrics
from app.settings import Settings
from app.storage import open_fleet_rates, open_rows, state_documents
from app.storage.documents import open_documents
from app.storage.folder import FolderDocuments
from app.storage.rates import SharedRates
from app.telemetry import open_tracing
from app.telemetry.decisions import PrometheusObserver
from app.telemetry.gauges import LAG_EVERY_S, Gauges, LoopLag, TrafficMetrics, load, registries
from app.telemetry.snapshot import Snapshots, Sources
from app.upstream.parts import Parts, open_parts
from app.wiring.periodic import Periodic
from app.wiring.policy import resolver

if TYPE_CHECKING:
    from app.telemetry.tracing import Tracing

KEYS_EVERY_S = 1.0
RATES_EVERY_S = 1.0
CALIBRATOR_EVERY_S = 1.0
IDENTITY_EVERY_S = 30.0
DRIFT_EVERY_S = 5.0
BYPASS_EVERY_S = 10.0
# A ping embeds a word and counts the collection's passages, which takes CPU time or money.
PING_EVERY_S = 5.0
SNAPSHOT_EVERY_S = 1.0
PartsOpener = Callable[[Settings], AbstractAsyncContextManager[Parts]]


def create_app(
    settings: Settings, *, parts_opener: PartsOpener = open_parts, shared: Path | None = None
) -> Application:
    """The application of one worker. `shared` is the folder that several workers share; None for a single one."""
    tracing = open_tracing(settings.server, VERSION)
    return build_app(settings, partial(open_gateway, settings, parts_opener, shared, tracing), tracing)


def key_file(where: Path | str) -> KeyFile:
    """The keys in the file at this path, which only its owner may read, or in the database with this URL. Blocks."""
    if "://" in str(where):
        return KeyFile(open_documents(where, "keys", setting="FETCHWISE_KEYS"))
    path = Path(where)
    return KeyFile(FolderDocuments(path.parent, private=True), path.name)


def metrics_folder(shared: Path) -> Path:
    """The folder of the workers' metrics, inside the folder that they share."""
    return shared / "metrics"


@asynccontextmanager
async def open_gateway(
    settings: Settings, parts_opener: PartsOpener, shared: Path | None, tracing: "Tracing | None"
) -> AsyncIterator[Gateway]:
    """Open everything, connect it, and keep it up to date; closed in reverse order."""
    ks, collection = settings.calibration.ks, settings.vectors.collection
    counts = metrics_folder(shared) if shared else None
    registry, scraped = registries(counts)
    traffic_metrics, log_metrics, lag = TrafficMetrics(registry), LogMetrics(registry, ks), LoopLag(registry)
    async with AsyncExitStack() as stack:
        folder = shared or Path(stack.enter_context(TemporaryDirectory(prefix="fetchwise-")))
        parts = await stack.enter_async_context(parts_opener(settings))
        if parts.resilience is not None:
            parts.resilience.watch(
                traffic_metrics.breaker_open,
                traffic_metrics.retried,
                traffic_metrics.reader_called,
                traffic_metrics.reader_pinged,
            )
        # Before the log, which is written first when the gateway stops: the collector of traces may not answer.
        if tracing is not None:
            tracing.on_dropped = traffic_metrics.spans_dropped.inc
            await stack.enter_async_context(tracing)
        rows = await asyncio.to_thread(open_rows, settings)
        log = await stack.enter_async_context(open_log(settings.log, rows, log_metrics))
        required = await asyncio.to_thread(keys_required, settings.access, settings.server.host)
        keys = KeyStore(await asyncio.to_thread(key_file, settings.keys_at), required=required)
        await keys.open()
        rates = stack.enter_context(closing(SharedRates(folder / "limits")))
        fleet = await asyncio.to_thread(open_fleet_rates, settings, rates)
        window = stack.enter_context(closing(TrafficWindow(folder / "traffic")))

        state = state_documents(settings, rows)
        live_calibrator = await asyncio.to_thread(open_live_calibrator, settings, parts.reader, parts.embedder, state)
        traffic, bypass = open_economics(settings.economics, window, ks=ks, status=live_calibrator.status)
        signals = SignalDrift(lambda: live_calibrator.serving)
        drift = open_drift(settings.drift, live_calibrator, log.asked, log.documents) if log else None
        resolve = resolver(settings.calibration, live_calibrator, bypass)
        plain = Question("", "", collection, settings.reader.max_tokens, AskOptions(settings.calibration.policy))
        snapshots = Snapshots(
            Sources(
                pings={**parts.pings(collection), **({} if fleet is None else {"keys": keys.ping})},
                calibrator=live_calibrator.status,
                policy=lambda: resolve(plain, NOT_SAMPLED),
                bypass=bypass.report,
                drift=signals.report,
                evidence=lambda: drift.test.evidence if drift else None,
                load=lambda: load(registry, counts),
                economics=traffic.report,
                on_pinged=traffic_metrics.pinged,
            )
        )
        scraped.register(Gauges(snapshot=lambda: snapshots.latest, version=VERSION, keys=lambda: keys.revision))
        learning = await stack.enter_async_context(
            open_learning(
                settings,
                log,
                reader=parts.reader,
                embedder=parts.embedder,
                retriever=parts.vectors,
                identity=lambda: live_calibrator.running,
                stats=lambda: live_calibrator.stats,
                on_shadow=log_metrics.shadow,
            )
        )
        periodic = await stack.enter_async_context(Periodic(registry))
        observers = (
            *(PrometheusObserver(registry, traffic_metrics, ks), window, log, signals),
            *(learning.budget, RequestContextObserver(), tracing, learning.shadows),
        )
        stages = tracing.stage if tracing else nullcontext
        upstreams = Upstreams(parts.reader, parts.embedder, parts.vectors, stages=stages)
        answerer = Answerer(
            upstreams,
            resolve,
            draw=learning.sampler.draw,
            observers=[one for one in observers if one is not None],
            on_observer_error=periodic.failures_of("observers"),
        )
        await periodic.every(KEYS_EVERY_S, "keys", keys.refresh)
        if fleet is not None:
            await periodic.every(RATES_EVERY_S, "rates", fleet.exchange)
        await periodic.every(CALIBRATOR_EVERY_S, "calibrator", live_calibrator.refresh)
        # Not at once: the calibrator has just identified the reader, or waited until that failed.
        await periodic.every(IDENTITY_EVERY_S, "identity", live_calibrator.identify, at_once=False)
        if drift is not None:
            await periodic.every(DRIFT_EVERY_S, "drift", drift.refresh)
        if bypass.enabled:
            await periodic.every(BYPASS_EVERY_S, "bypass", bypass.refresh)
        await periodic.every(PING_EVERY_S, "pings", snapshots.ping)
        await periodic.every(SNAPSHOT_EVERY_S, "snapshot", snapshots.refresh)
        await periodic.every(LAG_EVERY_S, "event loop lag", lag.measure)
        yield Gateway(
            answerer=answerer,
            upstreams=upstreams,
            guard=Guard(keys, rates),
            permits=Permits(
                settings.permits,
                places=settings.limits.queue,
                max_wait_s=settings.limits.queue_wait_s,
                metrics=traffic_metrics,
                shadows=learning.shadows,
            ),
            metrics=traffic_metrics,
            snapshots=snapshots,
            scraped=scraped,
            live_calibrator=live_calibrator,
            log=log,
            traffic=traffic,
            default_policy=settings.calibration.policy,
            default_collection=collection,
            default_max_tokens=settings.reader.max_tokens,
            max_question_chars=settings.limits.max_question_chars,
            missing=settings.chat.missing,
            strict=settings.chat.strict,
            request_timeout_s=settings.limits.request_timeout_s,
        )
