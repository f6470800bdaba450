"""`GET /audit`: whether some group of questions is skipped, withheld or answered wrongly more often than others."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api.auth import DENIALS, OPERATOR
from app.api.gateway import TheGateway
from app.api.schemas import ErrorOut
from app.decision.audit import GroupRates
from app.errors import UnknownDecision

router = APIRouter()
_DAY_S = 86_400.0
_ERRORS: dict[int | str, dict[str, Any]] = DENIALS | {
    404: {"model": ErrorOut, "description": "No decisions are kept here."},
    422: {"model": ErrorOut, "description": "The request is not valid; `fields` says where."},
    503: {"model": ErrorOut, "description": "The decision log cannot be read now."},
}


class AuditOut(BaseModel):
    """Rates over all questions, and for each value of each tag that askers gave."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "days": 30.0,
                    "answers": 2,
                    "overall": {
                        "skip": {"value": 0.5, "low": 0.095, "high": 0.905, "n": 2},
                        "abstain": {"value": 0.0, "low": 0.0, "high": 0.658, "n": 2},
                        "error": {"value": None, "low": None, "high": None, "n": 0},
                    },
                    "tags": {},
                    "left_out": {},
                }
            ]
        },
    )

    days: float
    answers: int = Field(description="How many decisions this is about; the newest, where there are more than `limit`.")
    overall: GroupRates
    tags: Mapping[str, Mapping[str, GroupRates]] = Field(description="By tag, then by value, the commonest first.")
    left_out: Mapping[str, int] = Field(description="By tag, how many rarer values are not shown.")


@router.get(
    "/audit", summary="Are some questions treated worse than others?", responses=_ERRORS, dependencies=[OPERATOR]
)
async def audit(
    gateway: TheGateway,
    days: Annotated[float, Query(gt=0, le=3650, description="How far back to look.")] = 30.0,
    limit: Annotated[int, Query(ge=1, le=200_000, description="At most so many decisions, the newest.")] = 20_000,
) -> AuditOut:
    """Skip, abstention and error rates by tag, with intervals: overlapping ones are no evidence of a difference."""
    if gateway.log is None:
        raise UnknownDecision("no decisions are kept here (FETCHWISE_DECISION_LOG=off)")
    found = await gateway.log.audit(time.time() - days * _DAY_S, limit)
    return AuditOut(
        days=days, answers=found.overall.skip.n, overall=found.overall, tags=found.tags, left_out=found.left_out
    )
