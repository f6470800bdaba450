"""`POST /v1/responses`: OpenAI's Responses API, translated to a chat request and back.

Nothing is stored, so every request must bring its whole conversation.
"""

import re
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, cast

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.responses import StreamingResponse

from app.api.gateway import TheGateway
from app.api.http.direct import DirectRoute
from app.api.http.guard import AnswerCaller
from app.api.openai.request import ChatRequest
from app.api.openai.routes import ERRORS, chat

_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The response, with `stream` in events. `fetchwise` is the receipt as from `/answer`.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {
                "itemSchema": {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]},
            },
        },
    }
}
_IGNORED = "x-fetchwise-ignored"
_NAME = re.compile(r"[A-Za-z_.]{1,40}")
router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=DirectRoute)


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


@router.post("/responses", responses=ERRORS | _STREAMED, summary="Answer, in the form of the Responses API")
async def responses(body: ResponsesRequest, gateway: TheGateway, caller: AnswerCaller, request: Request) -> Response:
    """Answer as `/v1/chat/completions` does."""
    translated, ignored = _to_chat(body)
    try:
        asked = ChatRequest.model_validate(translated)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found]) from error
    reply = await chat(asked, gateway, caller, request)
    if ignored:
        said = [one for one in (reply.headers.get(_IGNORED), *ignored) if one]
        reply.headers[_IGNORED] = ", ".join(said)
    if isinstance(reply, StreamingResponse):
        reply.body_iterator = _events(body, cast("AsyncIterator[bytes]", reply.body_iterator))
        return reply
    if not reply.body:
        return reply
    kept = {name: value for name, value in reply.headers.items() if name.startswith("x-fetchwise-")}
    return Response(orjson.dumps(_whole(body, orjson.loads(reply.body))), media_type="application/json", headers=kept)


def _to_chat(body: ResponsesRequest) -> tuple[dict[str, Any], list[str]]:
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
    parts = []
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
        case {"type": "json_schema"}:
            return {"type": "json_schema", "json_schema": {name: wanted[name] for name in wanted if name != "type"}}
        case {"type": "json_object"}:
            return {"type": "json_object"}
    return None


def _invalid(why: str, *where: str | int) -> RequestValidationError:
    return RequestValidationError([{"type": "value_error", "loc": ("body", *where), "msg": why}])


def _whole(body: ResponsesRequest, completion: Mapping[str, Any]) -> dict[str, Any]:
    """The response of a completion."""
    (choice, *_) = completion["choices"]
    identifier, message = _identifier(completion), choice["message"]
    output = []
    if message.get("content") is not None or message.get("refusal") is not None:
        item = _message(identifier)
        item["content"] = [_part(message.get("content"), message.get("refusal"))]
        output.append(item | {"status": "completed"})
    for position, call in enumerate(message.get("tool_calls") or []):
        item = _call(identifier, position, call)
        output.append(item | {"arguments": call["function"]["arguments"], "status": "completed"})
    return _response(body, completion, output, choice["finish_reason"])


def _response(
    body: ResponsesRequest, completion: Mapping[str, Any], output: list[dict[str, Any]], finished: str | None
) -> dict[str, Any]:
    """A response; `finished` is None while it is in progress."""
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finished or "")
    status = "in_progress" if finished is None else "incomplete" if cut else "completed"
    usage = completion.get("usage")
    return {
        "id": f"resp_{_identifier(completion)}",
        "object": "response",
        "created_at": completion["created"],
        "status": status,
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": {},
        "model": completion["model"],
        "output": output,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "store": False,
        "temperature": body.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": body.top_p,
        "usage": usage
        and {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
        "fetchwise": completion.get("fetchwise"),
    }


def _identifier(completion: Mapping[str, Any]) -> str:
    return str(completion["id"]).removeprefix("chatcmpl-")


def _message(identifier: str) -> dict[str, Any]:
    return {"type": "message", "id": f"msg_{identifier}", "role": "assistant", "status": "in_progress", "content": []}


def _part(text: str | None, refusal: str | None = None) -> dict[str, Any]:
    if text is None:
        return {"type": "refusal", "refusal": refusal or ""}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(identifier: str, position: int, call: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{position}_{identifier}",
        "call_id": call["id"],
        "name": call["function"]["name"],
        "arguments": "",
        "status": "in_progress",
    }


async def _events(body: ResponsesRequest, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events of a stream of chunks."""
    stream = _Stream(body)
    async for sent in chunks:
        for event in sent.split(b"\n\n"):
            if event == b"data: [DONE]":
                yield stream.end()
            elif event.startswith(b"data: "):
                yield stream.chunk(orjson.loads(event.removeprefix(b"data: ")))
            elif event:
                # A comment, which keeps the connection open.
                yield event + b"\n\n"


class _Stream:
    """Turns the chunks of one completion into events."""

    def __init__(self, body: ResponsesRequest) -> None:
        self._body = body
        self._sequence = 0
        self._completion: dict[str, Any] = {}
        self._finished: str | None = None
        # In the order of their output: the items that have begun, by the kind and number of their chunks.
        self._items: dict[tuple[str, int], dict[str, Any]] = {}

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        """The events of one chunk."""
        if "error" in chunk:
            failed = _response(self._body, self._completion, list(self._items.values()), "stop")
            return self._event("response.failed", response=failed | {"status": "failed", "error": chunk["error"]})
        events = []
        if not self._completion:
            self._completion = {name: chunk[name] for name in ("id", "created", "model")}
            begun = _response(self._body, self._completion, [], None)
            events += [self._event(f"response.{name}", response=begun) for name in ("created", "in_progress")]
        self._completion |= {name: chunk[name] for name in ("usage", "fetchwise") if chunk.get(name)}
        for choice in chunk["choices"]:
            delta = choice["delta"]
            self._finished = choice.get("finish_reason") or self._finished
            for field, kind in (("content", "output_text"), ("refusal", "refusal")):
                if delta.get(field):
                    events.append(self._said(kind, delta[field]))
            for position, call in enumerate(delta.get("tool_calls") or []):
                events.append(self._called(call.get("index", position), call))
        return b"".join(events)

    def end(self) -> bytes:
        """Complete every item, and the response."""
        events = []
        for index, ((kind, _), item) in enumerate(self._items.items()):
            place = {"item_id": item["id"], "output_index": index}
            item["status"] = "completed"
            if kind == "call":
                done = {"arguments": item["arguments"], "name": item["name"]}
                events.append(self._event("response.function_call_arguments.done", **place, **done))
            else:
                (part,) = item["content"]
                field = "text" if kind == "output_text" else "refusal"
                logprobs = {"logprobs": []} if kind == "output_text" else {}
                done = {"content_index": 0, field: part[field], **logprobs}
                events.append(self._event(f"response.{kind}.done", **place, **done))
                events.append(self._event("response.content_part.done", **place, content_index=0, part=part))
            events.append(self._event("response.output_item.done", output_index=index, item=item))
        response = _response(self._body, self._completion, list(self._items.values()), self._finished or "stop")
        return b"".join([*events, self._event(f"response.{response['status']}", response=response)])

    def _said(self, kind: str, text: str) -> bytes:
        events = []
        field = "text" if kind == "output_text" else "refusal"
        if (kind, 0) not in self._items:
            item = _message(_identifier(self._completion))
            events.append(self._event("response.output_item.added", output_index=len(self._items), item=item))
            part = _part("") if kind == "output_text" else _part(None)
            place = {"item_id": item["id"], "output_index": len(self._items), "content_index": 0}
            events.append(self._event("response.content_part.added", **place, part=part))
            self._items[kind, 0] = item | {"content": [part]}
        item = self._items[kind, 0]
        item["content"][0][field] += text
        place = {"item_id": item["id"], "output_index": [*self._items].index((kind, 0)), "content_index": 0}
        logprobs = {"logprobs": []} if kind == "output_text" else {}
        return b"".join([*events, self._event(f"response.{kind}.delta", **place, delta=text, **logprobs)])

    def _called(self, position: int, call: Mapping[str, Any]) -> bytes:
        events = []
        if ("call", position) not in self._items:
            item = _call(_identifier(self._completion), position, call)
            events.append(self._event("response.output_item.added", output_index=len(self._items), item=item))
            self._items["call", position] = item
        if arguments := call["function"].get("arguments"):
            item = self._items["call", position]
            item["arguments"] += arguments
            place = {"item_id": item["id"], "output_index": [*self._items].index(("call", position))}
            events.append(self._event("response.function_call_arguments.delta", **place, delta=arguments))
        return b"".join(events)

    def _event(self, kind: str, **fields: Any) -> bytes:  # noqa: ANN401 - JSON
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"
