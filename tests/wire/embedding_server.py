"""A real HTTP server for `/v1/embeddings` that can be made to misbehave."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.fakes.embedder import hashed_words
from tests.wire.servers import handling

DIMENSION = 256


class EmbeddingServer:
    """Returns the fake embedder's vectors unless `behave` is replaced."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.connections: set[int] = set()
        self.behave: Callable[[web.Request, list[str]], web.StreamResponse] = answer

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(request.headers)
        self.connections.add(id(request.transport))
        return self.behave(request, body["input"])


def vectors(texts: list[str]) -> list[dict[str, Any]]:
    return [{"index": i, "embedding": hashed_words(text, DIMENSION)} for i, text in enumerate(texts)]


def says(data: Any) -> web.Response:
    return web.Response(text=json.dumps({"object": "list", "data": data}), content_type="application/json")


def answer(request: web.Request, texts: list[str]) -> web.Response:
    # In reverse order and not of unit length: the adapter must sort by `index` and normalise.
    return says([entry | {"embedding": [3.0 * x for x in entry["embedding"]]} for entry in reversed(vectors(texts))])


@asynccontextmanager
async def embedding_server() -> AsyncIterator[EmbeddingServer]:
    server = EmbeddingServer()
    async with handling(server._embeddings) as server.url:
        yield server
