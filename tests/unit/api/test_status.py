"""Pinging the parts: all at once, by name, again and again, whatever a ping does."""

import asyncio
from collections.abc import Mapping

import pytest

from app.api import status
from app.api.status import keep_pinging, states, up
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


class Watched:
    """What a watch has said so far."""

    def __init__(self) -> None:
        self.said: list[dict[str, bool]] = []
        self.enough = asyncio.Event()

    def __call__(self, up: Mapping[str, bool]) -> None:
        self.said.append(dict(up))
        if len(self.said) == 3:
            self.enough.set()


async def test_a_watch_goes_on_whatever_a_ping_raises(caplog: pytest.LogCaptureFixture) -> None:
    """A part that comes and goes is told again and again; a mistake in a ping is logged and does not end it."""
    turns = iter([fine, down, None, fine])

    async def vectors() -> None:
        turn = next(turns, fine)
        if turn is None:
            raise ZeroDivisionError
        await turn()

    watched = Watched()
    task = asyncio.create_task(keep_pinging({"vectors": vectors}, watched, every_s=0.0))
    async with asyncio.timeout(10):
        await watched.enough.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert watched.said[:3] == [{"vectors": True}, {"vectors": False}, {"vectors": True}]
    assert "pinging the parts failed" in caplog.text
