"""`/v1/responses`: the same as `/v1/chat/completions`, in the format of the Responses API."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.errors import UpstreamUnavailable
from tests.fakes.gateway import ASKED, FakeGateway

from .conftest import Open
from .test_openai import CONFIDENT, HOPELESS

TOOL = {"type": "function", "name": "population", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "population", "arguments": '{"city": "Paris"}'}}


async def respond(gateway: FakeGateway, **body: Any) -> httpx.Response:
    """The reply to a request."""
    return await gateway.client.post("/v1/responses", json={"model": "fetchwise", "input": ASKED} | body)


async def response(gateway: FakeGateway, **body: Any) -> dict[str, Any]:
    """The response to a request."""
    reply = await respond(gateway, **body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def events(gateway: FakeGateway, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed response."""
    reply = await respond(gateway, stream=True, **body)
    assert reply.status_code == 200, reply.text
    found = []
    for block in reply.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


@pytest.mark.parametrize("sure", [CONFIDENT, HOPELESS])
async def test_a_question_is_answered_like_a_chat(gateway: FakeGateway, sure: float) -> None:
    """Text, receipt, usage and headers are those of a completion; an abstention is text."""
    gateway.reader.says(ASKED, "It is Paris.", sure=sure)
    asked = {"model": "fetchwise", "messages": [{"role": "user", "content": ASKED}]}
    chat = (await gateway.client.post("/v1/chat/completions", json=asked)).json()
    reply = await respond(gateway)
    whole = reply.json()
    (message,) = whole["output"]
    assert message["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert whole["status"] == "completed"
    assert whole["usage"]["total_tokens"] == chat["usage"]["total_tokens"]
    assert whole["fetchwise"]["abstained"] is (sure == HOPELESS)
    assert whole["id"] == f"resp_{reply.headers['x-fetchwise-id']}"


@pytest.mark.parametrize("body", [{}, {"instructions": "Be brief."}, {"input": [{"role": "user", "content": ASKED}]}])
async def test_a_stream_says_the_same(gateway: FakeGateway, body: dict[str, Any]) -> None:
    """The events open and close each item, and the last has the whole response."""
    whole, streamed = await response(gateway, **body), await events(gateway, **body)
    assert [event["type"] for event in streamed[:4]] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
    ]
    text = "".join(event["delta"] for event in streamed if event["type"] == "response.output_text.delta")
    assert text == whole["output"][0]["content"][0]["text"]
    last = streamed[-1]["response"]
    assert streamed[-1]["type"] == "response.completed"
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert last["fetchwise"]["k"] == whole["fetchwise"]["k"]
    assert last["usage"] == whole["usage"]


async def test_the_reader_gets_a_chat_request(gateway: FakeGateway) -> None:
    """Instructions, messages, functions and the format are translated; nothing else is added."""
    await response(
        gateway,
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "input_text", "text": ASKED}]},
            {"type": "function_call", "call_id": "1", "name": "population", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "population", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "2,000,000"},
            {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "1"}]},
        ],
        tools=[TOOL],
        tool_choice={"type": "function", "name": "population"},
        text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        max_output_tokens=7,
        temperature=0.5,
    )
    sent = gateway.reader.chats[-1]
    named = {"name": "population", "parameters": TOOL["parameters"]}
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": ASKED},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": one, "type": "function", "function": {"name": "population", "arguments": "{}"}} for one in "12"
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "2,000,000"},
        {"role": "tool", "tool_call_id": "2", "content": "1"},
    ]
    assert sent["tools"] == [{"type": "function", "function": named}]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "population"}}
    assert sent["response_format"]["json_schema"] == {"name": "x", "schema": {"type": "object"}}
    assert (sent["max_tokens"], sent["temperature"]) == (7, 0.5)


async def test_function_calls_and_their_events(gateway: FakeGateway) -> None:
    """A function call is an item; a stream sends its arguments in pieces."""
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    gateway.reader.choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    (item,) = (await response(gateway, tools=[TOOL]))["output"]
    assert (item["type"], item["call_id"], item["name"]) == ("function_call", "call_1", "population")
    assert item["arguments"] == CALL["function"]["arguments"]
    streamed = await events(gateway, tools=[TOOL])
    pieces = [event["delta"] for event in streamed if event["type"] == "response.function_call_arguments.delta"]
    (done,) = [event for event in streamed if event["type"] == "response.function_call_arguments.done"]
    assert "".join(pieces) == done["arguments"] == item["arguments"]
    assert streamed[-1]["response"]["output"] == [item | {"id": streamed[-1]["response"]["output"][0]["id"]}]


async def test_what_cannot_be_translated(gateway: FakeGateway) -> None:
    """A reference to something stored is refused with its reason; what has no effect is ignored and named."""
    for field, value in (
        *(("previous_response_id", "resp_1"), ("conversation", "c"), ("prompt", {"id": "p"}), ("background", True)),
        *(("tools", [{"type": "web_search"}]), ("tool_choice", {"type": "web_search"})),
        *(("input", [{"type": "computer_call"}]), ("input", [{"role": "user", "content": [{"type": "input_file"}]}])),
    ):
        reply = await respond(gateway, **{field: value})
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"].startswith(field)
        assert reply.json()["error"]["message"]
    said: list[dict[str, Any]] = [{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": ASKED}]
    odd = {"store": True, "include": [], "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "a\nb": 1}
    reply = await respond(gateway, input=said, **odd)
    assert reply.headers["x-fetchwise-ignored"] == "store, reasoning, text.verbosity, input.0 (item_reference)"


async def test_an_error_in_the_stream_is_an_event(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that fails after the first piece ends the response as failed."""

    async def breaks(_: object) -> AsyncIterator[dict[str, Any]]:
        yield {"choices": [{"index": 0, "delta": {"content": "It is"}, "finish_reason": None}]}
        raise UpstreamUnavailable("reader", "gone")

    monkeypatch.setattr(gateway.reader, "chat_stream", breaks)
    streamed = await events(gateway, instructions="Be brief.")
    assert streamed[-1]["type"] == "response.failed"
    assert streamed[-1]["response"]["status"] == "failed"
    assert streamed[-1]["response"]["error"]["message"]


async def test_an_answer_that_is_cut_off_is_incomplete(open_gateway: Open) -> None:
    """As in the Responses API."""
    async with open_gateway(max_tokens=2) as gateway:
        gateway.reader.says(ASKED, "one two three four", sure=CONFIDENT)
        whole = await response(gateway)
        assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert (await events(gateway))[-1]["type"] == "response.incomplete"


async def test_another_path_lists_what_exists(gateway: FakeGateway) -> None:
    """In the shape of OpenAI's errors."""
    for method, path in (("POST", "/v1/images/generations"), ("GET", "/v1/responses/resp_1"), ("GET", "/v1/files")):
        reply = await gateway.client.request(method, path)
        assert reply.status_code == 404
        error = reply.json()["error"]
        assert error["code"] == "not_found"
        for known in ("chat/completions", "embeddings", "models", "responses"):
            assert f"/v1/{known}" in error["message"]


async def test_questions_are_shed_before_they_are_read(open_gateway: Open) -> None:
    """With every permit taken a response is refused like an answer."""
    async with open_gateway(artifact={}, max_in_flight=1, queue=0) as gateway, gateway.busy():
        reply = await respond(gateway)
        assert reply.status_code == 429
        assert reply.json()["error"]["type"] == "rate_limit_error"
        assert int(reply.headers["retry-after"]) >= 1
