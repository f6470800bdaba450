"""Requests of the OpenAI API: a chat request, its question and the conversation before it.

A standard field that would change the answer but is not supported is refused with a reason, never ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn

from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic_core import CoreSchema, core_schema

from app.api.request import AnswerOptions, readable
from app.core.question import Turn

MAX_MESSAGES = 128


@dataclass(frozen=True, slots=True)
class Only:
    """Annotates an unsupported field: it may be absent, null or a value without effect; anything else is refused."""

    because: str
    harmless: tuple[object, ...] = ()

    def check(self, value: object) -> None:
        """Refuse a value that would have an effect."""
        if value is not None and not any(_same(value, one) for one in self.harmless):
            raise ValueError(self.because)

    def __get_pydantic_core_schema__(self, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept any type, then check the value."""
        return core_schema.no_info_after_validator_function(self.check, core_schema.any_schema())

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Document the allowed values, and why others are refused."""
        allowed: list[dict[str, object]] = [*({"const": one} for one in self.harmless), {"type": "null"}]
        return {"anyOf": allowed, "description": f"Not supported: {self.because}."}


def _same(value: object, other: object) -> bool:
    # True equals 1 in Python, but not in JSON.
    return isinstance(value, bool) == isinstance(other, bool) and value == other


_Tools = Annotated[Any, Only("the gateway calls no tools", ([],))]
_ToolChoice = Annotated[Any, Only("the gateway calls no tools", ("none",))]
_Penalty = Annotated[Any, Only("answers are greedy: a penalty may only be 0", (0,))]
_Logprobs = Annotated[
    Any, Only("log-probabilities are not returned; `fetchwise.decision.signals` summarises them", (False, 0))
]
_Audio = Annotated[Any, Only("answers are text")]


class TextPart(BaseModel):
    """A text part of a message."""

    type: Literal["text"]
    text: str


class RefusalPart(BaseModel):
    """A refusal as part of an assistant's message."""

    type: Literal["refusal"]
    refusal: str


def _flat(content: object) -> object:
    """The text of a message, from a string or from parts."""
    if not isinstance(content, list):
        return content
    return "\n".join(_text(part, position) for position, part in enumerate(content))


def _text(part: object, position: int) -> str:
    match part:
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return text
    raise ValueError(f"only text is supported, and part {position} of the content is not text: remove it")


class Message(BaseModel):
    """One message of the conversation."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        str | None, BeforeValidator(_flat, json_schema_input_type=str | list[TextPart | RefusalPart] | None)
    ] = Field(default=None, description="Text, as a string or in parts.")
    refusal: str | None = Field(default=None, description="The refusal of an assistant's message.")
    name: str | None = Field(default=None, description="Accepted, and not used.")
    annotations: list[Any] | None = Field(default=None, description="Accepted, and not used.")
    audio: _Audio = None
    tool_calls: _Tools = None
    function_call: _ToolChoice = None

    @property
    def text(self) -> str:
        """The text of the message, or its refusal."""
        return self.content or self.refusal or ""


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = Field(
        default=False, strict=True, description="End the stream with a chunk that has the usage."
    )
    include_obfuscation: bool = Field(default=False, strict=True, description="Accepted, and not used.")


class ChatRequest(BaseModel):
    """A chat request. The last message is the question; the messages before it are its context."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "model": "fetchwise",
                    "messages": [{"role": "user", "content": "What is the capital of Jamaica?"}],
                },
                {
                    "model": "fetchwise-graded",
                    "messages": [
                        {"role": "user", "content": "What is the capital of Jamaica?"},
                        {"role": "assistant", "content": "Kingston."},
                        {"role": "user", "content": "And of Laos?"},
                    ],
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    "fetchwise": {"retrieval": "required", "abstain": False},
                },
            ]
        },
    )

    model: str = Field(description="`fetchwise`, or `fetchwise-` and a policy; `/v1/models` lists them.")
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=512, strict=True, description="Longest answer, in tokens."
    )
    max_tokens: int | None = Field(
        default=None, ge=1, le=512, strict=True, description="Older name of `max_completion_tokens`."
    )
    stream: bool | None = Field(default=None, strict=True, description="Stream chunks, then `[DONE]`.")
    stream_options: StreamOptions | None = None
    fetchwise: AnswerOptions | None = Field(default=None, description="The options of `/answer`.")

    n: Annotated[Any, Only("only one answer is returned: n may only be 1", (1,))] = None
    temperature: Annotated[Any, Only("answers are greedy: temperature may only be 0", (0,))] = None
    top_p: Annotated[Any, Only("answers are greedy: top_p may only be 1", (1,))] = None
    frequency_penalty: _Penalty = None
    presence_penalty: _Penalty = None
    logit_bias: Annotated[Any, Only("answers are greedy, by the model's own log-probabilities", ({},))] = None
    logprobs: _Logprobs = None
    top_logprobs: _Logprobs = None
    stop: Annotated[Any, Only("an answer always ends at its first line break", ([],))] = None
    response_format: Annotated[Any, Only("answers are plain text", ({"type": "text"},))] = None
    modalities: Annotated[Any, Only("answers are text", (["text"],))] = None
    audio: _Audio = None
    tools: _Tools = None
    tool_choice: _ToolChoice = None
    functions: _Tools = None
    function_call: _ToolChoice = None
    web_search_options: Annotated[Any, Only("passages come from the gateway's own collections")] = None
    prediction: Annotated[Any, Only("answers are short, so predicted outputs are not used")] = None
    reasoning_effort: Annotated[Any, Only("the reader answers without reasoning", ("none",))] = None
    verbosity: Annotated[Any, Only("answers are a few words; max_completion_tokens limits them")] = None
    moderation: Annotated[Any, Only("nothing is moderated")] = None
    store: Annotated[Any, Only("completions are not stored for later retrieval", (False,))] = None

    seed: int | None = Field(default=None, description="Accepted, and not used: answers are greedy.")
    user: str | None = Field(default=None, description="Accepted, and not used.")
    safety_identifier: str | None = Field(default=None, description="Accepted, and not used.")
    metadata: dict[str, str] | None = Field(
        default=None, description="Accepted, and not used; for labels see `fetchwise.tags`."
    )
    service_tier: str | None = Field(default=None, description="Accepted, and not used.")
    parallel_tool_calls: bool | None = Field(default=None, description="Accepted, and not used.")
    prompt_cache_key: str | None = Field(default=None, description="Accepted, and not used.")
    prompt_cache_retention: str | None = Field(default=None, description="Accepted, and not used.")
    prompt_cache_options: dict[str, Any] | None = Field(default=None, description="Accepted, and not used.")

    @field_validator("max_tokens")
    @classmethod
    def _one_length(cls, value: int | None, info: ValidationInfo) -> int | None:
        if None not in {value, other := info.data.get("max_completion_tokens")} and value != other:
            raise ValueError("it differs from max_completion_tokens: remove one of them")
        return value

    @field_validator("stream_options")
    @classmethod
    def _of_a_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("only allowed with `stream: true`")
        return value

    @property
    def longest(self) -> int | None:
        """The maximum length of the answer, by either name."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def usage_wanted(self) -> bool:
        """Whether the stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


def conversation(
    messages: Sequence[Message], *, question_chars: int, earlier_chars: int
) -> tuple[str, tuple[Turn, ...]]:
    """The question and the turns before it: all instructions as one turn, then the other messages in order.

    Messages without text are dropped. Raises RequestValidationError, which names the invalid message.
    """
    *before, last = messages
    if last.role != "user":
        _refuse("the last message is the question, so its role must be `user`", len(before), "role")
    question = _readable(last.text, "the question", len(before))
    if len(question) > question_chars:
        _refuse(f"the question is longer than {question_chars} characters: shorten it", len(before), "content")
    instructions: list[str] = []
    turns: list[Turn] = []
    for position, message in enumerate(before):
        if not message.text.strip():
            continue
        text = _readable(message.text, "the message", position)
        match message.role:
            case "user" | "assistant":
                turns.append(Turn(message.role, text))
            case _:
                instructions.append(text)
    # One system turn in front: many chat templates accept nothing else.
    earlier = (*([Turn("system", "\n\n".join(instructions))] if instructions else ()), *turns)
    length = sum(len(turn.text) for turn in earlier)
    if length > earlier_chars:
        _refuse(f"the messages before the question exceed {earlier_chars} characters ({length}): remove some")
    return question, earlier


def _readable(text: str, what: str, position: int) -> str:
    try:
        return readable(text, what=what)
    except ValueError as error:
        _refuse(str(error), position, "content")


def _refuse(why: str, *where: int | str) -> NoReturn:
    raise RequestValidationError([{"type": "value_error", "loc": ("body", "messages", *where), "msg": why}])
