"""`GET /breakeven`: what gating costs, what it would cost without, and from which skip rate it pays."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.auth import DENIALS, OPERATOR
from app.api.gateway import TheGateway
from app.api.schemas import ErrorOut
from app.decision.breakeven import BreakEven, Verdict
from app.decision.cost import Objective
from app.observers.bypass import BypassWatch

Reference = Literal["k1", "k5"]


class EstimateOut(BaseModel):
    """A figure with its 95 % interval, from `n` questions; null with `needs` where those are too few."""

    model_config = ConfigDict(extra="forbid")

    value: float | None
    low: float | None
    high: float | None
    n: int
    needs: str | None = Field(default=None, description="What is missing; only there where the value is null.")


class WindowOut(BaseModel):
    """What the figures were measured on."""

    model_config = ConfigDict(extra="forbid")

    seconds: float = Field(description="How far back was asked for.")
    covered_seconds: float = Field(description="How far back the oldest question lies.")
    answers: int
    gated: int = Field(description="Questions whose number of passages the gate chose.")
    workers: int = Field(description="Processes that answered them.")


class ComparisonOut(BaseModel):
    """The gate against reading the same number of passages for every question, without a probe."""

    model_config = ConfigDict(extra="forbid")

    always: EstimateOut = Field(description="What a question costs without a gate: retrieving and reading.")
    break_even_skip: EstimateOut = Field(
        description="The skip rate from which gating is cheaper, at the same mix of passages among the rest. "
        "0: it pays anyway; above 1: it cannot pay."
    )
    gate_cost_ratio: EstimateOut = Field(description="Gate over always; below 1 is a saving.")
    verdict: Verdict = Field(description="By the interval of the ratio: `unclear` if it holds 1.")
    sentence: str


class CostOut(BaseModel):
    """Everything in one unit."""

    model_config = ConfigDict(extra="forbid")

    unit: str
    parts: dict[Literal["cb", "ret1", "ob1", "ret5", "ob5"], EstimateOut] = Field(
        description="Mean cost of a closed-book probe, and of retrieving and reading one and five passages. "
        "The top 1 % of each are counted as the largest below them: one timeout must not rule."
    )
    gate: EstimateOut = Field(description="What a gated question costs, all parts together.")
    against: dict[Reference, ComparisonOut]


def _figure(value: float, slack: float, n: int) -> dict[str, Any]:
    return {"value": value, "low": round(value - slack, 4), "high": round(value + slack, 4), "n": n}


def _unknown(n: int) -> dict[str, Any]:
    return {
        "value": None,
        "low": None,
        "high": None,
        "n": n,
        "needs": f"30 questions that read one passage, {n} so far",
    }


_EXAMPLE: dict[str, Any] = {
    "window": {"seconds": 900, "covered_seconds": 897.2, "answers": 2410, "gated": 2304, "workers": 2},
    "sentence": "Gating costs 27 % more time than always reading five passages; it would pay from 60 % skipped; "
    "now 34 %.",
    "reference": "k5",
    "skip_rate": _figure(0.335, 0.0193, 2304),
    "shares": {
        "k0": _figure(0.335, 0.0193, 2304),
        "k1": _figure(0.0, 0.0, 2304) | {"high": 0.0017},
        "k5": _figure(0.652, 0.0195, 2304),
        "abstain": _figure(0.013, 0.0047, 2304),
    },
    "costs": {
        "latency": {
            "unit": "ms",
            "parts": {
                "cb": _figure(64.6, 0.9, 2304),
                "ret1": _unknown(0),
                "ob1": _unknown(0),
                "ret5": _figure(27.5, 0.4, 1532),
                "ob5": _figure(80.0, 1.2, 1532),
            },
            "gate": _figure(136.1, 2.4, 2304),
            "against": {
                "k1": {
                    "always": _unknown(0),
                    "break_even_skip": _unknown(0),
                    "gate_cost_ratio": _unknown(0),
                    "verdict": "unknown",
                    "sentence": "Whether gating saves time against always reading one passage is not known yet: it "
                    "takes 30 questions that read one passage, 0 so far.",
                },
                "k5": {
                    "always": _figure(107.5, 1.3, 1532),
                    "break_even_skip": _figure(0.601, 0.011, 1532),
                    "gate_cost_ratio": _figure(1.266, 0.022, 1532),
                    "verdict": "costs",
                    "sentence": "Gating costs 27 % more time than always reading five passages; it would pay from "
                    "60 % skipped; now 34 %.",
                },
            },
        },
        "money": None,
    },
    "caveats": [
        "100 % of the questions behind the cost of k5 were sent there by the gate. Those are the harder ones, so "
        "reading for every question may cost less than is shown."
    ],
    "bypass": {
        "setting": "off",
        "on": False,
        "objective": "latency",
        "why": "FETCHWISE_BYPASS=off: every question meets the gate.",
    },
}


class BypassOut(BaseModel):
    """Whether most questions bypass the gate now because it loses, and why."""

    model_config = ConfigDict(extra="forbid")

    setting: Literal["off", "auto"]
    on: bool
    objective: Objective = Field(description="What gating is judged by.")
    why: str


class BreakEvenOut(BaseModel):
    """Whether gating pays, measured on served traffic, with a 95 % interval on every figure."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_EXAMPLE]})

    window: WindowOut
    sentence: str = Field(description="The headline: time, against `reference`.")
    reference: Reference = Field(description="What would be read without a gate: the calibrator's fallback.")
    skip_rate: EstimateOut = Field(description="Share of gated questions that read no passage.")
    shares: dict[Literal["k0", "k1", "k5", "abstain"], EstimateOut]
    costs: dict[Literal["latency", "tokens", "money"], CostOut | None] = Field(
        description="`money` is null unless the operator named a tariff."
    )
    caveats: list[str]
    bypass: BypassOut


router = APIRouter()


@router.get(
    "/breakeven",
    response_model=BreakEvenOut,
    responses=DENIALS | {422: {"model": ErrorOut, "description": "The window is not a number of seconds up to a day."}},
    dependencies=[OPERATOR],
    summary="Does gating pay?",
)
async def breakeven(
    gateway: TheGateway,
    window: Annotated[
        int | None,
        Query(ge=1, le=86_400, description="Seconds to look back; FETCHWISE_BREAK_EVEN_WINDOW_S by default."),
    ] = None,
) -> Response:
    """Compare what the gate costs with what reading for every question would, over the last minutes of traffic."""
    found = await asyncio.to_thread(gateway.break_even, window)
    told = rendered(found) | {"bypass": bypass_block(gateway.bypass)}
    return Response(orjson.dumps(told), media_type="application/json")


def bypass_block(bypass: BypassWatch) -> dict[str, Any]:
    """Whether the gate is bypassed now, as plain data."""
    return {
        "setting": "auto" if bypass.enabled else "off",
        "on": bypass.on(),
        "objective": bypass.objective.value,
        "why": bypass.why,
    }


def rendered(found: BreakEven) -> dict[str, Any]:
    """As plain data; `needs` is there only where something is missing."""
    plain: dict[str, Any] = _without_nothing_needed(asdict(found))
    return plain


def _without_nothing_needed(data: Any) -> Any:  # noqa: ANN401 - walks through whatever there is
    if isinstance(data, dict):
        return {key: _without_nothing_needed(one) for key, one in data.items() if key != "needs" or one is not None}
    return data
