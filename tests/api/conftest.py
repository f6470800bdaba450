"""A running gateway over fakes, for every test of the HTTP edge."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.access.keys import Scope
from app.learning.log import DecisionLog, LogTiming
from tests.fakes.gateway import FakeGateway, fake_gateway
from tests.fakes.keys import make_key

from .keyed import Keyed
from .running import Running, running_gateway

Open = Callable[..., AbstractAsyncContextManager[FakeGateway]]
OpenKeyed = Callable[..., AbstractAsyncContextManager[Keyed]]


@pytest.fixture(autouse=True)
def quick_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write decisions immediately, so that feedback never waits for another worker's decision."""
    monkeypatch.setattr("app.learning.DecisionLog", partial(DecisionLog, pace=LogTiming(write_every_s=0.02)))


@pytest.fixture
def open_gateway(tmp_path: Path) -> Open:
    """Open a gateway with chosen settings, and optionally a calibrator."""
    return lambda **chosen: fake_gateway(tmp_path, **chosen)


@pytest.fixture
async def gateway(open_gateway: Open) -> AsyncIterator[FakeGateway]:
    """A gateway with a certified calibrator that matches, small limits, and nothing wrong."""
    async with open_gateway(artifact={}, max_body_bytes=4096, max_question_chars=200) as running:
        yield running


@pytest.fixture
def open_keyed(open_gateway: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenKeyed:
    """Open a gateway that has an operator's key from the start and reads new keys at once."""
    monkeypatch.setattr("app.wiring.gateway.KEYS_EVERY_S", 0.01)

    @asynccontextmanager
    async def opened(**chosen: Any) -> AsyncIterator[Keyed]:
        path = tmp_path / "data" / "keys.json"
        _, operator = make_key(path, "operator", scopes=[Scope.OPERATE])
        async with open_gateway(**({"artifact": {}} | chosen)) as gateway:
            yield Keyed(gateway, path, operator)

    return opened


@pytest.fixture
async def keyed(open_keyed: OpenKeyed) -> AsyncIterator[Keyed]:
    """A gateway with keys, a certified calibrator that matches, and nothing wrong."""
    async with open_keyed() as running:
        yield running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One gateway for all examples of a module's properties."""
    with running_gateway(tmp_path_factory.mktemp("running"), artifact={}) as one:
        yield one
