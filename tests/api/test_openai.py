"""`/v1/chat/completions` and `/v1/models`: what `/answer` would say, in the words of OpenAI's API."""

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest

from app.api.openai_reply import ChatCompletion, ModelsOut
from app.decision.policy import Policy
from app.errors import PromptTooLong, UpstreamUnavailable
from app.ports import Turn
from tests.fakes.gateway import FakeGateway

from .conftest import Open, OpenKeyed
from .test_errors import check_shape
from .test_operations import metrics, sample

ASKED = "What is the secret?"
SECRET = "It is the forty second word."
# Confidences of every region of the fake artifact's thresholds: 0.25 abstain, 0.5 five, 0.75 one.
CONFIDENT, BORDERLINE, UNCERTAIN, HOPELESS = 0.9, 0.6, 0.4, 0.1
EARLIER = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
]


def a_body(question: str = ASKED, *, before: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    """A request of one message, or with others before it."""
    return {"model": "fetchwise", "messages": [*(before or []), {"role": "user", "content": question}]} | more


async def chat(gateway: FakeGateway, **asked: Any) -> httpx.Response:
    """One completion."""
    return await gateway.client.post("/v1/chat/completions", json=a_body(**asked))


async def completed(gateway: FakeGateway, **asked: Any) -> dict[str, Any]:
    """The body of a completion, which must be as documented."""
    response = await chat(gateway, **asked)
    assert response.status_code == 200, response.text
    ChatCompletion.model_validate(response.json())
    return dict(response.json())


async def chunked(gateway: FakeGateway, **asked: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed completion, which must end as they do."""
    response = await chat(gateway, stream=True, **asked)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, last = [event.removeprefix("data: ") for event in response.text.strip().split("\n\n")]
    assert last == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def joined(chunks: list[dict[str, Any]], field: str) -> str | None:
    """What the deltas say together; None where none says anything."""
    pieces = [choice["delta"][field] for chunk in chunks for choice in chunk["choices"] if field in choice["delta"]]
    return "".join(pieces) if pieces else None


def comparable(receipt: dict[str, Any]) -> dict[str, Any]:
    """A receipt without what time and chance make different."""
    return {name: value for name, value in receipt.items() if name not in {"id", "timings_ms", "feedback_wanted"}}


@pytest.mark.parametrize("sure", [CONFIDENT, BORDERLINE, UNCERTAIN, HOPELESS])
async def test_a_lone_message_is_answered_as_answer_would(gateway: FakeGateway, sure: float) -> None:
    """Whole or in chunks, the receipt is that of `/answer`, and the message says no more and no less."""
    gateway.reader.says(ASKED, SECRET, sure=sure)
    for policy, abstain in itertools.product([*Policy, None], [True, False]):
        chosen = {"abstain": abstain} | ({"policy": policy.value} if policy else {})
        plain = (await gateway.client.post("/answer", json={"question": ASKED} | chosen)).json()
        whole = await completed(gateway, fetchwise=chosen)
        chunks = await chunked(gateway, fetchwise=chosen)
        for receipt in (whole["fetchwise"], chunks[-1]["fetchwise"]):
            assert comparable(receipt) == comparable(plain)
        message = whole["choices"][0]["message"]
        assert message["content"] == joined(chunks, "content") == plain["answer"]
        assert message["refusal"] == joined(chunks, "refusal")
        assert (message["refusal"] is None) == (plain["action"] != "abstain")
        assert whole["choices"][0]["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
        assert chunks[0]["id"] == f"chatcmpl-{chunks[-1]['fetchwise']['id']}"
        assert whole["id"] == f"chatcmpl-{whole['fetchwise']['id']}"


async def test_a_model_is_a_policy(gateway: FakeGateway) -> None:
    """`fetchwise-` and its name; the same policy may be said twice, and no other one beside it."""
    for policy in Policy:
        model = f"fetchwise-{policy.value}"
        body = await completed(gateway, model=model)
        assert body["model"] == model
        assert body["fetchwise"]["decision"]["policy"] == policy.value
        assert (await chat(gateway, model=model, fetchwise={"policy": policy.value})).status_code == 200
        other = "always" if policy is not Policy.ALWAYS else "never"
        check_shape(await chat(gateway, model=model, fetchwise={"policy": other}), 422, "contradictory_request")


async def test_the_default_model_follows_the_server(open_gateway: Open) -> None:
    """`fetchwise` is whatever policy the operator chose."""
    async with open_gateway(artifact={}, policy="always") as gateway:
        assert (await completed(gateway))["fetchwise"]["decision"]["policy"] == "always"


async def test_models(gateway: FakeGateway) -> None:
    """One for the default and one for each policy; each can be looked at, and no other."""
    listed = ModelsOut.model_validate((await gateway.client.get("/v1/models")).json())
    assert [one.id for one in listed.data] == ["fetchwise", *(f"fetchwise-{policy.value}" for policy in Policy)]
    for one in listed.data:
        assert (await gateway.client.get(f"/v1/models/{one.id}")).json() == one.model_dump()
    check_shape(await gateway.client.get("/v1/models/gpt-4"), 404, "model_not_found")
    error = check_shape(await chat(gateway, model="gpt-4"), 404, "model_not_found")
    assert "fetchwise-graded" in error.error.message


async def test_a_conversation_is_not_calibrated(gateway: FakeGateway) -> None:
    """No artifact was fitted on one: k=5 and no confidence, however sure the reader is."""
    receipt = (await completed(gateway, before=EARLIER))["fetchwise"]
    assert (receipt["k"], receipt["decision"]["reason"], receipt["confidence"]) == (5, "not_calibrated", None)
    assert receipt["decision"]["calibrator"] == {"version": None, "certified": False}
    assert (await completed(gateway))["fetchwise"]["confidence"] is not None


async def test_the_reader_hears_the_conversation(gateway: FakeGateway) -> None:
    """As turns before the question, and the search as part of the query; streamed and not."""
    for more in ({}, {"stream": True}):
        gateway.reader.prompts.clear()
        gateway.embedder.queries.clear()
        assert (await chat(gateway, question="And of Italy?", before=EARLIER, **more)).status_code == 200
        (prompt,) = gateway.reader.prompts
        assert prompt.question == "And of Italy?"
        assert prompt.earlier == (
            Turn("system", "Be brief."),
            Turn("user", "What is the capital of France?"),
            Turn("assistant", "Paris."),
        )
        assert gateway.embedder.queries == ["And of Italy?\nWhat is the capital of France?"]


async def test_our_own_refusal_can_be_sent_back(gateway: FakeGateway) -> None:
    """A client appends the message that it got, whatever is in it."""
    gateway.reader.says(ASKED, SECRET, sure=HOPELESS)
    message = (await completed(gateway))["choices"][0]["message"]
    assert message["content"] is None
    assert (await chat(gateway, question="Why?", before=[message])).status_code == 200
    assert gateway.reader.prompts[-1].earlier == (Turn("assistant", message["refusal"]),)


async def test_a_withheld_answer_never_leaks(gateway: FakeGateway) -> None:
    """Not a word of it is in the reply, whole or in chunks."""
    gateway.reader.says(ASKED, SECRET, sure=HOPELESS)
    for policy, stream in itertools.product(("graded", "always", "never"), (True, False)):
        response = await chat(gateway, stream=stream, fetchwise={"policy": policy})
        assert "I do not know" in response.text
        assert "forty" not in response.text


async def test_why_there_is_no_answer(gateway: FakeGateway) -> None:
    """The refusal is a sentence for people, and says which of the three it was."""
    gateway.reader.says(ASKED, SECRET, sure=HOPELESS)
    refusals = {(await completed(gateway))["choices"][0]["message"]["refusal"]}
    nothing = {"retrieval": "required", "filter": {"lang": "tlh"}}
    refusals.add((await completed(gateway, fetchwise=nothing))["choices"][0]["message"]["refusal"])
    gateway.vectors.fail_with = UpstreamUnavailable("vectors", "down")
    refusals.add((await completed(gateway, fetchwise={"policy": "always"}))["choices"][0]["message"]["refusal"])
    assert len(refusals) == 3
    assert all(refusal.startswith("I do not know: ") for refusal in refusals)


@pytest.mark.parametrize("sure", [CONFIDENT, BORDERLINE, HOPELESS])
async def test_usage_adds_up(gateway: FakeGateway, sure: float) -> None:
    """Probe and reading together, whole or as the last chunk where it is asked for."""
    gateway.reader.says(ASKED, SECRET, sure=sure)
    body = await completed(gateway)
    chunks = await chunked(gateway, stream_options={"include_usage": True})
    usage = body["usage"]
    assert chunks[-1]["usage"] == usage
    assert chunks[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert "fetchwise" in chunks[-2]
    stages = [stage for name in ("probe", "read", "wasted") if (stage := body["fetchwise"]["usage"][name])]
    for kind in ("prompt_tokens", "completion_tokens"):
        assert usage[kind] == sum(stage[kind] for stage in stages) == sum(usage[f"{kind}_details"].values())
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert all("usage" not in chunk for chunk in await chunked(gateway))


async def test_an_answer_that_was_cut_says_so(gateway: FakeGateway) -> None:
    """`finish_reason` is `length`, and the answer is no longer calibrated; a refusal is whole all the same."""
    gateway.reader.says(ASKED, SECRET, sure=CONFIDENT)
    body = await completed(gateway, max_completion_tokens=3)
    assert body["choices"][0]["message"]["content"] == "It is the"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["fetchwise"]["decision"]["reason"] == "not_calibrated"
    chunks = await chunked(gateway, max_tokens=3)
    assert (joined(chunks, "content"), chunks[-1]["choices"][0]["finish_reason"]) == ("It is the", "length")
    gateway.reader.says(ASKED, "word " * 30, sure=HOPELESS)
    assert (await completed(gateway))["choices"][0]["finish_reason"] == "stop"


async def test_headers_tell_what_is_known(gateway: FakeGateway) -> None:
    """A whole reply tells all of the decision, the head of a stream what was decided so far."""
    response = await chat(gateway)
    told = {name: value for name, value in response.headers.items() if name.startswith("x-fetchwise-")}
    receipt = response.json()["fetchwise"]
    assert told == {
        "x-fetchwise-id": receipt["id"],
        "x-fetchwise-action": receipt["action"],
        "x-fetchwise-k": str(receipt["k"]),
        "x-fetchwise-reason": receipt["decision"]["reason"],
        "x-fetchwise-confidence": f"{receipt['confidence']:g}",
    }
    assert "x-fetchwise-confidence" not in (await chat(gateway, before=EARLIER)).headers
    streamed = await chat(gateway, stream=True)
    told = {name: value for name, value in streamed.headers.items() if name.startswith("x-fetchwise-")}
    assert told.keys() == {"x-fetchwise-id", "x-fetchwise-k", "x-fetchwise-reason"}
    assert told["x-fetchwise-id"] in streamed.text


async def test_an_answer_comes_piece_by_piece(gateway: FakeGateway) -> None:
    """Where nothing can withhold it each piece is a chunk; where the confidence must be known first, there is one."""
    gateway.reader.says(ASKED, SECRET, sure=UNCERTAIN)
    live = await chunked(gateway, fetchwise={"abstain": False})
    held = await chunked(gateway)
    assert sum("content" in chunk["choices"][0]["delta"] for chunk in live) == 6
    assert sum("content" in chunk["choices"][0]["delta"] for chunk in held) == 1
    assert joined(live, "content") == joined(held, "content") == SECRET


async def test_errors_before_the_first_chunk_are_statuses(gateway: FakeGateway) -> None:
    """A reader that is down is a 503, streamed or not, and one that a client waits for and tries again."""
    gateway.reader.fail_with = UpstreamUnavailable("reader", "down")
    for stream in (True, False):
        check_shape(await chat(gateway, stream=stream), 503, "upstream_unavailable")
    gateway.reader.fail_with = PromptTooLong("shorten it")
    check_shape(await chat(gateway), 422, "prompt_too_long")
    gateway.reader.fail_with = RuntimeError("secret inside")
    response = await chat(gateway)
    check_shape(response, 500, "internal_error")
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("failure", "kind", "code"),
    [
        (UpstreamUnavailable("reader", "gone"), "server_error", "upstream_unavailable"),
        (RuntimeError("secret inside"), "server_error", "internal_error"),
    ],
    ids=["foreseen", "unforeseen"],
)
async def test_errors_in_mid_stream_are_events(gateway: FakeGateway, failure: Exception, kind: str, code: str) -> None:
    """The status has been sent: the error is the last event, nothing is done after it, and it is counted."""
    gateway.reader.says(ASKED, SECRET, k=0, sure=UNCERTAIN)
    gateway.reader.fail_with, gateway.reader.fail_on_k = failure, 5
    response = await chat(gateway, stream=True)
    assert response.status_code == 200
    assert "secret" not in response.text
    *_, last = response.text.strip().split("\n\n")
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == (kind, None, code)
    if isinstance(failure, UpstreamUnavailable):
        assert sample(await metrics(gateway), "upstream_errors_total", upstream="reader", kind="unavailable") == 1


WRONG: dict[str, tuple[dict[str, Any], str | None]] = {
    "a tool": ({"tools": [{"type": "function"}]}, "tools"),
    "two answers": ({"n": 2}, "n"),
    "warm": ({"temperature": 0.7}, "temperature"),
    "unknown field": ({"colour": "red"}, "colour"),
    "picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content",
    ),
    "no messages": ({"messages": []}, "messages"),
    "the last is not the user's": ({"messages": EARLIER}, "messages.2.role"),
    "empty": ({"messages": [{"role": "user", "content": " "}]}, "messages.0.content"),
    "too long a question": ({"messages": [{"role": "user", "content": "x" * 201}]}, "messages.0.content"),
    "too long a conversation": (
        {"messages": [{"role": "user", "content": "x" * 300}, {"role": "user", "content": "Who?"}]},
        "messages",
    ),
    "unknown choice": ({"fetchwise": {"colour": "red"}}, "fetchwise.colour"),
}


async def test_wrong_requests(open_gateway: Open) -> None:
    """Each is a 400 whose `param` names what is wrong, and no part is bothered."""
    async with open_gateway(max_question_chars=200, max_earlier_chars=250) as gateway:
        for name, (changes, param) in WRONG.items():
            error = check_shape(
                await gateway.client.post("/v1/chat/completions", json=a_body() | changes), 422, "invalid_request"
            )
            assert (name, error.error.type, error.error.param) == (name, "invalid_request_error", param)
        assert gateway.reader.calls == 0


async def test_every_error_below_v1_has_the_shape(gateway: FakeGateway) -> None:
    """Also those that no route raises: unknown paths and methods, bodies that are no JSON or too large."""
    client = gateway.client
    check_shape(await client.get("/v1/nowhere"), 404, "not_found")
    check_shape(await client.post("/v1/embeddings", json={}), 404, "not_found")
    check_shape(await client.get("/v1/chat/completions"), 405, "method_not_allowed")
    said = {"content-type": "application/json"}
    check_shape(await client.post("/v1/chat/completions", content=b"{", headers=said), 400, "invalid_request")
    check_shape(await client.post("/v1/chat/completions", content=b"{}", headers=said), 422, "invalid_request")
    check_shape(await chat(gateway, user="x" * 5000), 413, "body_too_large")
    check_shape(await chat(gateway, fetchwise={"collection": "nowhere"}), 404, "unknown_collection")
    # All others keep ours.
    check_shape(await client.get("/nowhere"), 404, "not_found")


async def test_keys(open_keyed: OpenKeyed) -> None:
    """A refusal is a 401, 403 or 429 as clients expect it."""
    async with open_keyed() as keyed:
        _, slow = keyed.make(per_minute=1)
        await keyed.known(slow)
        check_shape(await keyed.send("POST", "/v1/chat/completions"), 401, "unauthorised")
        check_shape(await keyed.send("POST", "/v1/chat/completions", keyed.operator), 403, "denied")
        assert (await keyed.send("POST", "/v1/chat/completions", slow)).status_code == 200
        error = check_shape(await keyed.send("POST", "/v1/chat/completions", slow), 429, "over_limit")
        assert error.error.type == "rate_limit_error"


async def test_overload(open_gateway: Open) -> None:
    """The question after the last permit is a 429, streamed or not."""
    async with open_gateway(max_in_flight=1, queue=0) as gateway:
        begun = asyncio.Event()
        gateway.reader.hang, gateway.reader.before = True, lambda _: begun.set()
        working = asyncio.create_task(chat(gateway))
        await begun.wait()
        for stream in (True, False):
            check_shape(await chat(gateway, stream=stream), 429, "overloaded")
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_conversations_teach_nothing(open_gateway: Open) -> None:
    """Chance has no part in them, and no shadow run repeats them."""
    async with open_gateway(artifact={}, explore_share=1.0, shadow_share=1.0) as gateway:
        alone = (await completed(gateway))["fetchwise"]
        assert alone["feedback_wanted"]
        assert alone["decision"]["reason"] == "explored"
        talked = [(await completed(gateway, before=EARLIER))["fetchwise"] for _ in range(20)]
        assert {one["decision"]["reason"] for one in talked} == {"not_calibrated"}
        assert not all(one["feedback_wanted"] for one in talked)
