"""Chat mode: the caller's own request goes to the reader, and the gateway only adds passages to it."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from app.api.openai.reply import ChatCompletion
from app.core.prompts import WRITING
from app.core.scope import Scope
from app.errors import ReaderRefused, UpstreamUnavailable
from tests.fakes.artifacts import a_chat_artifact
from tests.fakes.gateway import FakeGateway
from tests.waiting import until

from .conftest import Open
from .replies import check_shape

ASKED = "What is the capital of Zubrovia?"
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
TALK: list[dict[str, Any]] = [
    SYSTEM,
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": ASKED},
]
CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
# Probabilities of the probe for which the rule of the fake artifact adds no passage, one, and five.
NONE, ONE, FIVE = 0.9, 0.6, 0.4
_ARTIFACT = a_chat_artifact()
WITH_RULE: dict[str, Any] = {"heads": _ARTIFACT.heads, "ladder": _ARTIFACT.ladder, "chat": _ARTIFACT.chat}
OUT_OF_SCOPE = WITH_RULE | {"scope": Scope(0.01, {"search.coverage_max": 1.5}, None, ("LATIN",), "tests")}
# No passage has it.
NOWHERE = {"filter": {"lang": "tlh"}}


async def post(gateway: FakeGateway, **more: Any) -> httpx.Response:
    body = {"model": "fetchwise", "messages": TALK} | more
    return await gateway.client.post("/v1/chat/completions", json=body)


async def chat(gateway: FakeGateway, **more: Any) -> dict[str, Any]:
    """The body of a completion, which must match the schema."""
    response = await post(gateway, **more)
    assert response.status_code == 200, response.text
    assert ChatCompletion.model_validate(response.json()).model_dump(mode="json") == response.json()
    return dict(response.json())


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    *chunks, last = [event.removeprefix("data: ") for event in response.text.strip().split("\n\n")]
    assert last == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def sent_to(gateway: FakeGateway) -> dict[str, Any]:
    """The last request that the reader received."""
    return dict(gateway.reader.chats[-1])


async def test_everything_but_the_passages_goes_through_unchanged(open_gateway: Open) -> None:
    """Parameters known and unknown, and every message; the passages come before the last message of the user."""
    parameters = {
        "temperature": 0.7,
        "top_p": 0.9,
        "stop": ["x"],
        "n": 1,
        "seed": 7,
        "presence_penalty": 0.5,
        "logprobs": True,
        "top_logprobs": 3,
        "tools": TOOLS,
        "tool_choice": "auto",
        "user": None,
        "top_k": 40,
        "response_format": {"type": "json_object"},
        "max_tokens": 300,
    }
    async with open_gateway(artifact=WITH_RULE) as gateway:
        gateway.reader.says(ASKED, "Lenkograd", k=0, sure=FIVE)
        body = await chat(gateway, **parameters)
        sent = sent_to(gateway)
        messages = sent.pop("messages")
        assert sent == parameters
        assert messages[:-1] == TALK[:-1]
        before, after = WRITING.chat.split("{passages}")
        content = messages[-1]["content"]
        assert content.startswith(before)
        assert content.endswith(after + ASKED)
        assert content.count("\n[") == 5
        assert "The capital of Zubrovia is Zubrville." in content
    receipt = body["fetchwise"]
    assert body["choices"][0]["message"]["content"] == receipt["answer"] == "The capital of Zubrovia is Zubrville."
    assert (receipt["mode"], receipt["k"], receipt["confidence"]) == ("chat", 5, None)
    assert receipt["standalone"] == {"question": ASKED, "how": "as_asked"}
    assert len(receipt["citations"]) == 5
    assert receipt["usage"]["write"]["completion_tokens"] > 0
    assert receipt["timings_ms"]["write"] is not None
    assert receipt["usage"]["read"] is None, "nothing is read before the answer is written"
    assert [step["action"] for step in receipt["decision"]["steps"]] == ["search", "read 0", "stop 5"]
    assert body["usage"]["prompt_tokens_details"]["write_tokens"] == receipt["usage"]["write"]["prompt_tokens"]
    assert body["model"] == "fetchwise"
    assert body["id"] == f"chatcmpl-{receipt['id']}"


@pytest.mark.parametrize(("sure", "k"), [(NONE, 0), (ONE, 1), (FIVE, 5)])
async def test_the_request_does_not_change_k(open_gateway: Open, sure: float, k: int) -> None:
    """A neutral system prompt, a temperature and a larger max_tokens choose the same k, by the same evidence."""
    question = {"role": "user", "content": ASKED}
    requests: list[dict[str, Any]] = [
        {"model": "fetchwise-chat", "messages": [question]},
        {"messages": [SYSTEM, question]},
        {"messages": [SYSTEM, question], "temperature": 1.5},
        {"messages": [SYSTEM, question], "max_tokens": 1000},
        {"messages": TALK, "temperature": 0.2, "max_completion_tokens": 7, "top_p": 0.5},
    ]
    async with open_gateway(artifact=WITH_RULE) as gateway:
        gateway.reader.says(ASKED, "Lenkograd", k=0, sure=sure)
        receipts = [(await chat(gateway, **request))["fetchwise"] for request in requests]
        added = [chats["messages"][-1]["content"].count("\n[") for chats in gateway.reader.chats]
    assert {receipt["k"] for receipt in receipts} == {k} == set(added)
    assert all(receipt["decision"] == receipts[0]["decision"] for receipt in receipts)
    assert receipts[0]["decision"]["calibrator"]["certified"]


async def test_a_stream_relays_the_readers_chunks(open_gateway: Open) -> None:
    """With our id and model, the receipt in the last one, and the usage only where it is wanted."""
    async with open_gateway(artifact=WITH_RULE) as gateway:
        response = await post(gateway, stream=True)
        chunks = chunks_of(response)
        whole = await chat(gateway)
        counted = chunks_of(await post(gateway, stream=True, stream_options={"include_usage": True}))
    assert response.headers["x-fetchwise-mode"] == "chat"
    assert response.headers["x-fetchwise-k"] == str(whole["fetchwise"]["k"])
    text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert [one["choices"][0]["delta"]["role"] for one in chunks if "role" in one["choices"][0]["delta"]] == [
        "assistant"
    ]
    assert {chunk["id"] for chunk in chunks} == {f"chatcmpl-{chunks[-1]['fetchwise']['id']}"}
    assert {chunk["model"] for chunk in chunks} == {"fetchwise"}
    assert all("fetchwise" not in chunk for chunk in chunks[:-1])
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert not any(chunk.get("usage") for chunk in chunks)
    assert counted[-1]["usage"] == whole["usage"]


async def test_several_choices_and_tool_calls_are_relayed(open_gateway: Open) -> None:
    """As the reader sent them, streamed or not."""
    message = {"role": "assistant", "content": None, "tool_calls": CALLS}
    choices = [
        {"index": number, "message": message, "logprobs": None, "finish_reason": "tool_calls"} for number in (0, 1)
    ]
    async with open_gateway() as gateway:
        gateway.reader.choices = choices
        body = await chat(gateway, tools=TOOLS, n=2)
        assert body["choices"] == choices
        assert body["fetchwise"]["answer"] == ""
        chunks = chunks_of(await post(gateway, tools=TOOLS, n=2, stream=True))
    ends = [one for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
    assert [(one["index"], one["finish_reason"]) for one in ends] == [(0, "tool_calls"), (1, "tool_calls")]
    called = [
        one["delta"]["tool_calls"] for chunk in chunks for one in chunk["choices"] if "tool_calls" in one["delta"]
    ]
    assert called == [CALLS, CALLS]
    assert "fetchwise" in chunks[-1]


@pytest.mark.parametrize(
    "messages",
    [
        [*TALK, {"role": "assistant", "content": None, "tool_calls": CALLS}, {"role": "tool", "content": "7"}],
        [*TALK, {"role": "assistant", "content": None, "tool_calls": CALLS}],
        [SYSTEM],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
    ],
)
async def test_what_asks_nothing_passes_through_without_retrieval(
    open_gateway: Open, messages: list[dict[str, Any]]
) -> None:
    """Turns with tools, and messages without text: no search, no probe, and not a character is added."""
    async with open_gateway(artifact=WITH_RULE) as gateway:
        receipt = (await chat(gateway, messages=messages))["fetchwise"]
        assert sent_to(gateway)["messages"] == messages
        assert gateway.reader.calls == 0
    assert (receipt["usage"]["searches"], receipt["k"], receipt["abstained"]) == (0, 0, False)
    assert receipt["standalone"]["how"] == "tool_turn"


@pytest.mark.parametrize(
    ("artifact", "more", "reason"),
    [
        (WITH_RULE, NOWHERE, "no_passages"),
        (None, NOWHERE, "no_passages"),
        (OUT_OF_SCOPE, {}, "out_of_scope"),
    ],
)
async def test_missing_evidence(
    open_gateway: Open, artifact: dict[str, Any] | None, more: dict[str, Any], reason: str
) -> None:
    """The reader is told, the answer is withheld, or nothing is added; by request."""
    async with open_gateway(artifact=artifact) as gateway:
        for stream in (False, True):
            for missing, before in (("note", WRITING.note), ("answer", "")):
                gateway.reader.chats.clear()
                response = await post(gateway, stream=stream, fetchwise={"missing": missing, **more})
                assert response.status_code == 200, response.text
                assert sent_to(gateway)["messages"] == [*TALK[:-1], TALK[-1] | {"content": before + ASKED}]
            gateway.reader.chats.clear()
            response = await post(gateway, stream=stream, fetchwise={"missing": "withhold", **more})
            assert not gateway.reader.chats
            if stream:
                *_, said, last = chunks_of(response)
                assert said["choices"][0]["delta"]["content"].startswith("I do not know: ")
                receipt = last["fetchwise"]
            else:
                assert response.json()["choices"][0]["message"]["content"].startswith("I do not know: ")
                receipt = response.json()["fetchwise"]
            assert (receipt["abstained"], receipt["decision"]["reason"]) == (True, reason)


async def test_required_passages_that_are_missing(open_gateway: Open) -> None:
    """They are missing evidence like any other: the reader is told, or the answer is withheld."""
    async with open_gateway(artifact=WITH_RULE) as gateway:
        required = {"retrieval": "required", **NOWHERE}
        assert (await chat(gateway, fetchwise={"missing": "withhold", **required}))["fetchwise"]["abstained"]
        assert not gateway.reader.chats
        noted = await chat(gateway, fetchwise=required)
        assert sent_to(gateway)["messages"][-1]["content"] == WRITING.note + ASKED
        assert (noted["fetchwise"]["k"], noted["fetchwise"]["decision"]["reason"]) == (0, "no_passages")


async def test_a_failed_search_is_missing_evidence(open_gateway: Open) -> None:
    """With and without a calibrator; the setting says what to do."""
    for artifact in (WITH_RULE, None):
        async with open_gateway(artifact=artifact, missing="withhold") as gateway:
            gateway.vectors.fail_with = UpstreamUnavailable("vectors", "gone")
            receipt = (await chat(gateway))["fetchwise"]
            assert (receipt["abstained"], receipt["decision"]["reason"]) == (True, "retrieval_failed")
            noted = await chat(gateway, fetchwise={"missing": "note"})
            assert not noted["fetchwise"]["abstained"]
            assert sent_to(gateway)["messages"][-1]["content"] == WRITING.note + ASKED


async def test_what_the_reader_refuses(open_gateway: Open) -> None:
    """A 400 with the reader's type and parameter, also where a stream was wanted."""
    async with open_gateway() as gateway:
        gateway.reader.fail_with = ReaderRefused("too warm", kind="BadRequestError", param="temperature")
        for stream in (False, True):
            response = await post(gateway, temperature=9, stream=stream)
            error = check_shape(response, 422, "reader_refused").error
            assert (error.type, error.param, error.message) == ("BadRequestError", "temperature", "too warm")


async def test_passages_that_do_not_fit_are_left_out(open_gateway: Open) -> None:
    """The worst first; a conversation that does not fit by itself is a 400."""
    async with open_gateway(max_body_bytes=100_000) as gateway:
        for filler, expected in ((7700, range(1, 5)), (7990 - len(ASKED), range(1))):
            talk = [{"role": "user", "content": "x" * filler}, {"role": "assistant", "content": ""}, TALK[-1]]
            body = await chat(gateway, messages=talk)
            assert len(body["fetchwise"]["citations"]) in expected
            assert sent_to(gateway)["messages"][-1]["content"].count("\n[") in expected
        response = await post(gateway, messages=[{"role": "user", "content": "x" * 9000}])
        check_shape(response, 422, "context_length_exceeded")


async def test_forced_modes(open_gateway: Open) -> None:
    """`fetchwise-chat` passes on a short question, and `fetchwise-answer` answers the last message."""
    async with open_gateway(artifact={}) as gateway:
        passed_on = await chat(gateway, model="fetchwise-chat", messages=[TALK[-1]])
        assert passed_on["fetchwise"]["mode"] == "chat"
        answered = await chat(gateway, model="fetchwise-answer", tools=TOOLS)
        assert answered["fetchwise"]["mode"] == "answer"
        assert answered["fetchwise"]["ignored"] == ["messages", "tools"]
        assert len(gateway.reader.chats) == 1


async def test_a_client_that_leaves_stops_the_reader(open_gateway: Open) -> None:
    """Its generation is cancelled, and the permit is free again."""
    async with open_gateway() as gateway:
        gateway.reader.hang = True
        left = asyncio.Event()
        body = json.dumps({"model": "fetchwise", "messages": TALK}).encode()
        asking = asyncio.create_task(gateway.straight(body, path="/v1/chat/completions", left=left))
        await until(lambda: gateway.reader.hanging == 1)
        left.set()
        await asking
        assert gateway.reader.cancelled == 1


async def test_a_long_message_is_searched_by_its_end(open_gateway: Open) -> None:
    """Where a question usually is; the reader gets all of it."""
    async with open_gateway(max_question_chars=50, max_body_bytes=100_000) as gateway:
        text = "word " * 400 + ASKED
        receipt = (await chat(gateway, messages=[{"role": "user", "content": text}]))["fetchwise"]
        assert receipt["standalone"]["question"] == text[-50:]
        assert sent_to(gateway)["messages"][-1]["content"].endswith(text)


async def test_the_question_behind_the_last_message_is_searched(open_gateway: Open) -> None:
    """A follow-up is rewritten before the search; its time and tokens count. The reader gets it as typed."""
    talk = [
        {"role": "user", "content": "What is the capital of France?"},
        TALK[2],
        {"role": "user", "content": "And its?"},
    ]
    async with open_gateway(artifact=WITH_RULE) as gateway:
        receipt = (await chat(gateway, messages=talk))["fetchwise"]
        rewriting, writing = gateway.reader.chats
        assert len(gateway.embedder.queries) == 1
        assert gateway.embedder.queries[0] == receipt["standalone"]["question"]
    assert receipt["standalone"]["how"] in {"rewritten", "failed"}
    assert rewriting["temperature"] == 0
    assert writing["messages"][-1]["content"].endswith("And its?")
    assert receipt["usage"]["rewrite"]["prompt_tokens"] > 0
    assert receipt["timings_ms"]["total"] >= receipt["timings_ms"]["rewrite"] > 0.0


async def test_small_talk_is_not_searched(open_gateway: Open) -> None:
    """Also as a first message, which then is no question."""
    async with open_gateway(artifact=WITH_RULE) as gateway:
        for messages in (
            [*TALK, TALK[2], {"role": "user", "content": "Thanks!"}],
            [{"role": "user", "content": "Hello"}],
        ):
            receipt = (await chat(gateway, messages=messages, model="fetchwise-always"))["fetchwise"]
            assert (receipt["standalone"]["how"], receipt["usage"]["searches"]) == ("small_talk", 0)
            assert sent_to(gateway)["messages"] == messages


@pytest.mark.parametrize("missing", ["note", "withhold"])
async def test_what_asks_nothing_is_never_out_of_scope(open_gateway: Open, missing: str) -> None:
    """It is passed on as it is, and nothing is embedded."""
    scope = Scope(0.01, {"question.near": 2.0}, 2.0, ("GREEK",), "tests")
    async with open_gateway(artifact=WITH_RULE | {"scope": scope}) as gateway:
        for last in ({"role": "user", "content": "Thanks!"}, {"role": "tool", "content": "7"}):
            messages = [*TALK, {"role": "assistant", "content": None, "tool_calls": CALLS}, last]
            receipt = (await chat(gateway, messages=messages, fetchwise={"missing": missing}))["fetchwise"]
            assert sent_to(gateway)["messages"] == messages
            assert (receipt["abstained"], gateway.embedder.queries) == (False, [])


async def test_only_a_question_as_asked_is_certified(open_gateway: Open) -> None:
    """The certificate is about single questions."""
    follow_up = [*TALK, TALK[2], {"role": "user", "content": "And its?"}]
    async with open_gateway(artifact=WITH_RULE) as gateway:
        for messages, certified in ((TALK, True), (follow_up, False)):
            receipt = (await chat(gateway, messages=messages))["fetchwise"]
            assert receipt["decision"]["calibrator"]["certified"] is certified


async def test_a_mode_alone_is_no_model(open_gateway: Open) -> None:
    """Its name begins with that of the gateway."""
    async with open_gateway() as gateway:
        for model in ("chat", "answer"):
            assert (await post(gateway, model=model)).status_code == 404
