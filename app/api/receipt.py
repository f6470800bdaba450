"""What goes over the wire: the request to `/answer`, and the decision receipt that comes back."""

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
    """What an asker may choose about how a question is answered, on whichever route it comes."""

    model_config = ConfigDict(extra="forbid")

    policy: Policy | None = Field(default=None, description="How k is chosen; the server's default where absent.")
    retrieval: Retrieval = Field(
        default=Retrieval.AUTO, description="`required` insists on passages, `forbidden` on none."
    )
    abstain: bool = Field(default=True, strict=True, description="Whether an unsure answer may be withheld.")
    collection: str | None = Field(default=None, min_length=1, max_length=64, description="Where to search.")
    filter: dict[Annotated[str, Field(min_length=1, max_length=64)], Scalar] | None = Field(
        default=None, max_length=16, description="Payload fields that a passage must have, with exactly these values."
    )
    tags: dict[Annotated[str, Field(min_length=1, max_length=64)], Tag] = Field(
        default_factory=dict, max_length=16, description="Labels of your own, for audits."
    )
    timeout_ms: int | None = Field(
        default=None,
        ge=1,
        le=600_000,
        strict=True,
        description="How long the answer is worth waiting for; the server's own limit holds where it is shorter. "
        "A search that takes longer is given up like one that failed, a reader that does is a 503.",
    )


# Control characters and surrogates are invisible or broken, but for line breaks and tabs, which people paste.
_BROKEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def readable(text: str, *, what: str = "the question") -> str:
    """A text without the white space around it; ValueError where nothing is left, or where it is broken."""
    stripped = text.strip()
    if not stripped:
        raise ValueError(f"{what} is empty")
    if bad := _BROKEN.search(stripped):
        raise ValueError(f"{what} holds the control character U+{ord(bad[0]):04X}: remove it")
    return stripped


class AnswerRequest(AnswerOptions):
    """A question, and what its asker may choose."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"question": "What is the capital of Jamaica?"},
                {"question": "What is the currency of Laos?", "retrieval": "required", "abstain": False},
                {"question": "What is the capital of Nauru?", "timeout_ms": 5000},
            ]
        },
    )

    question: Annotated[str, AfterValidator(readable)] = Field(
        min_length=1, description="What to answer, in a sentence."
    )
    max_tokens: int | None = Field(default=None, ge=1, le=512, strict=True, description="Longest answer, in tokens.")
    stream: bool = Field(
        default=False,
        strict=True,
        description="Answer by events: `decision`, `passages`, `token`..., then `final` (the receipt) or `error`.",
    )


class CitationOut(BaseModel):
    """A passage that was read; `index` is the number it had in the prompt."""

    index: int
    id: str
    title: str
    text: str
    score: float


class CalibratorOut(BaseModel):
    """Which calibrator judged, and whether exactly its certified policy ran."""

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
    signals: dict[str, float] = Field(description="Of the probe; empty where there was none.")
    thresholds: ThresholdsOut
    policy: Policy
    reason: Reason = Field(
        description="Why so many passages were read, or why nothing is answered. `bypassed`: gating does not pay at "
        "the moment."
    )
    calibrator: CalibratorOut


class SearchesOut(BaseModel):
    """Searches, by whether their passages were read."""

    used: int
    wasted: int


class UsageOut(BaseModel):
    """What the answer cost; a stage that did not run is null."""

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
    total: float = Field(description="From the question's arrival, with a wait in line and what is between the stages.")


class Receipt(BaseModel):
    """The decision receipt: the answer, and why it was given in this way."""

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
    answer: str | None = Field(description="null when withheld.")
    action: str = Field(description="What was done: `k` and the number of passages read, or `abstain`.")
    k: int = Field(description="How many passages were asked for and read, also when then withheld.")
    confidence: float | None = Field(description="P(this answer is right), where a matching calibrator says so.")
    citations: list[CitationOut]
    decision: DecisionOut
    usage: UsageOut
    timings_ms: TimingsOut
    feedback_wanted: bool = Field(
        description="Drawn at random: please say at `/feedback` whether the answer is right, best by reference answers."
    )


def receipt(record: DecisionRecord) -> dict[str, Any]:
    """Render a record as a receipt, for orjson; validating our own output would buy nothing."""
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
    """Passages by the number that they have in the prompt."""
    return [
        {"index": index, "id": one.id, "title": one.title, "text": one.text, "score": one.score}
        for index, one in enumerate(passages, start=1)
    ]


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
