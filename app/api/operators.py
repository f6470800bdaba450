"""Reports for operators: whether gating pays, which calibrators exist, and rates by tag."""

import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.api.gateway import TheGateway
from app.api.http.errors import DENIALS, documented
from app.api.http.guard import OPERATOR
from app.calibrators.listing import CalibratorList, list_calibrators
from app.certify.audit import Audit
from app.economics.breakeven import BreakEven
from app.economics.bypass import BypassReport
from app.errors import UnknownDecision
from app.threads import in_storage_thread

router = APIRouter(tags=["Operators"], dependencies=[OPERATOR])
_DAY_S = 86_400.0
_ERRORS = documented(*DENIALS, 422)
_AUDIT_ERRORS = _ERRORS | documented(
    own={404: "Decisions are not stored.", 503: "The decision log cannot be read now."}
)
# Descriptions in the OpenAPI document of fields of dataclasses, which know nothing about HTTP.
FIELDS = {
    "CalibratorStatus": {
        "matches": "Whether it was fitted on the running system. If not, it is not used.",
        "problem": "Why it is not used; empty if it is.",
        "fallback_k": "Passages read when the gate is not used.",
        "revoked": "Whether it was revoked because feedback shows that its confidences are too high.",
    },
    "GroupRates": {
        "skip": "Answered without reading a passage.",
        "abstain": "Withheld.",
        "error": "Wrong, among given answers that were drawn at random for feedback and have it.",
    },
    "AuditReport": {
        "answers": "Decisions that were counted: the newest, if there are more than `limit`.",
        "tags": "By tag, then by value, the most frequent first.",
        "omitted_values": "By tag, the number of less frequent values that are not shown.",
    },
    "Interval": {"needs": "What is missing if the value is null; else null."},
    "MeasuredWindow": {
        "seconds": "The requested window.",
        "covered_seconds": "Age of the oldest question in it.",
        "gated": "Questions whose number of passages the gate chose.",
        "workers": "Worker processes that answered them.",
    },
    "Comparison": {
        "always": "Cost of a question without a gate: retrieving and reading.",
        "break_even_skip": "The skip rate above which gating is cheaper, if the others read as many passages as now. "
        "0: it pays anyway; above 1: it cannot pay.",
        "gate_cost_ratio": "Cost with the gate over cost without it; below 1 gating saves.",
        "verdict": "From the interval of the ratio: `unclear` if it contains 1.",
    },
    "CostView": {
        "stages": "Mean cost of the closed-book probe (`probe`), and of retrieving (`retrieve_k1`, ...) and reading "
        "(`read_k1`, ...) each number of passages. The top 1 % of values are capped at the largest value below them, "
        "so that one timeout does not dominate.",
        "gate": "Cost of a gated question, all stages together.",
        "against": "Against always reading one number of passages, such as one (`k1`) or five (`k5`).",
    },
    "BypassReport": {"objective": "The cost that decides whether to bypass the gate."},
    "BreakEvenReport": {
        "sentence": "The headline: time, against `reference`.",
        "reference": "Passages that would be read without a gate: the fallback of the calibrator.",
        "skip_rate": "Share of gated questions that read no passage.",
        "shares": "By action: `k` and the number of passages read, and `abstain`.",
        "costs": "By `latency`, `tokens` and `money`, which is null unless the operator named a tariff.",
    },
    "CalibratorVersion": {
        "current": "Whether CURRENT names it.",
        "serving": "Whether this worker serves it.",
        "problem": "Why it cannot be served: unreadable, fitted on another system, or revoked.",
        "certified": "Whether its graded policy has a certificate.",
        "identity": "The system that it was fitted on; it must match the running system exactly.",
        "fallback_k": "Passages read when its thresholds are not used.",
        "data_window": "The rows and groups that it was fitted on, and their source.",
    },
    "CalibratorList": {
        "current": "The version that CURRENT names.",
        "serving": "The version that this worker serves; another one if CURRENT was refused.",
        "problem": "Why no certified calibrator is used; empty if one is.",
        "versions": "Newest first.",
        "changes": "The latest changes of CURRENT, newest first.",
    },
}


@dataclass(frozen=True, slots=True)
class AuditReport(Audit):
    """Rates over all questions, and for each value of each tag of the requests."""

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
    days: Annotated[float, Query(gt=0, le=3650, description="Days to look back.")] = 30.0,
    limit: Annotated[
        int, Query(ge=1, le=200_000, description="Maximum number of decisions; the newest are used.")
    ] = 20_000,
) -> dict[str, Any]:
    """Skip, abstention and error rates by tag, with intervals. Those that overlap are no evidence of a difference."""
    if gateway.log is None:
        raise UnknownDecision("decisions are not stored (FETCHWISE_DECISION_LOG=off): set it to a path or a URL")
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
        Query(ge=1, le=86_400, description="Seconds to look back. Default: FETCHWISE_BREAK_EVEN_WINDOW_S."),
    ] = None,
) -> dict[str, Any]:
    """Compare the cost of gating with the cost of reading for every question, over recent traffic."""
    found = (await gateway.economics(window)).break_even
    return asdict(found) | {"bypass": gateway.snapshots.latest.bypass}


@router.get("/calibrators", responses=_ERRORS, summary="Which calibrators exist, and which one is served?")
async def calibrators(
    gateway: TheGateway,
    limit: Annotated[int, Query(ge=1, le=500, description="Maximum number of versions; the newest are listed.")] = 20,
) -> CalibratorList:
    """List the versions in the calibrator folder: identity, thresholds, certificate and problem of each.

    Every worker serves a new CURRENT within seconds. It refuses one that is damaged, has another schema or was fitted
    on another system; then the previous version stays in use, and `problem` says why.
    """
    live = gateway.live_calibrator
    return await in_storage_thread(
        list_calibrators,
        live.store,
        limit,
        serving=live.serving.version if live.serving else None,
        problem=live.status().problem,
        problem_of=live.problem,
    )
