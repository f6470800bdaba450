"""Whether the parts behind the gateway answer: asked for `/readyz`, and again and again for the metrics."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from app.errors import FetchwiseError

logger = logging.getLogger(__name__)

PING_TIMEOUT_S = 2.0
WATCH_EVERY_S = 10.0
OK = "ok"
# What is well enough, and not all well: some of several replicas do not answer.
_OK_BUT = "ok, but "
Pings = Mapping[str, Callable[[], Awaitable[object]]]


async def states(pings: Pings) -> dict[str, str]:
    """Ping every part at once; a part's text is `ok`, `ok, but …` or what is wrong with it."""
    return dict(zip(pings, await asyncio.gather(*(_state(ping) for ping in pings.values())), strict=True))


def up(state: str) -> bool:
    """Whether a part of which this is said answers."""
    return state == OK or state.startswith(_OK_BUT)


async def watch(
    pings: Pings, on_states: Callable[[Mapping[str, bool]], None], *, every_s: float = WATCH_EVERY_S
) -> None:
    """Say again and again which parts answer, until cancelled."""
    while True:
        try:
            on_states({part: up(state) for part, state in (await states(pings)).items()})
        except Exception:
            # What a ping was not made to raise must not end the watch; the gauges keep what they last said.
            logger.exception("pinging the parts failed; trying again")
        await asyncio.sleep(every_s)


async def _state(ping: Callable[[], Awaitable[object]]) -> str:
    try:
        async with asyncio.timeout(PING_TIMEOUT_S):
            remark = await ping()
    except TimeoutError:
        return f"no reply within {PING_TIMEOUT_S:g} s"
    except FetchwiseError as error:
        return str(error)
    return f"{_OK_BUT}{remark}" if remark else OK
