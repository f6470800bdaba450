"""Requests of the OpenAI API, and the two modes of answering them.

A short question is answered as `/answer` does. Everything else is a chat: the request goes to the reader as it is, with
passages added.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NoReturn

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field

from app.api.openai.reply import Abstention
from app.api.request import AnswerOptions, cleaned
from app.core.question import Missing
from app.core.standalone import is_text, small_talk, text_of

Mode = Literal["answer", "chat"]
# The longest message that is taken for a question.
_MAX_QUESTION_CHARS = 300
_LENGTHS = ("max_completion_tokens", "max_tokens")
# With any of these, a request is a chat, unless they have a value without effect.
_OF_A_CHAT: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "stop": ([], ""),
}
# Values without effect on a short greedy answer. All others cannot be honoured.
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = _OF_A_CHAT | {
    "temperature": (0,),
    "top_p": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "reasoning_effort": ("none",),
    "store": (False,),
}
# What concerns the caller or the transport, and never the answer.
_LABELS = frozenset(
    {
        *("user", "safety_identifier", "metadata", "service_tier", "parallel_tool_calls"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
    }
)


class ChatOptions(AnswerOptions):
    """The options of `/answer`, and those of a chat."""

    missing: Missing | None = Field(
        default=None,
        description="In chat mode, if no evidence was found: tell the reader (`note`), withhold the answer, or answer "
        "as if nothing was missing. Default: the setting of the server.",
    )
    abstention: Abstention = Field(
        default="content", description="The field of the message that says that an answer is withheld."
    )
    strict: bool | None = Field(
        default=None,
        strict=True,
        description="Refuse fields that cannot be honoured instead of ignoring them. Default: the setting of the "
        "server.",
    )


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = Field(default=None, description="End the stream with a chunk that has the usage.")


class ChatRequest(BaseModel):
    """A chat request. Other fields of OpenAI's API and of the reader are accepted: a chat passes them on unchanged."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "model": "fetchwise",
                    "messages": [{"role": "user", "content": "What is the capital of Jamaica?"}],
                },
                {
                    "model": "fetchwise",
                    "messages": [
                        {"role": "system", "content": "Answer in one sentence."},
                        {"role": "user", "content": "What is the capital of Jamaica?"},
                        {"role": "assistant", "content": "The capital of Jamaica is Kingston."},
                        {"role": "user", "content": "And of Laos?"},
                    ],
                    "temperature": 0.2,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    "fetchwise": {"missing": "withhold"},
                },
            ]
        },
    )

    model: str = Field(
        description="`fetchwise` chooses the mode, `fetchwise-answer` and `fetchwise-chat` force one; `fetchwise-` and "
        "a policy chooses the policy. `/v1/models` lists them."
    )
    messages: list[dict[str, Any]] = Field(min_length=1)
    stream: bool | None = Field(default=None, strict=True, description="Stream chunks, then `[DONE]`.")
    stream_options: StreamOptions | None = None
    fetchwise: ChatOptions | None = Field(default=None, description="The options of `/answer`, and those of a chat.")

    @property
    def others(self) -> dict[str, Any]:
        """Every other field that has a value: clients send null for absence."""
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}

    @property
    def usage_wanted(self) -> bool:
        """Whether the stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def passed_on(self) -> dict[str, Any]:
        """What goes to the reader: the request as it is, without what concerns the gateway."""
        options = self.stream_options.model_dump(exclude_unset=True) if self.stream and self.stream_options else None
        sent = {"messages": self.messages, **(self.model_extra or {})}
        return sent | {"stream_options": options} if options else sent


def last_asked(messages: list[dict[str, Any]]) -> str:
    """The text of the last message of the user."""
    return cleaned(text_of(next((message for message in reversed(messages) if message.get("role") == "user"), {})))


def mode_of(request: ChatRequest) -> Mode:
    """A single short line without the fields of a chat is a question; all else is a chat, and so is a greeting."""
    (first, *rest) = request.messages
    text, content = text_of(first).strip(), first.get("content")
    only_text = isinstance(content, str) or (isinstance(content, list) and all(map(is_text, content)))
    question = not rest and first.get("role") == "user" and only_text and 0 < len(text) <= _MAX_QUESTION_CHARS
    one_line = len(text.splitlines()) == 1 and cleaned(text) == text
    asks = question and one_line and not small_talk(text)
    return "answer" if asks and not any(_effective(request.others, _OF_A_CHAT)) else "chat"


def not_honoured(request: ChatRequest, *, longest: int) -> tuple[str, ...]:
    """The fields that answer mode cannot honour: an answer is short and greedy.

    It ends at its own length of at most `longest` tokens: a calibrator holds for one length.
    """
    others = request.others
    found = [name for name in others if name not in {*_WITHOUT_EFFECT, *_LABELS, *_LENGTHS}]
    found += _effective(others, _WITHOUT_EFFECT)
    found += [name for name in _LENGTHS if others.get(name, longest) != longest]
    return tuple(sorted(found)) if len(request.messages) == 1 else ("messages", *sorted(found))


def refuse(
    names: tuple[str, ...], why: str = "cannot be honoured in answer mode: remove it, or use the model `fetchwise-chat`"
) -> NoReturn:
    """Refuse these fields."""
    raise RequestValidationError([{"type": "value_error", "loc": ("body", name), "msg": why} for name in names])


def _effective(others: Mapping[str, Any], without_effect: Mapping[str, tuple[object, ...]]) -> Iterator[str]:
    """The fields among these that have an effect."""
    for name, harmless in without_effect.items():
        if name in others and not any(_same(others[name], one) for one in harmless):
            yield name


def _same(value: object, other: object) -> bool:
    # True equals 1 in Python, but not in JSON.
    return isinstance(value, bool) == isinstance(other, bool) and value == other
