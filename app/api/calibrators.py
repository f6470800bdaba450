"""`GET /calibrators`: which calibrators there are, which one serves, and what is wrong with the others."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from app.api.auth import DENIALS, OPERATOR
from app.api.calibrator_survey import CalibratorsOut
from app.api.gateway import TheGateway
from app.api.schemas import ErrorOut

router = APIRouter()


@router.get(
    "/calibrators",
    summary="Which calibrators are there, and which serves?",
    responses=DENIALS | {422: {"model": ErrorOut, "description": "The request is not valid; `fields` says where."}},
    dependencies=[OPERATOR],
)
async def calibrators(
    gateway: TheGateway,
    limit: Annotated[int, Query(ge=1, le=500, description="At most so many versions, the newest.")] = 20,
) -> CalibratorsOut:
    """List the calibrator folder: what each version was fitted on, its thresholds, its certificate, its problem.

    A new CURRENT is taken up within seconds by every worker. One that is damaged, of another schema or fitted on
    something else than runs is refused, and the one before keeps serving: `problem` says so.
    """
    return await asyncio.to_thread(gateway.calibrators, limit)
