"""Language models that answer: a client for OpenAI-compatible servers, replicas, and servers run as children.

`upstream.parts` and `cli` import it.
"""

import asyncio
import json
import os
import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from app.core.prompts import DEFAULT, Prompts
from app.errors import ConfigurationError
from app.ports import Reader
from app.settings import groups
from app.upstream.child import ChildServer
from app.upstream.http import UNIX
from app.upstream.readers.balanced import BalancedReader
from app.upstream.readers.openai import OpenAIReader
from app.upstream.readers.servers import MODEL, embedded_model, llama_server, vllm_server
from app.upstream.resilience import Resilience


@asynccontextmanager
async def open_reader(
    settings: groups.Reader, resilience: Resilience, *, data_dir: Path, at_once: int
) -> AsyncIterator[Reader]:
    """Start the server if it is to run here, and open a client to it, or to each replica."""
    async with AsyncExitStack() as stack:
        server = await _server(settings, data_dir)
        if server is None:
            urls, model = settings.urls, settings.model
        else:
            stack.push_async_callback(server.stop)
            urls, model = (await server.start(),), settings.model or MODEL
        if model is None or not urls or not all(url.startswith(("http://", "https://", UNIX)) for url in urls):
            raise ConfigurationError(
                "FETCHWISE_READER is `embedded`, `vllm`, or URLs with http, https or unix; all but the first need "
                "FETCHWISE_READER_MODEL"
            )
        if len(set(urls)) < len(urls):
            raise ConfigurationError("FETCHWISE_READER names the same URL twice")
        # Numbers, not addresses: callers see which one failed.
        clients = {
            f"reader {number}": _client(settings, url, model, at_once=at_once)
            for number, url in enumerate(urls, start=1)
        }
        reader = BalancedReader(clients, resilience)
        stack.push_async_callback(reader.close)
        if len(urls) > 1:
            await reader.start()
        yield reader


def _client(settings: groups.Reader, url: str, model: str, *, at_once: int) -> OpenAIReader:
    return OpenAIReader(
        url,
        model,
        prompts=_prompts(settings.prompts),
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        timeout_s=settings.timeout_s,
        max_connections=at_once * 2,
        quantisation=settings.quantisation,
        chat_template_kwargs={"enable_thinking": False} if settings.thinking == "off" else None,
    )


async def _server(settings: groups.Reader, data_dir: Path) -> ChildServer | None:
    log = data_dir / "reader.log"
    if settings.backend == "embedded":
        model = await asyncio.to_thread(embedded_model, data_dir / "models")
        threads = settings.threads or os.cpu_count() or 1
        return llama_server(model, log_path=log, threads=threads, slots=settings.slots)
    if settings.backend == "vllm":
        if settings.model is None:
            raise ConfigurationError("FETCHWISE_READER=vllm needs FETCHWISE_READER_MODEL: which model to serve")
        return vllm_server(settings.model, log_path=log, extra_args=shlex.split(settings.vllm_args))
    return None


def _prompts(path: Path | None) -> Prompts:
    """The built-in templates, or the operator's own."""
    if path is None:
        return DEFAULT
    try:
        return Prompts(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"FETCHWISE_PROMPTS={path}: must be JSON with closed_book and open_book: {error}"
        ) from error
