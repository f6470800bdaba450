"""A streamed answer as OpenAI's clients read it: chunks of a completion, and at the end `[DONE]` or an error."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.api.openai_reply import completion_id, finish_reason, refusal, usage
from app.api.schemas import receipt
from app.decision.policy import Decision
from app.decision.record import DecisionRecord
from app.ports import Passage

_DONE = b"data: [DONE]\n\n"


class Chunks:
    """The chunks of one answer; put together they say exactly what a whole completion would."""

    def __init__(self, identifier: str, model: str, *, with_usage: bool) -> None:
        self._id = identifier
        self._with_usage = with_usage
        self._common: dict[str, Any] = {
            "id": completion_id(identifier),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._headers: dict[str, str] = {}
        self._begun = False
        self._held = ""

    @property
    def headers(self) -> Mapping[str, str]:
        """What is known when the first chunk is: how the question is to be answered."""
        return self._headers

    def decided(self, decision: Decision) -> bytes:
        """Begin the message, with no word of it yet."""
        self._headers = {
            "x-fetchwise-id": self._id,
            "x-fetchwise-k": str(decision.k),
            "x-fetchwise-reason": decision.reason.value,
        }
        return self._chunk({"role": "assistant"})

    def found(self, _passages: Sequence[Passage]) -> bytes:
        """Say nothing: the receipt will cite them."""
        return b""

    def token(self, text: str) -> bytes:
        """Say it, but for white space at either end of the answer, which is no part of it."""
        text = self._held + text
        if not self._begun:
            text = text.lstrip()
        said = text.rstrip()
        self._held = text[len(said) :]
        if not said:
            return b""
        self._begun = True
        return self._chunk({"content": said})

    def final(self, record: DecisionRecord) -> bytes:
        """End the message, with the receipt; the usage comes in a chunk of its own, where it is wanted."""
        declined = refusal(record)
        return b"".join(
            (
                b"" if declined is None else self._chunk({"refusal": declined}),
                self._chunk({}, finish_reason(record), fetchwise=receipt(record)),
                _event({**self._common, "choices": [], "usage": usage(record)}) if self._with_usage else b"",
                _DONE,
            )
        )

    def failed(self, problem: bytes) -> bytes:
        """Say it as a client takes it for an error."""
        return b"data: " + problem + b"\n\n"

    def _chunk(self, delta: dict[str, str], finished: str | None = None, **more: Any) -> bytes:  # noqa: ANN401 - JSON
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finished}
        unused = {"usage": None} if self._with_usage else {}
        return _event({**self._common, "choices": [choice], **unused, **more})


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"
