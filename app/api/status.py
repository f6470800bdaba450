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
from app.telemetry.snapshot import Part, Snapshot

# Upstreams are pinged every five seconds. After this time without a ping, their state is unknown.
STALE_S = 15.0
_WELL = Part(up=True)


class Health(BaseModel):
    """The process is up."""

    status: Literal["ok"] = "ok"
    worker: int = Field(description="Process id of the worker that answered.")


class Readiness(BaseModel):
    """Whether questions can be answered. For each upstream: `ok`, `ok, but …` or what is wrong with it."""

    ready: bool
    state: Literal["ready", "degraded", "down", "draining"] = Field(
        description="`degraded`: questions are answered, but an upstream fails. `draining`: the gateway is stopping."
    )
    upstreams: dict[str, str]
    calibrator: CalibratorStatus

    @classmethod
    def of(cls, snapshot: Snapshot, *, now: float, details: bool, draining: bool = False) -> "Readiness":
        """Ready if a question can be answered: the reader works, and a calibrator is in use or the search works.

        Without `details` it names the upstreams that are down, but not why: that may name addresses and folders.
        """
        age = now - snapshot.pinged_at
        stale = f"not pinged for {age:.0f} s: the gateway is overloaded or stuck" if age > STALE_S else ""
        upstreams = {name: stale or (str(part) if details else _brief(part)) for name, part in snapshot.parts.items()}
        calibrator = snapshot.calibrator
        if calibrator.problem and not details:
            calibrator = replace(calibrator, problem="shown to keys with scope `operate`")
        up = {name for name, part in snapshot.parts.items() if part.up and not stale}
        # A calibrator has heads, with which a question that needs no passage is answered without a search.
        # Where keys are in a database, nobody is let in before they have been read.
        needed = {"reader"} | ({"keys"} & snapshot.parts.keys())
        answers = needed <= up and (bool(snapshot.policy.heads) or {"embedder", "vectors"} <= up)
        well = all(part == _WELL for part in snapshot.parts.values())
        state: Literal["ready", "degraded", "down", "draining"]
        state = "draining" if draining else "down" if not answers else "ready" if well else "degraded"
        return cls(ready=answers and not draining, state=state, upstreams=upstreams, calibrator=calibrator)


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
    responses={503: {"model": Readiness, "description": "No question can be answered, or the gateway is stopping."}},
)
async def readyz(gateway: TheGateway, may_operate: MayOperate, response: Response) -> Readiness:
    """Whether to send questions here, the upstreams that did not answer their last ping, and the calibrator in use.

    An upstream that fails does not stop the gateway where questions can be answered without it: `state` is `degraded`.

    With keys, the reasons are shown only to keys with scope `operate`.
    """
    snapshots = gateway.snapshots
    found = Readiness.of(snapshots.latest, now=time.monotonic(), details=may_operate, draining=snapshots.draining)
    response.status_code = 200 if found.ready else 503
    return found


@router.get("/metrics", include_in_schema=False, dependencies=[OPERATOR])
@router.get("/metrics/", include_in_schema=False, dependencies=[OPERATOR])
async def metrics(gateway: TheGateway, request: Request) -> Response:
    """All metrics, in the format that the scraper accepts."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    # In a thread: workers' counts are read from files.
    return Response(await asyncio.to_thread(encode, gateway.scraped), media_type=content_type)
