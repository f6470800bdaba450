"""Hostile connections against a server that counts them."""

import asyncio
from collections import Counter

import pytest

from bench.gateway import attackers as attacks
from bench.gateway.attackers import ATTACKS, attackers
from tests.waiting import until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "DRIP_EVERY_S", 0.01)
    monkeypatch.setattr("random.uniform", lambda *_: 0.01)


class Victim(asyncio.Protocol):
    """Counts bytes of each connection, and cuts a connection off after as many as it is told."""

    def __init__(self, received: list[int], ended: Counter[str], most: float) -> None:
        self._received, self._place, self._ended, self._most = received, len(received), ended, most
        received.append(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self._ended["connections"] += 1

    def data_received(self, data: bytes) -> None:
        self._received[self._place] += len(data)
        if self._received[self._place] > self._most:
            self._transport.abort()


@pytest.mark.parametrize("most", [1e12, 3], ids=["endured", "cut off"])
async def test_attacks(most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each third attacks in its way; a connection that is cut off is opened again; at the end none is left."""
    received, ended = list[int](), Counter[str]()
    if most == 3:
        monkeypatch.setattr(attacks, "UNREAD_S", 0.01)
    server = await asyncio.get_running_loop().create_server(lambda: Victim(received, ended, most), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with attackers(port, len(ATTACKS)) as opened:
            await until(lambda: len(opened) == len(ATTACKS))
            if most == 3:
                await until(lambda: min(opened.values()) > 2)
            else:
                await until(lambda: sum(received) > 2 * len(attacks.PIPELINED) and min(received) > 3)
                assert opened == Counter(dict.fromkeys(("pipeline", "drip", "never_read"), 1))
                assert sorted(received)[1] == len(attacks.UNREAD)
        await until(lambda: ended["connections"] == len(received))
