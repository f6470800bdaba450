"""Gateways for client libraries to call, and a reader for them that can call tools and write JSON."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.e2e.processes import REPO, gateway
from tests.fakes.keys import make_key
from tests.wire.reader_server import Dialect, ReaderServer
from tests.wire.servers import handling


class ToolReader(ReaderServer):
    """Calls the first tool that it is offered, and writes JSON where it must; else it answers as the other does."""

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
    for delta, finished in ((message, None), ({}, finish)):
        if delta.get("tool_calls"):
            delta = delta | {"tool_calls": [{"index": 0, **call} for call in delta["tool_calls"]]}
        choice = {"index": 0, "delta": {"role": "assistant", **delta}, "logprobs": None, "finish_reason": finished}
        event = {**about, "object": "chat.completion.chunk", "choices": [choice]}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    if (body.get("stream_options") or {}).get("include_usage"):
        last = {**about, "object": "chat.completion.chunk", "choices": [], "usage": usage}
        await response.write(b"data: " + json.dumps(last).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


@contextmanager
def tool_reader() -> Iterator[str]:
    """Serve such a reader in a thread; yields its URL."""
    ready, done = threading.Event(), asyncio.Event()
    url: list[str] = []

    async def serve() -> None:
        async with handling(ToolReader(Dialect.VLLM).handle, client_max_size=2**24) as at:
            url.append(at)
            ready.set()
            await done.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield url[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


@contextmanager
def gateway_for_clients(folder: Path, **settings: str) -> Iterator[dict[str, Any]]:
    """A gateway with a few passages; yields what a client's program needs.

    `key` may do everything, `nothing` finds no passages, and each of `limited` may send one request a minute.
    """
    lines = (REPO / "demo/passages.jsonl").read_text().splitlines()
    seed = folder / "seed.jsonl"
    seed.write_text("\n".join([line for line in lines if "Jamaica" in line] + lines[:10]) + "\n")
    keys = folder / "data" / "keys.json"
    _, key = make_key(keys, "everything")
    _, nothing = make_key(keys, "nothing", filter={"language": "none"})
    limited = [make_key(keys, f"limited {number}", per_minute=1)[1] for number in range(20)]
    with gateway(folder / "data", seed=str(seed), request_timeout_s="240", **settings) as running:
        yield {"url": running.url, "key": key, "nothing": nothing, "limited": limited}
