"""The real readers of a live run, each a child process on this machine, and how to tell that one is idle."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.adapters.child_server import ChildServer
from app.adapters.reader_servers import MODEL, embedded_model, llama_server, vllm_server
from app.settings import Settings

# Questions under way, and prompt tokens that were known from earlier prompts, by llama.cpp and by vLLM.
_UNDER_WAY = r"llamacpp:requests_(?:processing|deferred)|vllm:num_requests_(?:running|waiting)"
_CACHED = r"llamacpp:prompt_tokens_cached_total|vllm:prefix_cache_hits_total"
_LOOK_S, _PATIENCE_S = 0.02, 30.0
_VLLM_MODEL = "smollm2"
_BLOCK, _BLOCKS = 32, 64
_VLLM_ARGUMENTS = (
    *("--served-model-name", _VLLM_MODEL),
    *("--dtype", "float32"),
    "--enforce-eager",
    *("--block-size", str(_BLOCK)),
    *("--max-model-len", "1024"),
    # So small a cache that it has forgotten a question by the time that the next system is asked it.
    *("--num-gpu-blocks-override", str(_BLOCKS)),
)
_VLLM_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Reading:
    """A reader that runs: the settings that lead a gateway to it, and where it tells what it does."""

    settings: Settings
    url: str
    client: httpx.AsyncClient

    async def idle(self) -> float:
        """Wait until nothing is under way, so that what one system has cancelled does not slow the next one down.

        Tells how many prompt tokens the reader has taken from its cache so far.
        """
        began = time.monotonic()
        while True:
            told = (await self.client.get(f"{self.url}/metrics")).text
            if _sum(_UNDER_WAY, told) == 0.0:
                return _sum(_CACHED, told)
            if time.monotonic() - began > _PATIENCE_S:
                raise RuntimeError(f"the reader is still at work {_PATIENCE_S:g} s after the last answer")
            await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def embedded(data: Path) -> AsyncIterator[Reading]:
    """The embedded reader, as a gateway starts it by default."""
    defaults = _settings(data, reader="embedded")
    model = await asyncio.to_thread(embedded_model, data / "models")
    server = llama_server(
        model, log_path=data / "reader.log", threads=defaults.reader_threads, slots=defaults.reader_slots
    )
    async with _started(server, data, MODEL) as reading:
        yield reading


@asynccontextmanager
async def vllm(data: Path, *, python: Path, model: Path) -> AsyncIterator[Reading]:
    """Real vLLM on the processor, with the same model in 32 bits."""
    server = vllm_server(
        str(model),
        log_path=data / "vllm.log",
        extra_args=_VLLM_ARGUMENTS,
        env=_VLLM_ENVIRONMENT,
        python=str(python),
    )
    async with _started(server, data, _VLLM_MODEL) as reading:
        yield reading


@asynccontextmanager
async def _started(server: ChildServer, data: Path, model: str) -> AsyncIterator[Reading]:
    url = await server.start()
    try:
        async with httpx.AsyncClient(timeout=_PATIENCE_S) as client:
            yield Reading(_settings(data, reader=url, model=model), url, client)
    finally:
        await server.stop()


def _settings(data: Path, *, reader: str, model: str | None = None) -> Settings:
    return Settings(
        data_dir=data,
        reader=reader,
        reader_model=model,
        # A first answer after a start may take long.
        reader_timeout_s=300.0,
        collection="demo",
        decision_log="off",
    )


def _sum(names: str, told: str) -> float:
    """The sum of all samples of these metrics."""
    found = re.findall(rf"^(?:{names})(?:\{{[^}}]*\}})? (\S+)$", told, re.MULTILINE)
    if not found:
        raise RuntimeError(f"the reader does not tell {names}")
    return sum(map(float, found))
