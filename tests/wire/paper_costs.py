"""A reader, an embedder and vectors behind one address, with the response times of the paper.

    with paper_upstream(EIGHT_B) as upstream:
        asyncio.run(upstream.publish_gate(folder))
        with gateway(data_dir, **upstream.settings(folder)) as running:
            ...

The reader is sure of the share of answers that the costs call skipped, evenly spread, so a gate with the published
artifact skips exactly that share. Costs can be changed while it serves. The time of the gateway and the network
is added to this and does not scale: choose a large scale to make it negligible.
"""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from app.settings import Settings
from app.upstream.parts import identity_of, open_parts
from tests.fakes.artifacts import an_artifact
from tests.fakes.gateway import publish
from tests.fakes.reader import surely

MODEL, EMBEDDER, COLLECTION = "paper-reader", "paper-embedder", "demo"
# The share of retrieval time spent on embedding the question; the rest is the search.
_EMBEDDING = 0.3
_DIMENSION = 8
_PASSAGE = re.compile(r"^\[\d+\] ", re.MULTILINE)
# Its multiples are spread evenly over [0, 1), so any run of questions has the same share below any number.
_GOLDEN = 0.6180339887498949
# The reader's confidence in answers that the artifact's thresholds send to zero, one and five passages.
_SURE, _HALF_SURE, _UNSURE, _HOPELESS = 0.9, 0.6, 0.3, 0.1
# A question with this text is withheld whatever is read.
HOPELESS = "hopeless"


@dataclass(frozen=True, slots=True)
class PaperCosts:
    """Milliseconds per stage, the share of questions that skip retrieval, and the share that read one passage."""

    cb: float
    ret: float
    ob1: float
    ob5: float
    skip: float
    one: float = 0.0


EIGHT_B = PaperCosts(cb=64.6, ret=27.5, ob1=61.4, ob5=80.0, skip=0.335)
# For tests that do not measure time.
QUICK = PaperCosts(cb=2.0, ret=2.0, ob1=2.0, ob5=4.0, skip=0.4, one=0.3)
THIRTY_TWO_B = PaperCosts(cb=161.1, ret=27.5, ob1=257.0, ob5=319.0, skip=0.542)


class PaperUpstream:
    """Answers every call that a gateway makes to its three upstreams.

    `down` makes an upstream answer 503; while `held`, no call returns. The reader never knows the answer to `HOPELESS`.
    """

    def __init__(self, costs: PaperCosts, scale: float) -> None:
        self.costs = costs
        self.scale = scale
        self.down: set[str] = set()
        self.held = False
        self.url = ""
        self.probes = 0

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

    async def publish_gate(self, calibrators: Path, **changes: Any) -> None:
        """Publish an artifact that matches these upstreams; without a gate, five passages are read."""
        settings = Settings.of(**self.settings(calibrators))
        async with open_parts(settings) as parts:
            identity = await identity_of(parts.reader, parts.embedder, settings)
        await asyncio.to_thread(
            publish, calibrators, an_artifact(**({"identity": identity, "fallback_k": 5} | changes))
        )

    async def handle(self, request: web.Request) -> web.Response:
        """Answer any request, after the time that it costs."""
        body = json.loads(raw) if (raw := await request.read()) else {}
        part, reply = "", dict[str, Any]()
        points = f"/collections/{COLLECTION}/points"
        match f"{request.method} {request.path.replace(points, '/points')}":
            case "GET /v1/models":
                part, reply = "reader", {"data": [{"id": MODEL, "max_model_len": 8192}]}
            case "POST /apply-template":
                part, reply = "reader", {"prompt": "a template"}
            case "POST /v1/chat/completions":
                part, reply = "reader", await self._generated(body["messages"][0]["content"])
            case "POST /v1/embeddings":
                part, reply = "embedder", await self._embedded(body["input"])
            case "GET /collections":
                part, reply = "vectors", _ok({"collections": [{"name": COLLECTION}]})
            case "POST /points/count":
                part, reply = "vectors", _ok({"count": 1000})
            case "POST /points/query":
                part, reply = "vectors", await self._found(body["limit"])
            case _:
                raise web.HTTPNotFound
        return web.json_response(reply, status=503 if part in self.down else 200)

    async def _embedded(self, texts: list[str]) -> dict[str, Any]:
        if texts != ["ping"]:
            await self._spend(self.costs.ret * _EMBEDDING)
        vector = [1.0] + [0.0] * (_DIMENSION - 1)
        return {"data": [{"index": index, "embedding": vector} for index in range(len(texts))]}

    async def _found(self, limit: int) -> dict[str, Any]:
        await self._spend(self.costs.ret * (1.0 - _EMBEDDING))
        return _ok({"points": [_point(number) for number in range(limit)]})

    async def _generated(self, content: str) -> dict[str, Any]:
        passages = len(_PASSAGE.findall(content))
        sure = _HOPELESS if HOPELESS in content else _SURE if passages else self._how_sure()
        await self._spend(self.costs.ob5 if passages > 1 else self.costs.ob1 if passages else self.costs.cb)
        entries = [_token("Kingston", sure), _token("<|im_end|>", _SURE)]
        choice = {"message": {"content": "Kingston"}, "logprobs": {"content": entries}, "finish_reason": "stop"}
        return {"choices": [choice], "usage": {"prompt_tokens": len(content) // 4, "completion_tokens": 2}}

    def _how_sure(self) -> float:
        self.probes += 1
        place = self.probes * _GOLDEN % 1.0
        if place < self.costs.skip:
            return _SURE
        return _HALF_SURE if place < self.costs.skip + self.costs.one else _UNSURE

    async def _spend(self, ms: float) -> None:
        await asyncio.sleep(ms * self.scale / 1000.0)
        while self.held:  # noqa: ASYNC110 - changed by another thread
            await asyncio.sleep(0.02)


def _token(text: str, sure: float) -> dict[str, Any]:
    logprobs = surely(sure)
    top = [{"token": f"t{rank}", "logprob": logprob} for rank, logprob in enumerate(logprobs.top)]
    return {"token": text, "logprob": logprobs.logprob, "bytes": list(text.encode()), "top_logprobs": top}


def _point(number: int) -> dict[str, Any]:
    text = "Kingston is the capital of Jamaica. " * 4
    payload = {"id": f"p{number}", "title": "Jamaica", "text": text, "fields": {}, "terms": []}
    return {"id": number, "version": 1, "score": 0.9 - 0.1 * number, "payload": payload}


def _ok(result: dict[str, Any]) -> dict[str, Any]:
    return {"result": result, "status": "ok", "time": 0.001}


@contextmanager
def paper_upstream(costs: PaperCosts, *, scale: float = 1.0) -> Iterator[PaperUpstream]:
    """Serve on a free port, on an event loop in its own thread; `scale` multiplies every duration."""
    upstream = PaperUpstream(costs, scale)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="paper upstream", daemon=True)
    thread.start()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", upstream.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        host, port = runner.addresses[0][:2]
        upstream.url = f"http://{host}:{port}"
        yield upstream
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
