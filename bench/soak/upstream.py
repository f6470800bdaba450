"""A reader, an embedder and vectors behind one address: they stream, can be slow, and can be made to fail.

The question's own words set the reader's confidence (see `Says`), so the client knows what should happen.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from aiohttp import web

from app.calibrators.store import ArtifactStore
from app.settings import Settings
from app.upstream.parts import identity_of, open_parts
from tests.fakes.artifacts import a_fit, an_artifact
from tests.fakes.reader import pieces, surely
from tests.wire.servers import handling

MODEL, EMBEDDER, COLLECTION = "soak-reader", "soak-embedder", "demo"
# Different thresholds, so a promotion changes the decisions.
VERSIONS = {"v1": (0.75, 0.5), "v2": (0.8, 0.4)}
_DIMENSION = 64
_ANSWER = "Saint Helier is the chief town of the island."
_PASSAGE = "The island lies between two coasts, and its harbour was built of granite by masons from the mainland. " * 5


class Says(StrEnum):
    """Words in a question, and what they make the reader do."""

    K0 = "surely"
    K1 = "perhaps"
    K5 = "hardly"
    ABSTAIN = "hopelessly"


_SURE = {Says.K0: 0.9, Says.K1: 0.6, Says.K5: 0.3, Says.ABSTAIN: 0.1}
# Also in a question: each token then comes so late that a client can disconnect before the last.
SLOWLY = "slowly"
_TOKEN_S = 0.03


class Fault(StrEnum):
    """The ways in which an upstream can fail."""

    REFUSES = "answers 503"
    DISCONNECTS = "disconnects"
    MALFORMED_REPLY = "malformed reply"


class Upstream:
    """Answers every call that a gateway makes to its three upstreams."""

    def __init__(self) -> None:
        self.url = ""
        self._failing: dict[str, Fault] = {}

    @contextmanager
    def failing(self, part: str, fault: Fault) -> Iterator[None]:
        """Make an upstream (reader, embedder or vectors) fail inside this context."""
        self._failing[part] = fault
        try:
            yield
        finally:
            del self._failing[part]

    def settings(self, calibrators: Path) -> dict[str, str]:
        """The settings of a gateway on these upstreams."""
        return {
            "reader": self.url,
            "reader_model": MODEL,
            "vectors": self.url,
            "embedder": self.url,
            "embedder_model": EMBEDDER,
            "collection": COLLECTION,
            "calibrators": str(calibrators),
        }

    async def publish(self, calibrators: Path) -> ArtifactStore:
        """Publish artifacts that match these upstreams; the first one is served."""
        settings = Settings.of(**self.settings(calibrators))
        async with open_parts(settings) as parts:
            identity = await identity_of(parts.reader, parts.embedder, settings)
        store = ArtifactStore(calibrators)
        for version, thresholds in VERSIONS.items():
            store.publish(an_artifact(version=version, identity=identity, policies={"graded": a_fit(*thresholds)}))
        store.promote(next(iter(VERSIONS)))
        return store

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer any request."""
        body = json.loads(raw) if (raw := await request.read()) else {}
        points = f"/collections/{COLLECTION}/points"
        part, reply = "", dict[str, Any]()
        match f"{request.method} {request.path.replace(points, '/points')}":
            case "GET /v1/models":
                part, reply = "reader", {"data": [{"id": MODEL, "max_model_len": 8192}]}
            case "POST /tokenize":
                part, reply = "reader", {"count": 3, "max_model_len": 8192, "tokens": [1, 2, 3]}
            case "POST /v1/chat/completions":
                return self._broken("reader", request) or await _generated(request, body)
            case "POST /v1/embeddings":
                vector = [1.0] + [0.0] * (_DIMENSION - 1)
                entries = [{"index": index, "embedding": vector} for index in range(len(body["input"]))]
                part, reply = "embedder", {"data": entries}
            case "GET /collections":
                part, reply = "vectors", _qdrant({"collections": [{"name": COLLECTION}]})
            case "POST /points/count":
                part, reply = "vectors", _qdrant({"count": 1000})
            case "POST /points/query":
                part, reply = "vectors", _qdrant({"points": [_point(number) for number in range(body["limit"])]})
            case _:
                raise web.HTTPNotFound
        return self._broken(part, request) or web.json_response(reply)

    def _broken(self, part: str, request: web.Request) -> web.Response | None:
        match self._failing.get(part):
            case Fault.REFUSES:
                return web.json_response({"error": {"message": "busy"}}, status=503)
            case Fault.MALFORMED_REPLY:
                return web.Response(text="<html>", content_type="text/html")
            case Fault.DISCONNECTS:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
        return None


async def _generated(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    content = body["messages"][-1]["content"]
    said = next((one for one in Says if one.value in content), Says.K0)
    # Passages make the reader sure, unless nothing does.
    read = "[1] " in content
    sure = 0.95 if read and said is not Says.ABSTAIN else _SURE[said]
    tokens = [*pieces(_ANSWER), "<|im_end|>"]
    usage = {"prompt_tokens": len(content) // 4, "completion_tokens": len(tokens)}
    pause = _TOKEN_S if SLOWLY in content else 0.0
    if not body.get("stream"):
        await asyncio.sleep(pause * len(tokens))
        entries = [_token(token, sure) for token in tokens]
        choice = {"message": {"content": _ANSWER}, "logprobs": {"content": entries}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": usage})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    # A client that no longer waits for the answer disconnects.
    with suppress(ConnectionError):
        await response.prepare(request)
        for token in tokens:
            await asyncio.sleep(pause)
            await response.write(_event({"choices": [_chunk(token, sure, last=token is tokens[-1])]}))
        await response.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
    return response


def _chunk(token: str, sure: float, *, last: bool) -> dict[str, Any]:
    return {
        "index": 0,
        "delta": {"content": "" if last else token},
        "logprobs": {"content": [_token(token, sure)]},
        "finish_reason": "stop" if last else None,
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _token(text: str, sure: float) -> dict[str, Any]:
    logprobs = surely(sure)
    top = [{"token": f"t{rank}", "logprob": logprob} for rank, logprob in enumerate(logprobs.top)]
    return {"token": text, "logprob": logprobs.logprob, "bytes": list(text.encode()), "top_logprobs": top}


def _point(number: int) -> dict[str, Any]:
    payload = {"id": f"p{number}", "title": f"Island {number}", "text": _PASSAGE, "fields": {}, "terms": []}
    return {"id": number, "version": 1, "score": 0.9 - 0.1 * number, "payload": payload}


def _qdrant(result: dict[str, Any]) -> dict[str, Any]:
    return {"result": result, "status": "ok", "time": 0.001}


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    """Serve on a free loopback port."""
    parts = Upstream()
    async with handling(parts.handle) as parts.url:
        yield parts
