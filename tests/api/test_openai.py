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
EARLIER = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
]


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
        assert message["content"] == joined(chunks, "content") == plain["answer"]
        assert message["refusal"] == joined(chunks, "refusal")
        assert (message["refusal"] is None) == (plain["action"] != "abstain")
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


async def test_a_refusal_is_whole(gateway: FakeGateway) -> None:
    """The finish reason of a refusal is always `stop`."""
    gateway.reader.says(ASKED, "word " * 30, sure=HOPELESS)
    (choice,) = (await completed(gateway))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "stop")


WRONG: dict[str, tuple[dict[str, Any], str | None]] = {
    "warm": ({"temperature": 0.7}, "temperature"),
    "empty": ({"messages": [{"role": "user", "content": " "}]}, "messages.0.content"),
    "too long a question": ({"messages": [{"role": "user", "content": "x" * 201}]}, "messages.0.content"),
    "too long a conversation": (
        {"messages": [{"role": "user", "content": "x" * 300}, {"role": "user", "content": "Who?"}]},
        "messages",
    ),
    "unknown choice": ({"fetchwise": {"colour": "red"}}, "fetchwise.colour"),
}


async def test_wrong_requests(open_gateway: Open) -> None:
    """Each is a 400 whose `param` names the field, and no upstream is called."""
    async with open_gateway(max_question_chars=200, max_earlier_chars=250) as gateway:
        for name, (changes, param) in WRONG.items():
            error = check_shape(await chat(gateway, **changes), 422, "invalid_request")
            assert (name, error.error.type, error.error.param) == (name, "invalid_request_error", param)
        assert gateway.reader.calls == 0


async def test_conversations_teach_nothing(open_gateway: Open) -> None:
    """Conversations are neither explored nor repeated by shadow runs."""
    async with open_gateway(artifact={}, explore_share=1.0, shadow_share=1.0) as gateway:
        alone = (await completed(gateway))["fetchwise"]
        assert alone["feedback_wanted"]
        assert alone["decision"]["reason"] == "explored"
        said = [*EARLIER, {"role": "user", "content": ASKED}]
        talked = [(await completed(gateway, messages=said))["fetchwise"] for _ in range(20)]
        assert {one["decision"]["reason"] for one in talked} == {"not_calibrated"}
        assert not all(one["feedback_wanted"] for one in talked)
