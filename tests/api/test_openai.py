"""`/v1/chat/completions` and `/v1/models`: the same as `/answer`, in the format of OpenAI's API."""

import itertools
import json
from typing import Any

import httpx
import pytest

from app.api.openai.reply import ChatCompletion
from app.core.policy import Policy
from tests.fakes.gateway import FakeGateway

from .conftest import Open
from .replies import check_shape

ASKED = "What is the secret?"
SECRET = "It is the forty second word."
# Confidences of every region of the fake artifact's thresholds: 0.25 abstain, 0.5 five, 0.75 one.
CONFIDENT, BORDERLINE, UNCERTAIN, HOPELESS = 0.9, 0.6, 0.4, 0.1


async def chat(gateway: FakeGateway, **more: Any) -> httpx.Response:
    """One completion of a single message."""
    body = {"model": "fetchwise", "messages": [{"role": "user", "content": ASKED}]} | more
    return await gateway.client.post("/v1/chat/completions", json=body)


async def completed(gateway: FakeGateway, **more: Any) -> dict[str, Any]:
    """The body of a completion; it must match the schema."""
    response = await chat(gateway, **more)
    assert response.status_code == 200, response.text
    ChatCompletion.model_validate(response.json())
    return dict(response.json())


async def chunked(gateway: FakeGateway, **more: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed completion; the last line must be [DONE]."""
    response = await chat(gateway, stream=True, **more)
    assert response.status_code == 200, response.text
    *chunks, last = [event.removeprefix("data: ") for event in response.text.strip().split("\n\n")]
    assert last == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def joined(chunks: list[dict[str, Any]], field: str) -> str | None:
    """The joined text of the deltas; None if there is none."""
    pieces = [choice["delta"][field] for chunk in chunks for choice in chunk["choices"] if field in choice["delta"]]
    return "".join(pieces) if pieces else None


def comparable(receipt: dict[str, Any]) -> dict[str, Any]:
    """A receipt without times and ids."""
    return {name: value for name, value in receipt.items() if name not in {"id", "timings_ms", "feedback_wanted"}}


@pytest.mark.parametrize("sure", [CONFIDENT, BORDERLINE, UNCERTAIN, HOPELESS])
async def test_a_single_message_is_answered_like_answer(gateway: FakeGateway, sure: float) -> None:
    """With and without streaming the receipt is that of `/answer`, and message and usage match it."""
    gateway.reader.says(ASKED, SECRET, sure=sure)
    for policy, abstain in itertools.product([*Policy, None], [True, False]):
        chosen = {"abstain": abstain} | ({"policy": policy.value} if policy else {})
        plain = await gateway.receipt(ASKED, **chosen)
        whole = await completed(gateway, fetchwise=chosen)
        chunks = await chunked(gateway, fetchwise=chosen)
        for receipt in (whole["fetchwise"], chunks[-1]["fetchwise"]):
            assert comparable(receipt) == comparable(plain)
        message = whole["choices"][0]["message"]
        assert message["content"] == joined(chunks, "content")
        assert message["content"] == plain["answer"] or plain["answer"] is None
        assert message["content"].startswith("I do not know") == plain["abstained"]
        assert message["refusal"] is None
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
        assert chunks[0]["id"] == f"chatcmpl-{chunks[-1]['fetchwise']['id']}"
        assert whole["id"] == f"chatcmpl-{whole['fetchwise']['id']}"
        stages = [stage for name in ("probe", "read") if (stage := plain["usage"][name])]
        for kind in ("prompt_tokens", "completion_tokens"):
            spent = sum(stage[kind] for stage in stages)
            assert whole["usage"][kind] == spent == sum(whole["usage"][f"{kind}_details"].values())


async def test_a_model_is_a_policy(gateway: FakeGateway) -> None:
    """`fetchwise-` and the policy. `fetchwise.policy` may repeat it, but not contradict it."""
    for policy in Policy:
        model = f"fetchwise-{policy.value}"
        body = await completed(gateway, model=model)
        assert body["model"] == model
        assert body["fetchwise"]["decision"]["policy"] == policy.value
        assert (await chat(gateway, model=model, fetchwise={"policy": policy.value})).status_code == 200
        other = "always" if policy is not Policy.ALWAYS else "never"
        check_shape(await chat(gateway, model=model, fetchwise={"policy": other}), 422, "contradictory_request")


async def test_the_default_model_follows_the_server(open_gateway: Open) -> None:
    """`fetchwise` uses the default policy of the server."""
    async with open_gateway(artifact={}, policy="always") as gateway:
        assert (await completed(gateway))["fetchwise"]["decision"]["policy"] == "always"


async def test_an_abstention_is_readable(gateway: FakeGateway) -> None:
    """A sentence in `content` says so, or in `refusal` where that is wanted; it always ends with `stop`."""
    gateway.reader.says(ASKED, "word " * 30, sure=HOPELESS)
    for chosen, field in (({}, "content"), ({"abstention": "refusal"}, "refusal")):
        body = await completed(gateway, fetchwise=chosen)
        (choice,) = body["choices"]
        assert choice["message"][field] == "I do not know: the confidence in the answer is too low."
        assert sum(choice["message"][name] is not None for name in ("content", "refusal")) == 1
        assert choice["finish_reason"] == "stop"
        assert body["fetchwise"]["abstained"]
        chunks = await chunked(gateway, fetchwise=chosen)
        assert joined(chunks, field) == choice["message"][field]
        assert [one["choices"][0]["finish_reason"] for one in chunks][-1] == "stop"


WRONG: dict[str, tuple[dict[str, Any], str | None]] = {
    "strict": ({"temperature": 0.7, "fetchwise": {"strict": True}}, "temperature"),
    "no messages": ({"messages": []}, "messages"),
    "empty": ({"model": "fetchwise-answer", "messages": [{"role": "user", "content": " "}]}, "messages"),
    "unknown choice": ({"fetchwise": {"colour": "red"}}, "fetchwise.colour"),
}


async def test_wrong_requests(open_gateway: Open) -> None:
    """Each is a 400 whose `param` names the field, and no upstream is called."""
    async with open_gateway() as gateway:
        for name, (changes, param) in WRONG.items():
            error = check_shape(await chat(gateway, **changes), 422, "invalid_request")
            assert (name, error.error.type, error.error.param) == (name, "invalid_request_error", param)
        assert gateway.reader.calls == 0


async def test_what_cannot_be_honoured_is_ignored_and_named(open_gateway: Open) -> None:
    """In the receipt and in a header, streamed or not; with the setting it is refused, unless the request says no."""
    sent = {"temperature": 0.7, "seed": 7, "max_tokens": 20, "Ünknown\n": 1}
    async with open_gateway(artifact={}) as gateway:
        for more in ({}, {"stream": True}):
            response = await chat(gateway, **sent, **more)
            assert response.status_code == 200
            assert response.headers["x-fetchwise-ignored"] == "max_tokens, seed, temperature"
            assert response.headers["x-fetchwise-mode"] == "answer"
        body = await completed(gateway, **sent)
        assert body["fetchwise"]["ignored"] == ["max_tokens", "seed", "temperature", "Ünknown\n"]
        assert body["fetchwise"]["decision"]["calibrator"]["version"], "a large limit does not lose the calibrator"
        assert "x-fetchwise-ignored" not in (await chat(gateway)).headers
    async with open_gateway(strict=True) as gateway:
        check_shape(await chat(gateway, **sent), 422, "invalid_request")
        assert (await chat(gateway, **sent, fetchwise={"strict": False})).status_code == 200
