"""A real HTTP server that answers searches as Qdrant does over REST, always with the same passages, nearest first."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from app.core.available import Passage
from app.upstream.vectors.payload import point_id, write_payload
from tests.wire.servers import handling


class QdrantServer:
    """Holds one collection."""

    def __init__(self, collection: str, passages: tuple[Passage, ...]) -> None:
        self.url = ""
        self.collection = collection
        self.passages = passages
        self.searches = 0

    async def handle(self, request: web.Request) -> web.Response:
        """Answer the adapter's requests to search, count or ping."""
        body = await request.json() if request.can_read_body else {}
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["collections"]:
                return _ok({"collections": [{"name": self.collection}]})
            case "POST", ["collections", self.collection, "points", "query"]:
                self.searches += 1
                return _ok({"points": [self._point(rank) for rank in range(len(self.passages))][: body["limit"]]})
            case "POST", ["collections", self.collection, "points", "count"]:
                return _ok({"count": len(self.passages)})
            case "POST", ["collections", collection, *_]:
                error = {"status": {"error": f"Not found: Collection `{collection}` doesn't exist!"}, "time": 0.0}
                return web.json_response(error, status=404)
        return web.Response(status=404)

    def _point(self, rank: int) -> dict[str, object]:
        passage = self.passages[rank]
        payload = write_payload(passage)
        return {"id": point_id(passage.id), "version": 1, "score": 0.9 - 0.1 * rank, "payload": payload}


def _ok(result: object) -> web.Response:
    return web.json_response({"result": result, "status": "ok", "time": 0.001})


@asynccontextmanager
async def qdrant_server(collection: str, passages: tuple[Passage, ...]) -> AsyncIterator[QdrantServer]:
    """Serve on a free port."""
    server = QdrantServer(collection, passages)
    async with handling(server.handle) as server.url:
        yield server
