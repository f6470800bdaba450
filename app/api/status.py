"""How the gateway is: up, ready, which parts answer, and its metrics."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, Field

from app.api.gateway import Pings, TheGateway
from app.api.http.guard import OPERATOR, MayOperate
from app.core.artifact import CalibratorStatus
from app.errors import FetchwiseError

PING_TIMEOUT_S = 2.0
OK = "ok"
# What is well enough, and not all well: some of several replicas do not answer.
_OK_BUT = "ok, but "


async def states(pings: Pings) -> dict[str, str]:
    """Ping every part at once; a part's text is `ok`, `ok, but …` or what is wrong with it."""
    return dict(zip(pings, await asyncio.gather(*(_state(ping) for ping in pings.values())), strict=True))


def up(state: str) -> bool:
    """Whether a part of which this is said answers."""
    return state == OK or state.startswith(_OK_BUT)


async def _state(ping: Callable[[], Awaitable[object]]) -> str:
    try:
        async with asyncio.timeout(PING_TIMEOUT_S):
            remark = await ping()
    except TimeoutError:
        return f"no reply within {PING_TIMEOUT_S:g} s"
    except FetchwiseError as error:
        return str(error)
    return f"{_OK_BUT}{remark}" if remark else OK


class Health(BaseModel):
    """The process is up."""

    status: Literal["ok"] = "ok"
    worker: int = Field(description="The process that answered: one of several where there are workers.")


class Readiness(BaseModel):
    """Whether questions can be answered, part by part; a part's text is `ok`, `ok, but …` or what is wrong with it."""

    ready: bool
    parts: dict[str, str]
    calibrator: CalibratorStatus

    def without_details(self) -> "Readiness":
        """Which part, but not why: that may name addresses, models and folders."""
        problem = "told to a key that may operate" if self.calibrator.problem else ""
        return Readiness(
            ready=self.ready,
            parts={part: "ok" if up(state) else "not ready" for part, state in self.parts.items()},
            calibrator=replace(self.calibrator, problem=problem),
        )


router = APIRouter(tags=["Health"])


@router.get("/healthz", summary="Is the process up?")
async def healthz() -> Health:
    """Answer while the event loop turns; says nothing about the parts behind."""
    return Health(worker=os.getpid())


@router.get(
    "/readyz",
    summary="Can questions be answered?",
    responses={503: {"model": Readiness, "description": "A part is not ready; `parts` names it."}},
)
async def readyz(gateway: TheGateway, may_operate: MayOperate, response: Response) -> Readiness:
    """Ping every part and name those that fail; says too which calibrator decides, or why none does.

    With keys, why something fails is told to those that may operate.
    """
    parts = await states(gateway.pings)
    ready = all(up(state) for state in parts.values())
    response.status_code = 200 if ready else 503
    told = Readiness(ready=ready, parts=parts, calibrator=gateway.gatekeeper.status())
    return told if may_operate else told.without_details()


@router.get("/metrics", include_in_schema=False, dependencies=[OPERATOR])
@router.get("/metrics/", include_in_schema=False, dependencies=[OPERATOR])
async def metrics(gateway: TheGateway, request: Request) -> Response:
    """Everything counted, in the format that the scraper asks for."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    # In a thread: workers' counts are read from files, and the gauges of the window are computed.
    return Response(await asyncio.to_thread(encode, gateway.scraped), media_type=content_type)
