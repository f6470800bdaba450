"""The request to `/answer` and the decision receipt that it returns."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.core.available import Passage, Usage
from app.core.policy import Policy, Reason, Retrieval
from app.core.record import DecisionRecord

Scalar = Annotated[str, Field(max_length=256)] | bool | int
Tag = Annotated[str, Field(max_length=128)]


class AnswerOptions(BaseModel):
    """Options of a question, on every route."""

    model_config = ConfigDict(extra="forbid")

    policy: Policy | None = Field(default=None, description="How k is chosen. Default: the policy of the server.")
    retrieval: Retrieval = Field(
        default=Retrieval.AUTO, description="`required`: answer from passages. `forbidden`: answer without."
    )
    abstain: bool = Field(
        default=True, strict=True, description="Whether an answer with low confidence may be withheld."
    )
    collection: str | None = Field(default=None, min_length=1, max_length=64, description="Collection to search.")
    filter: dict[Annotated[str, Field(min_length=1, max_length=64)], Scalar] | None = Field(
        default=None, max_length=16, description="Search only passages whose payload has these values."
    )
    tags: dict[Annotated[str, Field(min_length=1, max_length=64)], Tag] = Field(
        default_factory=dict, max_length=16, description="Your own labels; `/audit` reports rates by them."
    )
    timeout_ms: int | None = Field(
        default=None,
        ge=1,
        le=600_000,
        strict=True,
        description="Time limit of the answer; the limit of the server applies if it is shorter. A search that takes "
        "longer counts as failed. If the reader takes longer, the last available answer is given, or 503.",
    )


# Control characters and surrogates, except line breaks and tabs, which people paste.
_BROKEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def readable(text: str, *, what: str = "the question") -> str:
    """The text without surrounding white space; ValueError if it is empty or contains control characters."""
    stripped = text.strip()
    if not stripped:
        raise ValueError(f"{what} is empty")
    if bad := _BROKEN.search(stripped):
        raise ValueError(f"{what} contains the control character U+{ord(bad[0]):04X}: remove it")
    return stripped


class AnswerRequest(AnswerOptions):
    """A question and its options."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"question": "What is the capital of Jamaica?"},
                {"question": "What is the currency of Laos?", "retrieval": "required", "abstain": False},
                {"question": "What is the capital of Nauru?", "timeout_ms": 5000},
            ]
        },
    )

    question: Annotated[str, AfterValidator(readable)] = Field(min_length=1, description="The question.")
    max_tokens: int | None = Field(
        default=None, ge=1, le=512, strict=True, description="Maximum length of the answer, in tokens."
    )
    stream: bool = Field(
        default=False,
        strict=True,
        description="Stream events: `decision`, `passages`, `token`..., then `final` (the receipt) or `error`.",
    )


class CitationOut(BaseModel):
    """A passage that was read; `index` is its number in the prompt."""

    index: int
    id: str
    title: str
    text: str
    score: float


class CalibratorOut(BaseModel):
    """Which calibrator was used, and whether exactly its certified policy decided."""

    version: str | None
    certified: bool


class ThresholdsOut(BaseModel):
    """p >= tau0 answers closed-book, tau1 <= p < tau0 reads the smallest k above 0, below it the largest."""

    tau0: float | None
    tau1: float | None
    tau_abstain: float | None


class DecisionOut(BaseModel):
    """How the number of passages was chosen."""

    p_closed_book: float | None = Field(description="Calibrated P(closed-book answer is right); null if unknown.")
    signals: dict[str, float] = Field(description="Signals of the probe; empty without a probe.")
    thresholds: ThresholdsOut
    policy: Policy
    reason: Reason = Field(
        description="Why this number of passages was read, or why the answer is withheld. `bypassed`: gating does not "
        "pay at the moment."
    )
    calibrator: CalibratorOut


class SearchesOut(BaseModel):
    """Searches whose passages were read, and searches whose passages were not."""

    used: int
    wasted: int


class UsageOut(BaseModel):
    """Tokens, passages and searches of the answer; a stage that did not run is null."""

    probe: Usage | None
    read: Usage | None
    passages: int
    searches: SearchesOut


class TimingsOut(BaseModel):
    """Milliseconds of each stage; a stage that did not run is null."""

    probe: float | None
    embed: float | None
    search: float | None
    read: float | None
    total: float = Field(
        description="From the arrival of the question, including the queue and the time between stages."
    )


class Receipt(BaseModel):
    """The decision receipt: the answer, and how it was decided."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "5b0c6f0e6d1f4c2a9d3e7a10",
                    "answer": "Kingston.",
                    "action": "k1",
                    "k": 1,
                    "confidence": 0.87,
                    "citations": [
                        {
                            "index": 1,
                            "id": "9f2a6c0d11e4b7a3",
                            "title": "Jamaica: geography",
                            "text": "The capital of Jamaica is Kingston. …",
                            "score": 0.71,
                        }
                    ],
                    "decision": {
                        "p_closed_book": 0.44,
                        "signals": {"seq_logprob": -0.31, "neg_entropy": -0.62, "margin": 2.9},
                        "thresholds": {"tau0": 0.71, "tau1": 0.0, "tau_abstain": 0.35},
                        "policy": "graded",
                        "reason": "borderline",
                        "calibrator": {"version": "2026-11-16-0a1b2c3d", "certified": True},
                    },
                    "usage": {
                        "probe": {"prompt_tokens": 47, "completion_tokens": 9},
                        "read": {"prompt_tokens": 124, "completion_tokens": 8},
                        "passages": 1,
                        "searches": {"used": 1, "wasted": 0},
                    },
                    "timings_ms": {"probe": 212.0, "embed": 14.2, "search": 0.8, "read": 391.5, "total": 620.3},
                    "feedback_wanted": False,
                }
            ]
        }
    )

    id: str
    answer: str | None = Field(description="Null if it is withheld.")
    action: str = Field(description="What was done: `k` and the number of passages read, or `abstain`.")
    k: int = Field(description="Number of passages that were requested and read, also if the answer is withheld.")
    confidence: float | None = Field(description="P(this answer is right); null without a matching calibrator.")
    citations: list[CitationOut]
    decision: DecisionOut
    usage: UsageOut
    timings_ms: TimingsOut
    feedback_wanted: bool = Field(
        description="This answer was drawn at random: please send `/feedback`, if possible with reference answers."
    )


def receipt(record: DecisionRecord) -> dict[str, Any]:
    """Render a record as a receipt for orjson, without validating our own output."""
    reply, thresholds, timings = record.reply, record.policy.thresholds, record.timings
    used = record.searches if record.citations else 0
    return {
        "id": record.question.id,
        "answer": reply.text,
        "action": record.action,
        "k": reply.k,
        "confidence": reply.confidence,
        "citations": cited(record.citations),
        "decision": {
            "p_closed_book": record.p_closed_book,
            "signals": record.probe.signals if record.probe else {},
            "thresholds": {
                "tau0": thresholds.tau0 if thresholds else None,
                "tau1": thresholds.tau1 if thresholds else None,
                "tau_abstain": record.policy.tau,
            },
            "policy": record.question.options.policy.value,
            "reason": reply.reason.value,
            "calibrator": {"version": record.policy.version, "certified": reply.certified},
        },
        "usage": {
            "probe": record.probe_usage,
            "read": record.read_usage,
            "passages": len(record.citations),
            "searches": {"used": used, "wasted": record.searches - used},
        },
        "timings_ms": {
            "probe": _ms(timings.probe),
            "embed": _ms(timings.embed),
            "search": _ms(timings.search),
            "read": _ms(timings.read),
            "total": _ms(timings.total),
        },
        "feedback_wanted": record.solicited or record.policy.sampled.shadow,
    }


def cited(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    """Passages with their numbers in the prompt."""
    return [
        {"index": index, "id": one.id, "title": one.title, "text": one.text, "score": one.score}
        for index, one in enumerate(passages, start=1)
    ]


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
