"""Replies of the OpenAI API: completions and chunks, with the decision receipt in an additional field.

In chat mode the choices are those of the reader.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from app.api.receipt import Receipt, receipt, shown_mode
from app.core.available import Passage, Usage
from app.core.ladder import Read, Step, Stop
from app.core.policy import Policy, Reason
from app.core.question import Question
from app.core.record import DecisionRecord

MODEL = "fetchwise"
# The field of a message that says that the answer is withheld.
Abstention = Literal["content", "refusal"]
_DONE = b"data: [DONE]\n\n"
MODES = ("answer", "chat")
# None: the default policy of the server.
POLICIES: dict[str, Policy | None] = {
    **dict.fromkeys((MODEL, *(f"{MODEL}-{mode}" for mode in MODES))),
    **{f"{MODEL}-{policy.value}": policy for policy in Policy},
}

_REFUSALS = {
    Reason.NO_PASSAGES: "I do not know: no passages were found.",
    Reason.RETRIEVAL_FAILED: "I do not know: the search for passages failed.",
    Reason.OUT_OF_SCOPE: "I do not know: the question is unlike those that the gateway is calibrated for.",
}
_UNSURE = "I do not know: the confidence in the answer is too low."


class MessageOut(BaseModel):
    """The answer, or why there is none. In chat mode the reader's own message, with its tool calls."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | None = Field(None, description="The answer; if it is withheld, a sentence that says so.")


class ChoiceOut(BaseModel):
    """The only choice; in chat mode one of the reader's."""

    model_config = ConfigDict(extra="allow")

    index: int
    message: MessageOut
    finish_reason: str | None


class StagesOut(BaseModel):
    """Tokens by stage."""

    rewrite_tokens: int
    probe_tokens: int
    read_tokens: int
    write_tokens: int


class CompletionUsage(BaseModel):
    """All tokens of the answer; the details add up to the totals."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: StagesOut
    completion_tokens_details: StagesOut


class ChatCompletion(BaseModel):
    """A complete answer."""

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
                        "prompt_tokens_details": {
                            "rewrite_tokens": 0,
                            "probe_tokens": 47,
                            "read_tokens": 124,
                            "write_tokens": 0,
                        },
                        "completion_tokens_details": {
                            "rewrite_tokens": 0,
                            "probe_tokens": 9,
                            "read_tokens": 8,
                            "write_tokens": 0,
                        },
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
    usage: CompletionUsage
    fetchwise: Receipt


class ModelOut(BaseModel):
    """A mode or a policy, listed as a model."""

    id: str
    object: Literal["model"] = "model"
    # Policies have no creation time.
    created: int = 0
    owned_by: str = MODEL


class ModelsOut(BaseModel):
    """The modes and the policies, listed as models."""

    object: Literal["list"] = "list"
    data: list[ModelOut]


def completion(record: DecisionRecord, model: str, abstention: Abstention) -> bytes:
    """The complete answer."""
    written = record.reply.written
    if written is not None and written.reply is not None:
        choices = written.reply["choices"]
    else:
        message = {"role": "assistant", "content": record.reply.text, "refusal": None} | withheld(record, abstention)
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(record)}]
    return orjson.dumps(
        {
            "id": completion_id(record.question.id),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": choices,
            "usage": usage(record),
            "fetchwise": receipt(record),
        }
    )


def completion_id(identifier: str) -> str:
    """The id of a completion: the id of the decision with OpenAI's prefix."""
    return f"chatcmpl-{identifier}"


def withheld(record: DecisionRecord, abstention: Abstention) -> dict[str, str]:
    """The sentence that says why the answer is withheld, by its field; empty if it is not.

    Many clients show an empty text, or an error, in place of a `refusal`.
    """
    return {abstention: _REFUSALS.get(record.reply.reason, _UNSURE)} if record.reply.withheld else {}


def finish_reason(record: DecisionRecord) -> str:
    """Why the text ended; a refusal is never cut off."""
    return "length" if record.reply.truncated and record.reply.text is not None else "stop"


def usage(record: DecisionRecord) -> dict[str, Any]:
    """The tokens of all stages, added up."""
    stages = {
        "rewrite_tokens": record.rewrite_usage or Usage(),
        "probe_tokens": record.probe_usage or Usage(),
        "read_tokens": record.read_usage or Usage(),
        "write_tokens": record.write_usage or Usage(),
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
    """The decision as headers, for clients that hide the body."""
    fields = {
        **_headers(record.question),
        "x-fetchwise-action": record.action,
        "x-fetchwise-k": str(record.reply.k),
        "x-fetchwise-reason": record.reply.reason.value,
    }
    if record.reply.confidence is not None:
        fields["x-fetchwise-confidence"] = f"{record.reply.confidence:.6g}"
    return fields


def _headers(question: Question) -> dict[str, str]:
    """What is known before anything is decided."""
    fields = {"x-fetchwise-id": question.id, "x-fetchwise-mode": shown_mode(question)}
    # Only names that are valid in a header; a misspelt field may contain anything.
    named = [name for name in question.ignored if name.isascii() and name.isidentifier()]
    return fields | ({"x-fetchwise-ignored": ", ".join(named)} if named else {})


class Chunks:
    """The chunks of one answer; together they contain the same as a completion."""

    def __init__(self, question: Question, model: str, *, with_usage: bool, abstention: Abstention) -> None:
        self._question = question
        self._with_usage = with_usage
        self._abstention = abstention
        self._common: dict[str, Any] = {
            "id": completion_id(question.id),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._headers: dict[str, str] = {}
        self._decided = False
        self._begun = False
        self._held = ""
        # The reader's last chunk of a choice, which gets the receipt if none follows.
        self._last: dict[str, Any] | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """The decision, known when the first chunk is sent."""
        return self._headers

    def step(self, step: Step, _evidence: Mapping[str, float]) -> bytes:
        """Begin the message, still without text, once it is known which answer it will have."""
        match step.action:
            case Stop(k):
                pass
            case Read(k) if k > 0 and step.wanted is not None:
                pass
            case _:
                return b""
        if self._decided:
            return b""
        self._decided = True
        assert step.why is not None
        self._headers = {
            **_headers(self._question),
            "x-fetchwise-k": str(k or 0),
            "x-fetchwise-reason": step.why.value,
        }
        # In chat mode the reader begins the message, or refuses the request.
        return b"" if self._question.writing else self._chunk({"role": "assistant"})

    def found(self, _passages: Sequence[Passage]) -> bytes:
        """Send nothing: the receipt cites them."""
        return b""

    def token(self, text: str) -> bytes:
        """Send the text without white space at either end of the answer."""
        text = self._held + text
        if not self._begun:
            text = text.lstrip()
        said = text.rstrip()
        self._held = text[len(said) :]
        if not said:
            return b""
        self._begun = True
        return self._chunk({"content": said})

    def chunk(self, event: Mapping[str, Any]) -> bytes:
        """Pass on the reader's choices; of the rest, the gateway has its own."""
        choices = event.get("choices")
        if not choices:
            return b""
        said = {**self._common, "choices": choices} | ({"usage": None} if self._with_usage else {})
        ends = any(isinstance(one, dict) and one.get("finish_reason") for one in choices)
        before, self._last = self._last, said if ends else None
        return (b"" if before is None else _event(before)) + (b"" if ends else _event(said))

    def final(self, record: DecisionRecord) -> bytes:
        """End the message with the receipt, and send the usage in a separate chunk if it was requested."""
        sentence = withheld(record, self._abstention)
        if sentence and self._question.writing:
            sentence = {"role": "assistant"} | sentence
        if self._last is not None:
            last = _event(self._last | {"fetchwise": receipt(record)})
        else:
            last = self._chunk({}, finish_reason(record), fetchwise=receipt(record))
        return b"".join(
            (
                self._chunk(sentence) if sentence else b"",
                last,
                _event({**self._common, "choices": [], "usage": usage(record)}) if self._with_usage else b"",
                _DONE,
            )
        )

    def failed(self, problem: bytes) -> bytes:
        """Send the error in the form that clients recognise."""
        return b"data: " + problem + b"\n\n"

    def _chunk(self, delta: dict[str, str], finished: str | None = None, **more: Any) -> bytes:  # noqa: ANN401 - JSON
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finished}
        unused = {"usage": None} if self._with_usage else {}
        return _event({**self._common, "choices": [choice], **unused, **more})


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"
