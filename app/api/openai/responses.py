"""`POST /v1/responses`: OpenAI's Responses API, translated to a chat request and back.

Nothing is stored, so every request must bring its whole conversation.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import StreamingResponse

from app.api.gateway import TheGateway
from app.api.http.direct import DirectRoute
from app.api.http.guard import AnswerCaller
from app.api.openai.request import ChatRequest
from app.api.openai.responses_request import ResponsesRequest, to_chat
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
router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=DirectRoute)


@router.post("/responses", responses=ERRORS | _STREAMED, summary="Answer, in the form of the Responses API")
async def responses(body: ResponsesRequest, gateway: TheGateway, caller: AnswerCaller, request: Request) -> Response:
    """Answer as `/v1/chat/completions` does."""
    translated, ignored = to_chat(body)
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
                logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
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
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
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
