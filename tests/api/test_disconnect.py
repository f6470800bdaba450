"""A client that leaves: its work is cancelled and its permit released."""

import asyncio
import json
from typing import Any

import pytest

from tests.waiting import until

from .conftest import Open


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
    """The generation is cancelled, no answer is sent, and the permit is released."""
    async with open_gateway(artifact={}, max_in_flight=1) as gateway:
        gateway.reader.hang = True
        left = asyncio.Event()
        body = json.dumps({"question": "Who?"} | asked).encode()
        asking = asyncio.create_task(gateway.straight(body, left=left))
        await until(lambda: gateway.reader.hanging)
        left.set()
        replied, said = await asking
        assert gateway.reader.cancelled == 1
        assert replied == status
        assert b"final" not in said
        gateway.reader.hang = False
        assert (await gateway.ask()).status_code == 200
