"""A gateway whose event loop is shared by the examples of a property."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.gateway import FakeGateway, fake_gateway


@dataclass(frozen=True, slots=True)
class Running:
    """A running gateway; its event loop runs only during a request."""

    runner: asyncio.Runner
    gateway: FakeGateway

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send one request and wait for its response."""
        return self.runner.run(self.gateway.client.request(method, path, **more))

    def post(self, path: str, content: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
        """Send a body with the content type of JSON."""
        said = {"content-type": "application/json"} | (headers or {})
        return self.send("POST", path, content=content, headers=said)


@contextmanager
def running_gateway(folder: Path, **chosen: Any) -> Iterator[Running]:
    """One gateway for all examples; `fake_gateway` documents the arguments."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        gateway = runner.run(stack.enter_async_context(fake_gateway(folder, **chosen)))
        try:
            yield Running(runner, gateway)
        finally:
            runner.run(stack.aclose())
