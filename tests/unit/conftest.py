"""Unit tests open no socket: what needs one belongs in tests/wire or tests/contract."""

import socket
from typing import Any, NoReturn

import pytest


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to connect to or listen on any address."""

    def refuse(self: socket.socket, address: Any) -> NoReturn:
        raise AssertionError(f"a unit test uses the socket address {address!r}")

    for call in ("bind", "connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, call, refuse)
