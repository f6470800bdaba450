"""Chat requests: their mode, what answer mode cannot honour, and what goes to the reader."""

from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import completion_create_params
from pydantic import ValidationError

from app.api.openai.request import ChatRequest, last_asked, mode_of, not_honoured
from app.core.standalone import text_of

ASKED: dict[str, Any] = {"model": "fetchwise", "messages": [{"role": "user", "content": "Who?"}]}


def parsed(**changes: Any) -> ChatRequest:
    return ChatRequest.model_validate(ASKED | changes)


def said(content: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | more


TEXT = {"type": "text", "text": "Who?"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    "message", [said("Who?"), said(" Who? \n"), said("x" * 300), said([TEXT]), said("Who?", name="me")]
)
def test_a_short_line_is_a_question(message: dict[str, Any]) -> None:
    """One message of the user, of one line and at most 300 characters, as a string or in parts."""
    assert mode_of(parsed(messages=[message])) == "answer"


@pytest.mark.parametrize(
    "messages",
    [
        [said("x" * 301)],
        [said("Who?\nAnd why?")],
        [said("Who\u2028is it?")],
        [said("Who\x00?")],
        [said("Thanks!")],
        [said(" ")],
        [said(None)],
        [said([])],
        [said([TEXT, IMAGE])],
        [said([TEXT, TEXT])],
        [said("Who?", role="assistant")],
        [said("7", role="tool", tool_call_id="1")],
        [said("Be brief.", role="system"), said("Who?")],
        [said("One?"), said("She.", role="assistant"), said("Who?")],
    ],
)
def test_everything_else_is_a_chat(messages: list[dict[str, Any]]) -> None:
    """A longer text, a conversation, a system prompt, images and tools."""
    assert mode_of(parsed(messages=messages)) == "chat"


OF_A_CHAT: dict[str, list[Any]] = {
    "n": [2, 0, True, "1"],
    "logprobs": [True],
    "top_logprobs": [5],
    "stop": ["\n", ["."]],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x"}}],
    "tools": [[{"type": "function", "function": {"name": "f"}}]],
    "functions": [[{"name": "f"}]],
}
NOT_HONOURED: dict[str, list[Any]] = {
    "temperature": [0.7, 1, False, "0"],
    "top_p": [0.9, True],
    "frequency_penalty": [0.1],
    "presence_penalty": [-1],
    "logit_bias": [{"50256": -100}],
    "modalities": [["text", "audio"], ["audio"]],
    "audio": [{"voice": "alloy", "format": "mp3"}],
    "tool_choice": ["required", {"type": "function"}],
    "function_call": [{"name": "f"}],
    "web_search_options": [{}],
    "prediction": [{"type": "content", "content": "x"}],
    "reasoning_effort": ["low", "high"],
    "verbosity": ["low"],
    "moderation": [{"model": "x"}],
    "store": [True],
    "seed": [7],
    "max_tokens": [0, 7, 25, "24", 2.5, True],
    "max_completion_tokens": [0, 1, 100_000],
    "temprature": [0],
}
WITHOUT_EFFECT: dict[str, list[Any]] = {
    "n": [1],
    "temperature": [0, 0.0],
    "top_p": [1, 1.0],
    "frequency_penalty": [0],
    "presence_penalty": [0.0],
    "logit_bias": [{}],
    "logprobs": [False],
    "top_logprobs": [0],
    "stop": [[], ""],
    "response_format": [{"type": "text"}],
    "modalities": [["text"]],
    "tools": [[]],
    "tool_choice": ["none", "auto"],
    "functions": [[]],
    "function_call": ["none"],
    "reasoning_effort": ["none"],
    "store": [False],
    "user": ["me"],
    "safety_identifier": ["me"],
    "metadata": [{"a": "b"}],
    "service_tier": ["auto"],
    "parallel_tool_calls": [True],
    "prompt_cache_key": ["x"],
    "prompt_cache_retention": ["24h"],
    "prompt_cache_options": [{"mode": "implicit"}],
    "max_tokens": [24],
    "max_completion_tokens": [24],
    "stream_options": [{"include_usage": True}],
    "stream": [True, False],
    "fetchwise": [{}, {"policy": "binary", "strict": True, "missing": "answer", "abstention": "refusal"}],
}


def each(fields: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(field, value) for field, values in fields.items() for value in values]


@pytest.mark.parametrize(("field", "value"), each(OF_A_CHAT))
def test_what_only_a_chat_has(field: str, value: Any) -> None:
    """Tools, formats, several choices, log-probabilities and stops make a chat, and are ignored where it is none."""
    request = parsed(**{field: value})
    assert mode_of(request) == "chat"
    assert not_honoured(request, longest=24) == (field,)


@pytest.mark.parametrize(("field", "value"), each(NOT_HONOURED))
def test_what_answer_mode_cannot_honour_is_named(field: str, value: Any) -> None:
    """It does not change the mode; also a field that nobody knows is named."""
    request = parsed(**{field: value})
    assert mode_of(request) == "answer"
    assert not_honoured(request, longest=24) == (field,)


@pytest.mark.parametrize(("field", "value"), each(WITHOUT_EFFECT))
def test_what_changes_nothing_is_not_named(field: str, value: Any) -> None:
    """Defaults that clients spell out, labels, and a length that is honoured."""
    request = parsed(**{field: value})
    assert mode_of(request) == "answer"
    assert not_honoured(request, longest=24) == ()


def test_null_is_absence() -> None:
    """Clients send null for missing values."""
    request = parsed(**dict.fromkeys({*OF_A_CHAT, *NOT_HONOURED, *WITHOUT_EFFECT}))
    assert mode_of(request) == "answer"
    assert not_honoured(request, longest=24) == ()


def test_earlier_messages_are_not_honoured() -> None:
    """Where answer mode is forced, the last message of the user is the question."""
    request = parsed(messages=[said("Be brief.", role="system"), said("Who?")], temperature=1)
    assert not_honoured(request, longest=24) == ("messages", "temperature")


def test_the_text_of_a_message() -> None:
    """Of parts, those that are text."""
    assert text_of(said([TEXT, IMAGE, {"type": "text"}, "x", TEXT])) == "Who?\nWho?"
    assert text_of(said(7)) == text_of({}) == ""
    assert last_asked([said("One?"), said(" a\x00b "), said("7", role="tool")]) == "a b"
    assert last_asked([said("Be brief.", role="system")]) == ""


def test_what_goes_to_the_reader() -> None:
    """Every field as it came, known or not, without those of the gateway."""
    sent = {"temperature": 0.7, "top_k": 5, "seed": None, "tools": [{"x": 1}]}
    messages = [said([TEXT, IMAGE], name="me", colour="red")]
    request = parsed(messages=messages, **sent, fetchwise={"missing": "note"}, stream=False)
    assert request.passed_on == {"messages": messages, **sent}
    options = {"include_usage": False, "continuous_usage_stats": True}
    streamed = parsed(stream=True, stream_options=options, **sent)
    assert streamed.passed_on == {"messages": ASKED["messages"], **sent, "stream_options": options}
    assert not streamed.usage_wanted


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []),
        ("messages", "Who?"),
        ("messages", ["Who?"]),
        ("stream", "yes"),
        ("stream", 1),
        ("stream_options", 7),
        ("model", None),
        ("fetchwise", {"policy": "greedy"}),
        ("fetchwise", {"question": "Who?"}),
        ("fetchwise", {"missing": "maybe"}),
        ("fetchwise", {"abstention": "loud"}),
    ],
)
def test_what_is_refused(field: str, value: Any) -> None:
    """Only what the gateway itself must understand."""
    with pytest.raises(ValidationError) as caught:
        parsed(**{field: value})
    assert all(str(one["loc"][0]) == field for one in caught.value.errors())


def test_every_field_that_the_client_can_send_is_decided_on() -> None:
    """Every field of the installed client is listed; a new one fails here until it is handled."""
    known: set[str] = set()
    for params in (
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    ):
        known |= get_type_hints(params).keys()
    assert known - {"model", "messages"} <= OF_A_CHAT.keys() | NOT_HONOURED.keys() | WITHOUT_EFFECT.keys()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("role", "content", "tool_calls", "name")
MESSAGES = st.lists(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4), min_size=1, max_size=4)


@given(messages=MESSAGES, others=st.dictionaries(st.sampled_from([*OF_A_CHAT, *NOT_HONOURED]), ANYTHING, max_size=3))
def test_any_messages(messages: list[dict[str, Any]], others: dict[str, Any]) -> None:
    """Whatever a message holds, its mode is known, and it goes to the reader as it is."""
    request = parsed(messages=messages, **others)
    assert mode_of(request) in {"answer", "chat"}
    assert isinstance(last_asked(request.messages), str)
    assert set(not_honoured(request, longest=24)) <= {*others, "messages"}
    assert request.passed_on == {"messages": messages, **others}
