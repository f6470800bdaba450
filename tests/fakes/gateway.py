"""The builder of test gateways: the whole application on fakes, started, with a client."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from fastapi import FastAPI
from httpx_sse import EventSource
from prometheus_client.parser import text_string_to_metric_families

from app.calibrators.store import ArtifactStore
from app.core.artifact import Artifact
from app.core.available import Passage
from app.core.policy import DEFAULT_KS
from app.ports import VectorStore
from app.settings import Settings, read_settings
from app.upstream.parts import Parts
from app.wiring.gateway import PartsOpener, create_app
from tests.fakes.artifacts import a_line, an_artifact
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.reader import FakeReader
from tests.fakes.retriever import FakeRetriever
from tests.waiting import until

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


# The name by which clients of tests call it.
HOST = "gateway"
ASKED = "What is the capital of France?"
Event = tuple[str, dict[str, Any]]


class Fakes(NamedTuple):
    """The three upstreams of a gateway; the vectors may be a real store."""

    reader: FakeReader
    embedder: FakeEmbedder
    vectors: Any


@dataclass(frozen=True)
class Asking:
    """A running gateway, its client, and shortcuts for requests."""

    client: httpx.AsyncClient
    app: FastAPI

    async def refresh(self) -> None:
        """Update what pages, `/metrics` and `/readyz` show, without waiting for the next run."""
        snapshots = self.app.state.gateway.snapshots
        await snapshots.ping()
        await snapshots.refresh()
        await snapshots.estimate()

    async def ask(self, question: str = ASKED, *, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        """The reply to a question."""
        return await self.client.post("/answer", json={"question": question} | body, headers=headers)

    async def receipt(self, question: str = ASKED, **body: Any) -> dict[str, Any]:
        """The receipt of an answered question."""
        response = await self.ask(question, **body)
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def events(self, question: str = ASKED, **body: Any) -> list[Event]:
        """The events of a question answered by a stream."""
        response = await self.ask(question, stream=True, **body)
        assert response.status_code == 200, response.text
        return events_of(response)

    async def metric(self, name: str, **labels: str) -> float:
        """One number of /metrics, or 0 if it does not exist."""
        return (await self.metrics()).get((f"fetchwise_{name}", tuple(sorted(labels.items()))), 0.0)

    async def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Every number of /metrics by name and labels, parsed as Prometheus does."""
        response = await self.client.get("/metrics")
        assert response.status_code == 200
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        }


@dataclass(frozen=True)
class FakeGateway(Asking):
    """A running gateway, its fakes, and its client."""

    settings: Settings
    reader: FakeReader
    embedder: FakeEmbedder
    vectors: Any

    def logged(self, table: str) -> list[sqlite3.Row]:
        """The rows of a table of the decision log, read as any other program would."""
        with closing(sqlite3.connect(self.settings.server.data_dir / "decisions.sqlite3")) as connection:
            connection.row_factory = sqlite3.Row
            return connection.execute(f"SELECT * FROM {table} ORDER BY seq").fetchall()

    async def straight(
        self, body: bytes, *, path: str = "/answer", presented: str = "", left: asyncio.Event | None = None
    ) -> tuple[int, bytes]:
        """One request without a client library, by a client that disconnects once `left` is set: status and body."""
        headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {presented}".encode())]
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
                 "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"", "headers": headers,
                 "client": ("127.0.0.1", 1), "server": ("gateway", 80)}  # fmt: skip
        coming = iter([{"type": "http.request", "body": body, "more_body": False}])
        sent: list[Any] = []

        async def receive() -> Any:
            if (message := next(coming, None)) is not None:
                return message
            await (left or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    @asynccontextmanager
    async def busy(self, questions: int = 1) -> AsyncIterator[list["asyncio.Task[httpx.Response]"]]:
        """Hold permits inside this context by questions that do not end; other questions are answered."""
        before, self.reader.hang = self.reader.hanging, True
        tasks = [asyncio.create_task(self.ask()) for _ in range(questions)]
        await until(lambda: self.reader.hanging == before + questions)
        self.reader.hang = False
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def events_of(response: httpx.Response) -> list[Event]:
    """The events of a stream, by name and data."""
    assert response.headers["content-type"].startswith("text/event-stream")
    return [(one.event, json.loads(one.data)) for one in EventSource(response).iter_sse()]


def fake_parts_opener(reader: FakeReader, embedder: FakeEmbedder, vectors: VectorStore) -> PartsOpener:
    """Open these fakes instead of the configured upstreams, and close them as the real ones are closed."""

    @asynccontextmanager
    async def opened(_: Settings) -> AsyncIterator[Parts]:
        try:
            yield Parts(reader, embedder, vectors)
        finally:
            for part in (reader, embedder, vectors):
                await part.close()

    return opened


async def filled(
    vectors: VectorStore, embedder: FakeEmbedder, collection: str = "demo", corpus: Iterable[Passage] = CORPUS
) -> None:
    """Put passages into a collection, without changing the counts of the fakes."""
    passages = list(corpus)
    await vectors.create(collection, dimension=embedder.dimension)
    stored = await embedder.embed_passages([f"{passage.title} {passage.text}" for passage in passages])
    await vectors.add(collection, passages, stored)


async def matching(
    reader: FakeReader,
    embedder: FakeEmbedder,
    *,
    collection: str = "demo",
    max_tokens: int = 48,
    ks: tuple[int, ...] = DEFAULT_KS,
    **changes: Any,
) -> Artifact:
    """An artifact that was fitted on exactly these fakes, unless `changes` has another identity."""
    identified = await reader.identify()
    identity = replace(identified, embedder=embedder.name, collection=collection, max_tokens=max_tokens, ks=ks)
    by_k = {"ks": ks, "calibrators": {k: a_line() for k in ks}, "fallback_k": ks[1]}
    return an_artifact(**({"identity": identity} | by_k | changes))


def publish(folder: Path | str, artifact: Artifact) -> None:
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
    """Run a gateway; `artifact` holds changes to a matching artifact (None: no calibrator)."""
    reader, embedder, vectors = fakes or Fakes(FakeReader(), FakeEmbedder(), FakeRetriever())
    places = {"calibrators": tmp_path / "calibrators", "data_dir": tmp_path / "data"}
    chosen = read_settings(**places | {"allowed_hosts": HOST} | settings)
    if collection:
        await filled(vectors, embedder, chosen.vectors.collection)
    if artifact is not None:
        of_it: dict[str, Any] = {
            "collection": chosen.vectors.collection,
            "max_tokens": chosen.reader.max_tokens,
            "ks": chosen.calibration.ks,
        }
        publish(chosen.calibration.where, await matching(reader, embedder, **(of_it | artifact)))
    app = create_app(chosen, parts_opener=fake_parts_opener(reader, embedder, vectors))
    async with app.router.lifespan_context(app), client_of(app) as client:
        yield FakeGateway(client, app, chosen, reader, embedder, vectors)


def client_of(app: FastAPI) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    """A client that receives an unexpected exception as a 500, as a real client would."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}")
