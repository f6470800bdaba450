"""The whole gateway with real adapters, and a fault-injecting proxy in front of each upstream."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.settings import Settings
from app.upstream.parts import identity_of, open_parts
from app.wiring.gateway import create_app
from tests.fakes.artifacts import an_artifact
from tests.fakes.gateway import CORPUS, HOST, Asking, client_of, publish
from tests.wire.embedding_server import embedding_server
from tests.wire.fault_proxy import FaultProxy, fault_proxy
from tests.wire.qdrant_server import qdrant_server
from tests.wire.reader_server import MODEL, Dialect, ReaderServer, reader_server


@dataclass(frozen=True)
class ProxiedGateway(Asking):
    """A running gateway, a client for it, and the proxies in front of its upstreams."""

    readers: tuple[FaultProxy, ...]
    embedder: FaultProxy
    vectors: FaultProxy
    servers: tuple[ReaderServer, ...]

    def proxy(self, upstream: str) -> FaultProxy:
        """The proxy in front of an upstream; of several readers, in front of the first."""
        return {"reader": self.readers[0], "embedder": self.embedder, "vectors": self.vectors}[upstream]


@asynccontextmanager
async def proxied_gateway(tmp_path: Path, *, replicas: int = 1, **chosen: Any) -> AsyncIterator[ProxiedGateway]:
    """Run the gateway with a matching calibrator."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(reader_server(Dialect.VLLM)) for _ in range(replicas)]
        embeddings = await stack.enter_async_context(embedding_server())
        qdrant = await stack.enter_async_context(qdrant_server("demo", CORPUS[:5]))
        readers = [await stack.enter_async_context(fault_proxy(server.url)) for server in servers]
        embedder = await stack.enter_async_context(fault_proxy(embeddings.url))
        vectors = await stack.enter_async_context(fault_proxy(qdrant.url))
        by_default: dict[str, Any] = {
            "allowed_hosts": HOST,
            "calibrators": tmp_path / "calibrators",
            "data_dir": tmp_path / "data",
            "reader": ",".join(proxy.url for proxy in readers),
            "reader_model": MODEL,
            "embedder": embedder.url,
            "embedder_model": "hashed-words",
            "vectors": vectors.url,
            # Long enough for a healthy upstream on a slow machine.
            "reader_timeout_s": 60.0,
            "embedder_timeout_s": 60.0,
            "vectors_timeout_s": 60.0,
        }
        settings = Settings.of(**(by_default | chosen))
        async with open_parts(settings) as parts:
            running = await identity_of(parts.reader, parts.embedder, settings)
        publish(settings.calibration.where, an_artifact(identity=running))
        app = create_app(settings)
        await stack.enter_async_context(app.router.lifespan_context(app))
        client = await stack.enter_async_context(client_of(app))
        yield ProxiedGateway(client, app, tuple(readers), embedder, vectors, tuple(servers))
