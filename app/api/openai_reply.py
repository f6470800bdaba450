"""What goes out on the OpenAI API: completions, whole and in chunks, with the decision receipt beside the standard."""

import time
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas import Receipt, receipt
from app.decision.policy import Action, Policy, Reason
from app.decision.record import DecisionRecord, Usage

MODEL = "fetchwise"
# None: whatever the server's default policy is.
POLICIES: dict[str, Policy | None] = {MODEL: None} | {f"{MODEL}-{policy.value}": policy for policy in Policy}

_REFUSALS = {
    Reason.NO_PASSAGES: "I do not know: no passage was found to answer from.",
    Reason.RETRIEVAL_FAILED: "I do not know: the passages could not be searched.",
}
_UNSURE = "I do not know: no answer was sure enough to be given."


class MessageOut(BaseModel):
    """The answer, or why there is none."""

    role: Literal["assistant"]
    content: str | None = Field(description="The answer; null where it was withheld.")
    refusal: str | None = Field(description="Said where the answer was withheld.")


class ChoiceOut(BaseModel):
    """The one choice."""

    index: Literal[0]
    message: MessageOut
    logprobs: None
    finish_reason: Literal["stop", "length"]


class StagesOut(BaseModel):
    """Tokens by the stage that used them."""

    probe_tokens: int
    read_tokens: int
    wasted_tokens: int = Field(description="Of a read that was begun beside the probe and not wanted.")


class UsageOut(BaseModel):
    """All tokens that the answer cost; the details add up to them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: StagesOut
    completion_tokens_details: StagesOut


class ChatCompletion(BaseModel):
    """A whole answer."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "chatcmpl-5b0c6f0e6d1f4c2a9d3e7a10",
                    "object": "chat.completion",
                    "created": 1763290000,
                    "model": MODEL,
                    "choices": [
                        {
                            "index": 0,
                            "message": {"role": "assistant", "content": "Kingston.", "refusal": None},
                            "logprobs": None,
                            "finish_reason": "stop",
                        }
                    ],
                    "usage": {
                        "prompt_tokens": 171,
                        "completion_tokens": 17,
                        "total_tokens": 188,
                        "prompt_tokens_details": {"probe_tokens": 47, "read_tokens": 124, "wasted_tokens": 0},
                        "completion_tokens_details": {"probe_tokens": 9, "read_tokens": 8, "wasted_tokens": 0},
                    },
                    "fetchwise": Receipt.model_config["json_schema_extra"]["examples"][0],  # type: ignore[index]
                }
            ]
        }
    )

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChoiceOut]
    usage: UsageOut
    fetchwise: Receipt


class ModelOut(BaseModel):
    """A policy, as a model."""

    id: str
    object: Literal["model"] = "model"
    # No policy was made at a time of its own.
    created: int = 0
    owned_by: str = MODEL


class ModelsOut(BaseModel):
    """The policies, as models."""

    object: Literal["list"] = "list"
    data: list[ModelOut]


class OpenAIProblem(BaseModel):
    """What went wrong; `param` names the field, if one is to blame."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorOut(BaseModel):
    """The shape of every error below `/v1/`."""

    error: OpenAIProblem


def completion(record: DecisionRecord, model: str) -> bytes:
    """The whole answer."""
    return orjson.dumps(
        {
            "id": completion_id(record.id),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": record.answer, "refusal": refusal(record)},
                    "logprobs": None,
                    "finish_reason": finish_reason(record),
                }
            ],
            "usage": usage(record),
            "fetchwise": receipt(record),
        }
    )


def completion_id(identifier: str) -> str:
    """The id of a completion: that of the decision, in OpenAI's manner."""
    return f"chatcmpl-{identifier}"


def refusal(record: DecisionRecord) -> str | None:
    """A sentence where the answer was withheld."""
    return _REFUSALS.get(record.reason, _UNSURE) if record.action is Action.ABSTAIN else None


def finish_reason(record: DecisionRecord) -> str:
    """Why it ended there: a refusal is whole, however long what it withholds."""
    return "length" if record.cut_off and record.answer is not None else "stop"


def usage(record: DecisionRecord) -> dict[str, Any]:
    """Every token that was paid for, added up."""
    stages = {
        "probe_tokens": record.probe_usage or Usage(),
        "read_tokens": record.read_usage or Usage(),
        "wasted_tokens": record.wasted_usage or Usage(),
    }
    total = sum(stages.values(), Usage())
    return {
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "total_tokens": total.prompt_tokens + total.completion_tokens,
        "prompt_tokens_details": {name: one.prompt_tokens for name, one in stages.items()},
        "completion_tokens_details": {name: one.completion_tokens for name, one in stages.items()},
    }


def headers(record: DecisionRecord) -> dict[str, str]:
    """How it was decided, for those who look at no body."""
    told = {
        "x-fetchwise-id": record.id,
        "x-fetchwise-action": record.action.value,
        "x-fetchwise-k": str(record.k),
        "x-fetchwise-reason": record.reason.value,
    }
    if record.confidence is not None:
        told["x-fetchwise-confidence"] = f"{record.confidence:.6g}"
    return told
