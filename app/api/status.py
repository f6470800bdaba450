"""Health, readiness and metrics."""

import asyncio
import os
import time
from dataclasses import replace
from typing import Literal

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, Field

from app.api.gateway import TheGateway
from app.api.http.guard import OPERATOR, MayOperate
from app.core.artifact import CalibratorStatus
from app.telemetry.snapshot import STALE_S, Part, Snapshot


class Health(BaseModel):
    """The process is up."""

    status: Literal["ok"] = "ok"
    worker: int = Field(description="Process id of the worker that answered.")


class Readiness(BaseModel):
    """Whether questions can be answered. For each upstream: `ok`, `ok, but …` or what is wrong with it."""

    ready: bool
    upstreams: dict[str, str]
    calibrator: CalibratorStatus

    @classmethod
    def of(cls, snapshot: Snapshot, *, now: float, details: bool) -> "Readiness":
        """Ready if every upstream answered its last ping. Without `details` it names those that are down, but not why.

        The reason may name addresses, models and folders.
        """
        age = now - snapshot.pinged_at
        stale = f"not pinged for {age:.0f} s: the gateway is overloaded or stuck" if age > STALE_S else ""
        upstreams = {name: stale or (str(part) if details else _brief(part)) for name, part in snapshot.parts.items()}
        calibrator = snapshot.calibrator
        if calibrator.problem and not details:
            calibrator = replace(calibrator, problem="shown to keys with scope `operate`")
        return cls(ready=snapshot.ready(now), upstreams=upstreams, calibrator=calibrator)


def _brief(part: Part) -> str:
    return "ok" if part.up else "not ready"


router = APIRouter(tags=["Health"])


@router.get("/healthz", summary="Is the process up?")
async def healthz() -> Health:
    """Reply as long as the process runs. It says nothing about upstreams."""
    return Health(worker=os.getpid())


@router.get(
    "/readyz",
    summary="Can questions be answered?",
    responses={503: {"model": Readiness, "description": "An upstream is not ready; `upstreams` names it."}},
)
async def readyz(gateway: TheGateway, may_operate: MayOperate, response: Response) -> Readiness:
    """Name the upstreams that did not answer their last ping, and the calibrator in use, or why none is.

    With keys, the reasons are shown only to keys with scope `operate`.
    """
    found = Readiness.of(gateway.snapshots.latest, now=time.monotonic(), details=may_operate)
    response.status_code = 200 if found.ready else 503
    return found


@router.get("/metrics", include_in_schema=False, dependencies=[OPERATOR])
@router.get("/metrics/", include_in_schema=False, dependencies=[OPERATOR])
async def metrics(gateway: TheGateway, request: Request) -> Response:
    """All metrics, in the format that the scraper accepts."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    # In a thread: workers' counts are read from files.
    return Response(await asyncio.to_thread(encode, gateway.scraped), media_type=content_type)
