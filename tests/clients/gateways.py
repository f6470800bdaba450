"""Gateways for client libraries to call, and a reader for them that can call tools and write JSON."""

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from app.settings import Settings
from app.upstream.parts import identity_of, open_parts
from tests.e2e.processes import REPO, gateway
from tests.fakes.artifacts import an_artifact
from tests.fakes.gateway import publish
from tests.fakes.keys import make_key
from tests.wire.embedding_server import embedding_server
from tests.wire.reader_server import MODEL, Dialect, ReaderServer
from tests.wire.servers import handling

T = TypeVar("T")
# A question that the gateways abstain from: it is about none of their documents, and the simulated reader is unsure.
UNSURE = "How long must sourdough bread bake?"


class ToolReader(ReaderServer):
    """Calls the first tool that it is offered, and writes JSON where it must; else it answers as the other does."""

    def _generate(self, body: Any) -> Any:
        """The answer to `UNSURE` with tokens of a low probability."""
        answer = super()._generate(body)
        if UNSURE not in str(body["messages"][-1]["content"]):
            return answer
        unsure = [{"token": f"t{rank}", "logprob": -3.1, "bytes": [116]} for rank in range(20)]
        entries = [piece.entry | {"logprob": -3.1, "top_logprobs": unsure} for piece in answer.pieces]
        pieces = [replace(piece, entry=entry) for piece, entry in zip(answer.pieces, entries, strict=True)]
        return replace(answer, pieces=pieces)

    async def _chat(self, request: web.Request, body: Any) -> web.StreamResponse:
        if body.get("tools") and body.get("tool_choice") != "none" and body["messages"][-1]["role"] == "user":
            function = body["tools"][0]["function"]
            made = {"name": function["name"], "arguments": json.dumps(_instance(function.get("parameters", {})))}
            call = {"id": "call_1", "type": "function", "function": made}
            return await _reply(request, body, {"content": None, "tool_calls": [call]}, "tool_calls")
        wanted = body.get("response_format") or {}
        if wanted.get("type") == "json_schema":
            text = json.dumps(_instance(wanted["json_schema"]["schema"]))
            return await _reply(request, body, {"content": text}, "stop")
        return await super()._chat(request, body)


def _instance(schema: Any, defs: Any = None) -> Any:
    """The smallest value that a schema allows."""
    defs = schema.get("$defs", defs)
    if "$ref" in schema:
        return _instance(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _instance(schema["anyOf"][0], defs)
    match schema.get("type"):
        case "object":
            return {name: _instance(one, defs) for name, one in schema.get("properties", {}).items()}
        case "array":
            return [_instance(schema["items"], defs)]
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case "null":
            return None
    return "Kingston"


async def _reply(request: web.Request, body: Any, message: Any, finish: str) -> web.StreamResponse:
    about = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    if not body.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", **message}, "logprobs": None, "finish_reason": finish}
        return web.json_response({**about, "object": "chat.completion", "choices": [choice], "usage": usage})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    calls = [{"index": 0, **call} for call in message.get("tool_calls", [])]
    begun = message | ({"tool_calls": calls} if calls else {})
    for delta, finished in ((begun, None), ({}, finish)):
        choice = {"index": 0, "delta": {"role": "assistant", **delta}, "logprobs": None, "finish_reason": finished}
        event = {**about, "object": "chat.completion.chunk", "choices": [choice]}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    if (body.get("stream_options") or {}).get("include_usage"):
        last = {**about, "object": "chat.completion.chunk", "choices": [], "usage": usage}
        await response.write(b"data: " + json.dumps(last).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


@contextmanager
def simulated_gateway(folder: Path) -> Iterator[dict[str, Any]]:
    """A gateway with such a reader and a calibrator that matches; the servers run in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def do(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    stack = AsyncExitStack()
    try:
        reader = do(stack.enter_async_context(handling(ToolReader(Dialect.VLLM).handle, client_max_size=2**24)))
        embedder = do(stack.enter_async_context(embedding_server())).url
        settings = {
            "reader": reader,
            "reader_model": MODEL,
            "embedder": embedder,
            "embedder_model": "hashed-words",
            "calibrators": str(folder / "calibrators"),
        }
        asyncio.run(_calibrate(Settings.of(**settings, data_dir=folder / "other")))
        with gateway_for_clients(folder, **settings) as gateway:
            yield gateway | {"calls_tools": "always"}
    finally:
        do(stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _calibrate(settings: Settings) -> None:
    async with open_parts(settings) as parts:
        running = await identity_of(parts.reader, parts.embedder, settings)
    publish(settings.calibration.where, an_artifact(identity=running))


@contextmanager
def gateway_for_clients(folder: Path, **settings: Any) -> Iterator[dict[str, Any]]:
    """A gateway with a few passages; yields what a client's program needs.

    `key` may do everything, and each of `limited` may send one request a minute.
    """
    lines = (REPO / "demo/passages.jsonl").read_text().splitlines()
    seed = folder / "seed.jsonl"
    seed.write_text("\n".join([line for line in lines if "Jamaica" in line] + lines[:10]) + "\n")
    keys = folder / "data" / "keys.json"
    _, key = make_key(keys, "everything")
    limited = [make_key(keys, f"limited {number}", per_minute=1)[1] for number in range(20)]
    with gateway(folder / "data", seed=str(seed), request_timeout_s="240", **settings) as running:
        yield {"url": running.url, "key": key, "limited": limited}
