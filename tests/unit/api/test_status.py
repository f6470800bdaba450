"""Pinging the parts: all at once, by name."""

import asyncio

import pytest

from app.api import status
from app.api.status import states, up
from app.errors import UpstreamUnavailable


async def fine() -> None:
    pass


async def down() -> None:
    raise UpstreamUnavailable("vectors", "nobody there")


async def silent() -> None:
    await asyncio.Event().wait()


async def test_each_part_says_what_is_wrong_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is fine, one says why not, one says nothing."""
    monkeypatch.setattr(status, "PING_TIMEOUT_S", 0.05)
    found = await states({"reader": fine, "vectors": down, "embedder": silent})
    assert found == {"reader": "ok", "vectors": "nobody there", "embedder": "no reply within 0.05 s"}


async def one_of_two() -> str:
    return "1 of 2 readers answer"


async def test_a_part_that_answers_with_a_remark_is_up() -> None:
    """What is well enough is ready, and what is not all well is said."""
    found = await states({"reader": one_of_two})
    assert found == {"reader": "ok, but 1 of 2 readers answer"}
    assert up(found["reader"])
    assert not up("okay it is not")
