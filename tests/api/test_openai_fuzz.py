"""Any body on the OpenAI path gets a completion or a 4xx in OpenAI's shape; chunks match the completion."""

import json
from typing import Any

import httpx
from httpx_sse import EventSource
from hypothesis import given
from hypothesis import strategies as st

from app.api.http.errors import OpenAIErrorOut
from app.api.openai.reply import POLICIES, ChatCompletion
from app.api.openai.request import ChatRequest

from .running import Running
from .test_fuzz import ANYTHING, PLAUSIBLE, TEXT

PATH = "/v1/chat/completions"
# Words of an answer, none of which is in a question.
ANSWER = "zq9xv is what it is."

PARTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "refusal"]), "text": TEXT}), max_size=3
)
CONTENT = TEXT | st.none() | PARTS | ANYTHING
ROLES = st.sampled_from(["user", "user", "assistant", "system", "developer", "tool", "function"]) | TEXT
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES, "content": CONTENT}, optional={"name": TEXT}), max_size=5)
# Timeouts are left out: with too little time no part answers, and that is a 503.
CHOICES = st.fixed_dictionaries(
    {}, optional={name: PLAUSIBLE[name] for name in ("policy", "retrieval", "abstain", "collection", "filter", "tags")}
)
FIELDS: dict[str, st.SearchStrategy[Any]] = dict.fromkeys(ChatRequest.model_fields, ANYTHING) | {
    "model": st.sampled_from([*POLICIES, "gpt-4o"]) | ANYTHING,
    "messages": MESSAGES | ANYTHING,
    "max_tokens": st.integers(-1, 600) | st.none(),
    "max_completion_tokens": st.integers(-1, 600) | st.none(),
    "stream": st.booleans() | st.none(),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}) | ANYTHING,
    "fetchwise": CHOICES,
}
ASKED = {"model": "fetchwise", "messages": [{"role": "user", "content": "What is it?"}]}
BODIES = (
    ANYTHING
    | st.fixed_dictionaries({}, optional=FIELDS)
    | st.builds(lambda body: ASKED | body, st.fixed_dictionaries({}, optional=FIELDS))
)


def checked(response: httpx.Response) -> httpx.Response:
    """A completion, streamed or not, or a 4xx in OpenAI's shape."""
    kind = response.headers["content-type"]
    if response.status_code != 200:
        assert 400 <= response.status_code < 500, response.text
        error = OpenAIErrorOut.model_validate_json(response.content).error
        assert error.message
        assert response.status_code != 422
    elif kind.startswith("text/event-stream"):
        *chunks, last = [one.data for one in EventSource(response).iter_sse()]
        if last != "[DONE]":
            OpenAIErrorOut.model_validate_json(last)
        assert all(json.loads(one)["object"] == "chat.completion.chunk" for one in chunks)
    else:
        ChatCompletion.model_validate_json(response.content)
    return response


@given(body=BODIES)
def test_any_json(running: Running, body: Any) -> None:
    """Any JSON, including lone surrogates, NaN and huge numbers, is answered or refused."""
    checked(running.post(PATH, json.dumps(body).encode()))


@given(content=st.binary(max_size=200) | st.builds(lambda raw: b'{"model": "' + raw + b'"}', st.binary(max_size=60)))
def test_any_bytes(running: Running, content: bytes) -> None:
    """Any bytes are refused."""
    assert checked(running.post(PATH, content)).status_code == 400


@given(messages=MESSAGES)
def test_any_messages(running: Running, messages: list[dict[str, Any]]) -> None:
    """Any conversation gets a completion or a 400."""
    body = {"model": "fetchwise", "messages": messages}
    assert checked(running.post(PATH, json.dumps(body).encode())).status_code in {200, 400}


READABLE = st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=30)
TURNS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": READABLE}), max_size=4
)


@given(
    said=READABLE,
    sure=st.sampled_from([0.1, 0.3, 0.6, 0.9]),
    model=st.sampled_from([*POLICIES]),
    earlier=TURNS,
    abstain=st.booleans(),
    max_tokens=st.integers(1, 24),
    usage=st.booleans(),
)
def test_chunks_add_up_to_the_whole(
    running: Running,
    said: str,
    sure: float,
    model: str,
    earlier: list[dict[str, str]],
    abstain: bool,
    max_tokens: int,
    usage: bool,
) -> None:
    """The joined deltas are the content; a withheld answer is never sent."""
    question = "What is said?"
    running.gateway.reader.says(question, f"{ANSWER} {said}", sure=sure)
    body = {
        "model": model,
        "messages": [*earlier, {"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "fetchwise": {"abstain": abstain},
    }
    whole = ChatCompletion.model_validate_json(checked(running.send("POST", PATH, json=body)).content)
    streamed = checked(
        running.send("POST", PATH, json=body | {"stream": True, "stream_options": {"include_usage": usage}})
    )
    *events, done = [one.data for one in EventSource(streamed).iter_sse()]
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    joined = {name: "".join(one["delta"].get(name) or "" for one in choices) for name in ("content", "refusal")}
    (expected,) = whole.choices
    assert joined == {"content": expected.message.content or "", "refusal": ""}
    assert [one["finish_reason"] for one in choices if one["finish_reason"]] == [expected.finish_reason]
    if whole.fetchwise.abstained:
        assert ANSWER.split(maxsplit=1)[0] not in streamed.text
    (receipt,) = [chunk["fetchwise"] for chunk in chunks if "fetchwise" in chunk]
    told = whole.fetchwise
    assert (receipt["k"], receipt["action"], receipt["confidence"]) == (told.k, told.action, told.confidence)
    counted = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert counted == ([whole.usage.model_dump()] if usage else [])
