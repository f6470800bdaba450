"""The systems under test: each is a process on the first core, while load and upstreams share the second."""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bench.gateway import replies
from bench.gateway.load import Target, request
from bench.gateway.processes import printed, running
from tests.e2e.processes import REPO, command_environment, free_port

# Different questions, so no system can cache answers; the same questions for every system.
QUESTIONS = 1000
_ANSWERED = [path for path in replies.PATHS if path != "chat"]
UVICORN = ("--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning")
# A separate environment: its pinned versions conflict with the project's dependencies.
LITELLM = REPO / ".venv-litellm/bin/litellm"


@dataclass(frozen=True)
class System:
    """A running system: its process, and the requests for each of its paths."""

    name: str
    pid: int
    targets: dict[str, Target]


def cores() -> tuple[int, int]:
    """One core for the measured system and one for the load."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        print("only one core: load, upstreams and systems share it, and all figures are too low", file=sys.stderr)
    return mine[0], mine[-1]


def direct(upstream: int) -> Target:
    """The reader without a gateway."""
    return _chats(upstream)


@asynccontextmanager
async def fetchwise(
    upstream: int, folder: Path, core: int, *, name: str = "fetchwise", checkout: Path = REPO, **settings: str
) -> AsyncIterator[System]:
    """The gateway with everything on: keys, metrics, and the decision log in SQLite; one worker."""
    port, url = free_port(), f"http://127.0.0.1:{upstream}"
    named = {
        "port": str(port),
        "reader": url,
        "reader_model": replies.MODEL,
        "vectors": url,
        "embedder": url,
        "embedder_model": replies.EMBEDDER,
        "collection": replies.COLLECTION,
        "calibrators": str(folder / "calibrators"),
    } | settings
    # First on the path: an editable install may point to another checkout.
    env = command_environment(folder, **named) | {"PYTHONPATH": str(checkout)}
    key = await printed([sys.executable, "-m", "bench.gateway.prepare"], env, checkout)
    command = [sys.executable, "-c", "from app.cli import main; main()", "serve"]
    ready = f"http://127.0.0.1:{port}/readyz"
    async with running(command, env, ready, folder / "log", core, cwd=checkout) as pid:
        targets = {
            path: _answers(port, path, lambda asked: {"question": asked}, [("authorization", f"Bearer {key}")])
            for path in _ANSWERED
        }
        targets["chat"] = _conversations(port, [("authorization", f"Bearer {key}")])
        yield System(name, pid, targets)


@asynccontextmanager
async def passthrough(client: str, upstream: int, folder: Path, core: int) -> AsyncIterator[System]:
    """A bare pass-through with this HTTP client, on the same server as the gateway."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"bench.gateway.passthrough:with_{client}", "--port", str(port)]
    env = command_environment(folder) | {"BENCH_UPSTREAM": f"http://127.0.0.1:{upstream}"}
    async with running([*command, *UVICORN], env, f"http://127.0.0.1:{port}/docs", folder / "log", core) as pid:
        targets = {
            path: _answers(port, path, lambda asked, k=int(path[1:]): {"question": asked, "k": k}) for path in _ANSWERED
        }
        targets["chat"] = _conversations(port)
        yield System(client, pid, targets)


@asynccontextmanager
async def litellm(upstream: int, folder: Path, core: int) -> AsyncIterator[System]:
    """A LiteLLM proxy with one worker, without keys, database or callbacks. It does not retrieve, so it has only k0."""
    port, config = free_port(), folder / "config.yaml"
    of_reader = {"model": f"hosted_vllm/{replies.MODEL}", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "-"}
    # JSON is valid YAML.
    config.write_text(json.dumps({"model_list": [{"model_name": replies.MODEL, "litellm_params": of_reader}]}))
    env = command_environment(folder) | {
        "LITELLM_OFFLINE_MODE": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
    }
    command = [str(LITELLM), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    command += ["--telemetry", "False"]
    async with running(command, env, f"http://127.0.0.1:{port}/health/liveliness", folder / "log", core) as pid:
        yield System("litellm", pid, {"k0": _chats(port)})


Opener = Callable[[int, Path, int], AbstractAsyncContextManager[System]]
OPENERS: dict[str, Opener] = {
    "fetchwise": fetchwise,
    "aiohttp": lambda *at: passthrough("aiohttp", *at),
    "httpx": lambda *at: passthrough("httpx", *at),
    "litellm": litellm,
}


def _answers(
    port: int, path: str, body: Callable[[str], dict[str, Any]], headers: Iterable[tuple[str, str]] = ()
) -> Target:
    """Questions to `/answer` that take this path; a good reply reports it."""
    asked = (body(replies.question(path, number)) for number in range(QUESTIONS))
    requests = tuple(request("/answer", orjson.dumps(one), headers) for one in asked)
    return Target(port, requests, f'"k":{path[1:]},'.encode())


def _conversations(port: int, headers: Iterable[tuple[str, str]] = ()) -> Target:
    """Conversations with parameters of their own; a good reply was written with five passages."""
    requests = []
    for number in range(QUESTIONS):
        body = {"model": "fetchwise", "messages": replies.conversation(number), **replies.PARAMETERS}
        requests.append(request("/v1/chat/completions", orjson.dumps(body), headers))
    return Target(port, tuple(requests), b'"k":5')


def _chats(port: int) -> Target:
    """The same questions as the gateway's probe sends them to the reader."""
    body = {"max_tokens": 48, "temperature": 0, "logprobs": True, "top_logprobs": 20, "stop": ["\n"]}
    requests = []
    for number in range(QUESTIONS):
        content = f"Answer the question in a few words.\n\nQuestion: {replies.question('k0', number)}"
        chat = {"model": replies.MODEL, "messages": [{"role": "user", "content": content}]} | body
        requests.append(request("/v1/chat/completions", orjson.dumps(chat)))
    return Target(port, tuple(requests), b'"top_logprobs"')
