"""What operators ask: whether gating pays, which calibrators there are, and whether some questions fare worse."""

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.api.gateway import TheGateway
from app.api.http.errors import DENIALS, documented
from app.api.http.guard import OPERATOR
from app.calibrators.listing import CalibratorList, list_calibrators
from app.calibrators.store import ArtifactStore
from app.certify.audit import Audit
from app.economics.breakeven import BreakEven
from app.economics.bypass import BypassReport
from app.errors import UnknownDecision

router = APIRouter(tags=["Operators"], dependencies=[OPERATOR])
_DAY_S = 86_400.0
_ERRORS = documented(*DENIALS, 422)
_AUDIT_ERRORS = _ERRORS | documented(
    own={404: "No decisions are kept here.", 503: "The decision log cannot be read now."}
)
# What the OpenAPI document says of the fields of the core's dataclasses, which know nothing of HTTP.
FIELDS = {
    "CalibratorStatus": {
        "matches": "Whether it was fitted on what runs: else it decides nothing.",
        "problem": "Why questions are not decided by it, if they are not.",
        "fallback_k": "Passages read where no gate decides.",
        "revoked": "Whether feedback showed that its confidences are too high.",
    },
    "GroupRates": {
        "skip": "Settled without reading a passage.",
        "abstain": "Withheld.",
        "error": "Wrong, among given answers that were drawn at random for feedback and judged.",
    },
    "AuditReport": {
        "answers": "How many decisions this is about; the newest, where there are more than `limit`.",
        "tags": "By tag, then by value, the commonest first.",
        "omitted_values": "By tag, how many rarer values are not shown.",
    },
    "Interval": {"needs": "What is missing where the value is null; else null."},
    "MeasuredWindow": {
        "seconds": "How far back was asked for.",
        "covered_seconds": "How far back the oldest question lies.",
        "gated": "Questions whose number of passages the gate chose.",
        "workers": "Processes that answered them.",
    },
    "Comparison": {
        "always": "What a question costs without a gate: retrieving and reading.",
        "break_even_skip": "The skip rate from which gating is cheaper, at the same mix of passages among the rest. "
        "0: it pays anyway; above 1: it cannot pay.",
        "gate_cost_ratio": "Gate over always; below 1 is a saving.",
        "verdict": "By the interval of the ratio: `unclear` if it holds 1.",
    },
    "CostView": {
        "stages": "Mean cost of the closed-book probe (`probe`), and of retrieving (`retrieve_k1`, ...) and reading "
        "(`read_k1`, ...) each number of passages. The top 1 % of values are capped at the largest value below them, "
        "so that one timeout does not dominate.",
        "gate": "What a gated question costs, all stages together.",
        "against": "Against always reading one number of passages, such as one (`k1`) or five (`k5`).",
    },
    "BypassReport": {"objective": "What gating is judged by."},
    "BreakEvenReport": {
        "sentence": "The headline: time, against `reference`.",
        "reference": "What would be read without a gate: the calibrator's fallback.",
        "skip_rate": "Share of gated questions that read no passage.",
        "shares": "By action: `k` and the number of passages read, and `abstain`.",
        "costs": "By `latency`, `tokens` and `money`, which is null unless the operator named a tariff.",
    },
    "CalibratorVersion": {
        "current": "Whether CURRENT names it.",
        "serving": "Whether this worker holds it.",
        "problem": "Why it cannot serve here: unreadable, fitted on something else, or revoked.",
        "certified": "Whether its graded policy carries a certificate.",
        "identity": "What it was fitted on: all of it must be what runs.",
        "fallback_k": "Passages read where its thresholds may not decide.",
        "data_window": "The rows and groups behind it, and their source.",
    },
    "CalibratorList": {
        "current": "What CURRENT names.",
        "serving": "What this worker holds; another one where CURRENT was refused.",
        "problem": "Why questions are not decided by a certified calibrator, if they are not.",
        "versions": "Newest first.",
        "changes": "The latest changes of CURRENT, newest first.",
    },
}


@dataclass(frozen=True, slots=True)
class AuditReport(Audit):
    """Rates over all questions, and for each value of each tag that askers gave."""

    days: float
    answers: int


@router.get(
    "/audit",
    response_model=AuditReport,
    responses=_AUDIT_ERRORS,
    summary="Are some questions treated worse than others?",
)
async def audit(
    gateway: TheGateway,
    days: Annotated[float, Query(gt=0, le=3650, description="How far back to look.")] = 30.0,
    limit: Annotated[int, Query(ge=1, le=200_000, description="At most so many decisions, the newest.")] = 20_000,
) -> dict[str, Any]:
    """Skip, abstention and error rates by tag, with intervals: overlapping ones are no evidence of a difference."""
    if gateway.log is None:
        raise UnknownDecision("no decisions are kept here (FETCHWISE_DECISION_LOG=off)")
    found = await gateway.log.audit(time.time() - days * _DAY_S, limit)
    return {"days": days, "answers": found.overall.skip.n} | asdict(found)


@dataclass(frozen=True, slots=True)
class BreakEvenReport(BreakEven):
    """Whether gating pays, measured on served traffic, with a 95 % interval on every figure."""

    bypass: BypassReport


@router.get("/breakeven", response_model=BreakEvenReport, responses=_ERRORS, summary="Does gating pay?")
async def breakeven(
    gateway: TheGateway,
    window: Annotated[
        int | None,
        Query(ge=1, le=86_400, description="Seconds to look back; FETCHWISE_BREAK_EVEN_WINDOW_S by default."),
    ] = None,
) -> dict[str, Any]:
    """Compare what the gate costs with what reading for every question would, over the last minutes of traffic."""
    found = (await gateway.economics(window)).break_even
    return asdict(found) | {"bypass": gateway.snapshots.latest.bypass}


@router.get("/calibrators", responses=_ERRORS, summary="Which calibrators are there, and which serves?")
async def calibrators(
    gateway: TheGateway,
    limit: Annotated[int, Query(ge=1, le=500, description="At most so many versions, the newest.")] = 20,
) -> CalibratorList:
    """List the calibrator folder: what each version was fitted on, its thresholds, its certificate, its problem.

    A new CURRENT is taken up within seconds by every worker. One that is damaged, of another schema or fitted on
    something else than runs is refused, and the one before keeps serving: `problem` says so.
    """
    live = gateway.live_calibrator
    return await asyncio.to_thread(
        list_calibrators,
        ArtifactStore(gateway.calibrators),
        limit,
        serving=live.serving.version if live.serving else None,
        problem=live.status().problem,
        problem_of=live.problem,
    )
