"""The whole gateway over fakes: its application, started, with a client that speaks to it in the process."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from fastapi import FastAPI

from app.adapters.artifact_store import ArtifactStore
from app.decision.artifact import Artifact
from app.main import PartsOpener, create_app
from app.parts import KS, Parts
from app.ports import Passage, VectorStore
from app.settings import Settings
from tests.fakes.artifacts import an_artifact
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.reader import FakeReader
from tests.fakes.retriever import FakeRetriever

COUNTRIES = ("France", "Italy", "Japan", "Zubrovia", "Elbonia", "Ruritania", "Freedonia")
CORPUS = tuple(
    Passage(
        id=f"p{number}",
        title=country,
        text=f"The capital of {country} is {country[:4]}ville.",
        payload={"lang": "en", "number": number},
    )
    for number, country in enumerate(COUNTRIES, start=1)
)


class Fakes(NamedTuple):
    """The three parts of a gateway."""

    reader: FakeReader
    embedder: FakeEmbedder
    vectors: FakeRetriever


@dataclass(frozen=True, slots=True)
class FakeGateway:
    """A running gateway, the fakes behind it, and a client in front of it."""

    app: FastAPI
    client: httpx.AsyncClient
    settings: Settings
    reader: FakeReader
    embedder: FakeEmbedder
    vectors: FakeRetriever


def fake_parts_opener(reader: FakeReader, embedder: FakeEmbedder, vectors: VectorStore) -> PartsOpener:
    """Open these fakes instead of what the settings name, and close them as the real ones are closed."""

    @asynccontextmanager
    async def opened(_: Settings) -> AsyncIterator[Parts]:
        try:
            yield Parts(reader, embedder, vectors)
        finally:
            for part in (reader, embedder, vectors):
                await part.close()

    return opened


async def filled(vectors: FakeRetriever, embedder: FakeEmbedder, collection: str = "demo") -> None:
    """Put the corpus into a collection, without leaving a trace in what the fakes have counted."""
    await vectors.create(collection, dimension=embedder.dimension)
    stored = await embedder.embed_passages([f"{passage.title} {passage.text}" for passage in CORPUS])
    await vectors.add(collection, CORPUS, stored)


async def matching(
    reader: FakeReader, embedder: FakeEmbedder, *, collection: str = "demo", max_tokens: int = 24, **changes: Any
) -> Artifact:
    """An artifact that was fitted on exactly these fakes, unless `changes` has another identity."""
    identified = await reader.identify()
    identity = identified.within(embedder=embedder.name, collection=collection, max_tokens=max_tokens, ks=KS)
    return an_artifact(**({"identity": identity} | changes))


def publish(folder: Path, artifact: Artifact) -> None:
    """Make an artifact the current one of a folder."""
    store = ArtifactStore(folder)
    store.publish(artifact)
    store.promote(artifact.version)


@asynccontextmanager
async def fake_gateway(
    tmp_path: Path,
    *,
    artifact: dict[str, Any] | None = None,
    collection: bool = True,
    fakes: Fakes | None = None,
    **settings: Any,
) -> AsyncIterator[FakeGateway]:
    """Run a gateway: `artifact` are the changes to a matching one (None: there is no calibrator)."""
    reader, embedder, vectors = fakes or Fakes(FakeReader(), FakeEmbedder(), FakeRetriever())
    chosen = Settings(calibrators=tmp_path / "calibrators", data_dir=tmp_path / "data", **settings)
    if collection:
        await filled(vectors, embedder, chosen.collection)
    if artifact is not None:
        publish(chosen.calibrators, await matching(reader, embedder, **artifact))
    app = create_app(chosen, parts_opener=fake_parts_opener(reader, embedder, vectors))
    async with app.router.lifespan_context(app), client_of(app) as client:
        yield FakeGateway(app, client, chosen, reader, embedder, vectors)


def client_of(app: FastAPI) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    """A client that sees an unforeseen exception as a real one would: as a 500."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")
