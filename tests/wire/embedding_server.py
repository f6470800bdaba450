"""A real HTTP server that speaks `/v1/embeddings`, and misbehaves on request."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.fakes.embedder import hashed_words

DIMENSION = 256


class EmbeddingServer:
    """Answers with the fake embedder's vectors until `behave` is set to one of this module's faults."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.connections: set[int] = set()
        self.behave: Callable[[web.Request, list[str]], Any] = answer

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(request.headers)
        self.connections.add(id(request.transport))
        reply = self.behave(request, body["input"])
        if asyncio.iscoroutine(reply):
            reply = await reply
        return reply


def vectors(texts: list[str]) -> list[dict[str, Any]]:
    return [{"index": i, "embedding": hashed_words(text, DIMENSION)} for i, text in enumerate(texts)]


def says(data: Any) -> web.Response:
    return web.Response(text=json.dumps({"object": "list", "data": data}), content_type="application/json")


def answer(request: web.Request, texts: list[str]) -> web.Response:
    # Backwards, and at another length: the order is in `index`, and unit length is the adapter's promise.
    return says([entry | {"embedding": [3.0 * x for x in entry["embedding"]]} for entry in reversed(vectors(texts))])


@asynccontextmanager
async def embedding_server() -> AsyncIterator[EmbeddingServer]:
    server = EmbeddingServer()
    app = web.Application()
    app.router.add_post("/v1/embeddings", server._embeddings)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()
