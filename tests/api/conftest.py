"""A running gateway over fakes, for every test of the HTTP edge."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.fakes.gateway import FakeGateway, fake_gateway

Open = Callable[..., AbstractAsyncContextManager[FakeGateway]]


@pytest.fixture
def open_gateway(tmp_path: Path) -> Open:
    """Open a gateway with chosen settings, and a calibrator if told so."""
    return lambda **chosen: fake_gateway(tmp_path, **chosen)


@pytest.fixture
async def gateway(open_gateway: Open) -> AsyncIterator[FakeGateway]:
    """A gateway with a certified calibrator that matches, small limits, and nothing wrong."""
    async with open_gateway(artifact={}, max_body_bytes=4096, max_question_chars=200) as running:
        yield running
