"""Wires the gateway: parts, calibrator, routes and metrics, opened and closed by one lifespan."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from app.adapters.artifact_store import ArtifactStore
from app.adapters.gatekeeper import ArtifactGatekeeper, Standing
from app.answer import Answerer
from app.api.errors import install
from app.api.limits import BodyLimit, Permits
from app.api.routes import Gateway, router
from app.api.schemas import CalibratorState
from app.errors import UnknownCollection, UpstreamUnavailable
from app.observers.prometheus import PrometheusObserver, TrafficMetrics
from app.parts import KS, Parts, open_parts
from app.settings import Settings

PartsOpener = Callable[[Settings], AbstractAsyncContextManager[Parts]]


def create_app(settings: Settings, *, parts_opener: PartsOpener = open_parts) -> FastAPI:
    """Build the gateway; nothing is opened before the lifespan begins."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    traffic = TrafficMetrics(registry)
    observer = PrometheusObserver(registry, traffic)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with parts_opener(settings) as parts:
            gatekeeper = ArtifactGatekeeper(
                ArtifactStore(settings.calibrators),
                parts.reader,
                parts.embedder,
                collection=settings.collection,
                max_tokens=settings.max_tokens,
                ks=KS,
                allow_uncertified=settings.allow_uncertified,
                prices=settings.prices,
                on_change=lambda standing: _export(traffic, standing),
            )
            await gatekeeper.start()
            try:
                app.state.gateway = _gateway(settings, parts, gatekeeper, observer, traffic)
                yield
            finally:
                await gatekeeper.close()

    app = FastAPI(
        title="Fetchwise",
        description="An online RAG gateway that knows before it fetches.",
        version="0.1.0",
        lifespan=lifespan,
    )
    install(app, on_upstream_error=traffic.upstream_error)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.include_router(router)

    @app.get("/metrics", include_in_schema=False)
    @app.get("/metrics/", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        """Everything counted, in the format that the scraper asks for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=content_type)

    return app


def _gateway(
    settings: Settings,
    parts: Parts,
    gatekeeper: ArtifactGatekeeper,
    observer: PrometheusObserver,
    traffic: TrafficMetrics,
) -> Gateway:
    def calibrator() -> CalibratorState:
        standing = gatekeeper.standing()
        return CalibratorState(version=standing.version, certified=standing.certified, problem=standing.problem)

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
            observers=(observer,),
        ),
        permits=Permits(settings.permits, on_began=traffic.began, on_ended=traffic.ended, on_shed=traffic.shed),
        pings={"reader": parts.reader.ping, "embedder": parts.embedder.ping, "vectors": vectors},
        calibrator=calibrator,
        default_policy=settings.policy,
        default_collection=settings.collection,
        default_max_tokens=settings.max_tokens,
        max_question_chars=settings.max_question_chars,
        request_timeout_s=settings.request_timeout_s,
    )


def _export(traffic: TrafficMetrics, standing: Standing) -> None:
    """A calibrator that decides nothing is exported as `none`, whatever lies in the folder."""
    traffic.calibrator(standing.version if standing.matches else None, certified=standing.certified)
