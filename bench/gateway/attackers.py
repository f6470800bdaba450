"""Hostile connections: they pipeline, drip, or never read. Closed ones are opened again after about a second.

`python -m bench.gateway.attackers PORT COUNT` attacks a loopback port until its input is closed, then prints how many
connections it has opened. It is a process of its own, so that honest clients do not wait for it.
"""

import asyncio
import json
import os
import random
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import uvloop

from bench.gateway.load import request

# Requests that need no key. The file is the largest that the gateway serves.
PIPELINED = request("/openapi.json", b"", method="GET") * 500
UNREAD = request("/static/swagger-ui-bundle.js", b"", method="GET") * 8
DRIPPED = request("/answer", b"{" + b" " * 60_000)
DRIP_EVERY_S = 0.1
UNREAD_S = 25.0
# Small, so that what is not read stays with the server.
RECEIVE_BUFFER_BYTES = 4096

Attack = Callable[[socket.socket], Awaitable[None]]


async def pipeline(connection: socket.socket) -> None:
    """Send requests as fast as they are taken, and read nothing."""
    while True:
        await asyncio.get_running_loop().sock_sendall(connection, PIPELINED)


async def drip(connection: socket.socket) -> None:
    """Send a request byte by byte."""
    for place in range(len(DRIPPED)):
        await asyncio.get_running_loop().sock_sendall(connection, DRIPPED[place : place + 1])
        await asyncio.sleep(DRIP_EVERY_S)


async def never_read(connection: socket.socket) -> None:
    """Send a few requests for a large file, wait for longer than the server does, and begin again."""
    await asyncio.get_running_loop().sock_sendall(connection, UNREAD)
    await asyncio.sleep(UNREAD_S)


ATTACKS: tuple[Attack, ...] = (pipeline, drip, never_read)


@asynccontextmanager
async def attackers(port: int, count: int) -> AsyncIterator[Counter[str]]:
    """Keep this many connections to a loopback port busy, a third with each attack; yields how many were opened."""
    opened: Counter[str] = Counter()
    attacks = (ATTACKS[number % len(ATTACKS)] for number in range(count))
    tasks = [asyncio.create_task(_again_and_again(port, attack, opened)) for attack in attacks]
    try:
        yield opened
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _again_and_again(port: int, attack: Attack, opened: Counter[str]) -> None:
    while True:
        # At different times, as from different machines.
        await asyncio.sleep(random.uniform(0.5, 1.5))
        with socket.socket() as connection, suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            connection.settimeout(0)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
            opened[attack.__name__] += 1
            await attack(connection)


async def _until_input_ends(port: int, count: int) -> None:
    async with attackers(port, count) as opened:
        await asyncio.to_thread(sys.stdin.buffer.read)
    print(json.dumps(opened))


@asynccontextmanager
async def attacking(port: int, count: int) -> AsyncIterator[dict[str, int]]:
    """Run this module inside the context; what is yielded is filled at its end: connections opened, by attack."""
    opened: dict[str, int] = {}
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "bench.gateway.attackers", str(port), str(count))
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield opened
    finally:
        printed, _ = await process.communicate(b"stop")
        opened.update(json.loads(printed))


if __name__ == "__main__":
    # Honest clients share the core.
    os.nice(5)
    uvloop.run(_until_input_ends(int(sys.argv[1]), int(sys.argv[2])))
