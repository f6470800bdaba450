"""A client that leaves: its work is given up, and its permit goes to somebody who still waits."""

import asyncio
import json
from typing import Any

import pytest

from tests.api.conftest import Open


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 499),
        # Before the first event, and in the middle of the stream.
        ({"stream": True}, 499),
        ({"stream": True, "policy": "always", "abstain": False}, 200),
    ],
    ids=["plain", "stream, probing", "stream, reading"],
)
async def test_a_client_that_hangs_up_stops_the_work(open_gateway: Open, asked: dict[str, Any], status: int) -> None:
    """The generation under way is cancelled, no answer is sent, and the permit is free again."""
    async with open_gateway(artifact={}, max_in_flight=1) as gateway:
        gateway.reader.hang = True
        left, begun = asyncio.Event(), asyncio.Event()
        gateway.reader.before = lambda _: begun.set()
        body = json.dumps({"question": "Who?"} | asked).encode()
        first = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if first:
                return first.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/answer",
            "raw_path": b"/answer",
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        asking = asyncio.create_task(gateway.app(scope, receive, send))  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            await begun.wait()
            left.set()
            await asking
        assert gateway.reader.cancelled == 1
        assert sent[0]["status"] == status
        assert b"final" not in b"".join(message.get("body", b"") for message in sent)
        gateway.reader.hang = False
        reply = await gateway.client.post("/answer", json={"question": "And now?"})
        assert reply.status_code == 200
