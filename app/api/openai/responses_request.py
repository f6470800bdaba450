"""Requests of the Responses API, and the chat requests that they become."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_NAME = re.compile(r"[A-Za-z_.]{1,40}")


def _refused(why: str) -> BeforeValidator:
    def check(value: object) -> object:
        if value:
            raise ValueError(why)
        return value

    return BeforeValidator(check)


_Stored = Annotated[Any, _refused("responses are not stored: send the whole conversation as `input`")]
_Plain = str | list[dict[str, Any]]


class ResponsesRequest(BaseModel):
    """A request of the Responses API. Other fields of the API are ignored and named in `x-fetchwise-ignored`."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"examples": [{"model": "fetchwise", "input": "What is the capital of Jamaica?"}]},
    )

    model: str = Field(description="As in `/v1/chat/completions`.")
    input: _Plain = Field(description="The question, or the conversation: messages, function calls and their outputs.")
    instructions: str | None = Field(default=None, description="The system prompt.")
    stream: bool | None = Field(default=None, strict=True, description="Stream events.")
    max_output_tokens: int | None = Field(default=None, ge=1, strict=True, description="Longest answer, in tokens.")
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = Field(default=None, description="Functions; no built-in tools.")
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = Field(default=None, description="`format`: plain text, or JSON with a schema.")
    fetchwise: dict[str, Any] | None = Field(default=None, description="The options of `/v1/chat/completions`.")
    previous_response_id: _Stored = None
    conversation: _Stored = None
    prompt: Annotated[Any, _refused("prompts are not stored: send it as `instructions`")] = None
    background: Annotated[Any, _refused("responses are not stored: wait for the answer, or stream it")] = None


def to_chat(body: ResponsesRequest) -> tuple[dict[str, Any], list[str]]:
    """The chat request, and what of the request it leaves out."""
    text = dict(body.text or {})
    others = {name: value for name, value in (body.model_extra or {}).items() if value not in (None, False, [], {})}
    others |= {f"text.{name}": value for name, value in text.items() if name != "format"}
    # They become a header.
    ignored = [name for name in others if _NAME.fullmatch(name)]
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    given = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for position, item in enumerate(given):
        match item:
            case {"type": "item_reference" | "reasoning" as kind}:
                ignored.append(f"input.{position} ({kind})")
            case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}:
                call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                messages[-1].setdefault("tool_calls", []).append(call)
            case {"type": "function_call_output", "call_id": call_id, "output": output}:
                content = _content(output, "input", position, "output")
                messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
            case {"role": role, "content": content}:
                said = _content(content, "input", position, "content")
                messages.append({"role": "system" if role == "developer" else role, "content": said})
            case _:
                raise _invalid(f"an item of this type is not supported: {item.get('type')!r}", "input", position)
    asked: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "tools": [_tool(tool, position) for position, tool in enumerate(body.tools or [])] or None,
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls if body.tools else None,
        "response_format": _format(text.get("format")),
        "fetchwise": body.fetchwise,
    }
    if body.stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    # Left out, not null: the reader gets what it would get from a chat client.
    return {name: value for name, value in asked.items() if value is not None}, ignored


def _content(content: object, *where: str | int) -> str | list[dict[str, Any]]:
    """The content of a message: one text if it has nothing but text."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for position, part in enumerate(content if isinstance(content, list) else [content]):
        match part:
            case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
                parts.append({"type": "text", "text": text})
            case {"type": "refusal", "refusal": str(text)}:
                parts.append({"type": "text", "text": text})
            case {"type": "input_image", "image_url": str(url)}:
                parts.append({"type": "image_url", "image_url": {"url": url}})
            case _:
                raise _invalid("a part of this type is not supported: send text", *where, position)
    if all(part["type"] == "text" for part in parts):
        return "\n".join(str(part["text"]) for part in parts)
    return parts


def _tool(tool: Mapping[str, Any], position: int) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise _invalid("only function tools are supported: the gateway has no built-in tools", "tools", position)
    named = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in named if tool.get(name) is not None}}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    match choice:
        case None | str():
            return choice
        case {"type": "function", "name": name}:
            return {"type": "function", "function": {"name": name}}
    raise _invalid("choose a function, `auto`, `none` or `required`", "tool_choice")


def _format(wanted: Mapping[str, Any] | None) -> dict[str, Any] | None:
    match wanted:
        case {"type": "json_schema", **schema}:
            return {"type": "json_schema", "json_schema": schema}
        case {"type": "json_object"}:
            return {"type": "json_object"}
    return None


def _invalid(why: str, *where: str | int) -> RequestValidationError:
    return RequestValidationError([{"type": "value_error", "loc": ("body", *where), "msg": why}])
