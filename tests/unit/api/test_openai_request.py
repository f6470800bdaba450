"""Chat requests: the question, the conversation before it, and the other fields."""

from typing import Any, get_type_hints

import pytest
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import completion_create_params
from pydantic import ValidationError

from app.api.openai.request import MAX_MESSAGES, ChatRequest, Message, conversation
from app.ports import Turn

ASKED = {"model": "fetchwise", "messages": [{"role": "user", "content": "Who?"}]}
LONGEST = 60


def parsed(messages: list[Any]) -> tuple[str, tuple[Turn, ...]]:
    """The question and the turns before it."""
    request = ChatRequest.model_validate({"model": "fetchwise", "messages": messages})
    return conversation(request.messages, question_chars=LONGEST, earlier_chars=3 * LONGEST)


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | more


def refused(*messages: dict[str, Any]) -> tuple[str, str]:
    """The invalid field of a conversation, and the message."""
    with pytest.raises(RequestValidationError) as caught:
        parsed(list(messages))
    (one,) = caught.value.errors()
    return ".".join(str(part) for part in one["loc"][1:]), one["msg"]


def test_a_single_question() -> None:
    """A single message has no earlier turns, as a string or in parts."""
    assert parsed([said("user", " Who? ")]) == ("Who?", ())
    assert parsed([said("user", [{"type": "text", "text": "Who"}, {"type": "text", "text": "was it?"}])]) == (
        "Who\nwas it?",
        (),
    )


def test_earlier_turns_keep_their_order_behind_the_instructions() -> None:
    """All instructions become one turn in front; a refusal is the text of its message."""
    messages = [
        said("user", "One?"),
        said("system", "Be brief."),
        said("assistant", None, refusal="I do not know."),
        said("developer", "Be kind."),
        said("assistant", [{"type": "refusal", "refusal": "No."}]),
        said("user", "Two?"),
    ]
    assert parsed(messages) == (
        "Two?",
        (
            Turn("system", "Be brief.\n\nBe kind."),
            Turn("user", "One?"),
            Turn("assistant", "I do not know."),
            Turn("assistant", "No."),
        ),
    )


def test_messages_without_text_say_nothing() -> None:
    """An empty system message does not change a single question."""
    assert parsed([said("system", " \n"), said("assistant", None), said("user", "Who?")]) == ("Who?", ())


def test_what_is_no_question() -> None:
    """The error names the invalid message."""
    assert refused(said("user", "Who?"), said("assistant", "She.")) == (
        "messages.1.role",
        "the last message is the question, so its role must be `user`",
    )
    assert refused(said("user", " ")) == ("messages.0.content", "the question is empty")
    assert refused(said("user", None)) == ("messages.0.content", "the question is empty")
    assert refused(said("user", "x" * (LONGEST + 1)))[0] == "messages.0.content"
    assert refused(said("system", "a\x00b"), said("user", "Who?")) == (
        "messages.0.content",
        "the message contains the control character U+0000: remove it",
    )
    where, why = refused(*[said("user", "x" * LONGEST) for _ in range(4)], said("user", "Who?"))
    assert where == "messages"
    assert "(240)" in why
    assert "180" in why


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("messages.0.content", said("user", [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}])),
        ("messages.0.content", said("user", [{"type": "input_audio", "input_audio": {}}])),
        ("messages.0.content", said("user", ["Who?"])),
        ("messages.0.content", said("user", 7)),
        ("messages.0.role", said("tool", "7")),
        ("messages.0.role", said("function", "7")),
        ("messages.0.tool_calls", said("assistant", None, tool_calls=[{"id": "1", "type": "function"}])),
        ("messages.0.function_call", said("assistant", None, function_call={"name": "f", "arguments": ""})),
        ("messages.0.audio", said("assistant", None, audio={"id": "1"})),
        ("messages.0.colour", said("user", "Who?", colour="red")),
    ],
)
def test_anything_but_text(where: str, message: dict[str, Any]) -> None:
    """Images, audio and tools are refused, and the error names the part."""
    assert where in wrong({"messages": [message]})


def wrong(changes: dict[str, Any]) -> dict[str, str]:
    """The errors of a request, by field."""
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate(ASKED | changes)
    return {".".join(str(part) for part in one["loc"]): one["msg"] for one in caught.value.errors()}


REFUSED: dict[str, list[Any]] = {
    "n": [2, 0, True, "1"],
    "temperature": [0.7, 1, False, "0"],
    "top_p": [0.9, True],
    "frequency_penalty": [0.1],
    "presence_penalty": [-1],
    "logit_bias": [{"50256": -100}],
    "logprobs": [True],
    "top_logprobs": [5],
    "stop": ["\n", ["."], ""],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x"}}],
    "modalities": [["text", "audio"], ["audio"]],
    "audio": [{"voice": "alloy", "format": "mp3"}],
    "tools": [[{"type": "function", "function": {"name": "f"}}]],
    "tool_choice": ["auto", "required", {"type": "function"}],
    "functions": [[{"name": "f"}]],
    "function_call": ["auto", {"name": "f"}],
    "web_search_options": [{}],
    "prediction": [{"type": "content", "content": "x"}],
    "reasoning_effort": ["low", "high"],
    "verbosity": ["low"],
    "moderation": [{"model": "x"}],
    "store": [True],
    "max_tokens": [0, 513, "24", 2.5, True],
    "max_completion_tokens": [0, 513],
    "stream": ["yes", 1],
    "stream_options": [{"include_usage": True}],
    "messages": [[], [said("user", "Who?")] * (MAX_MESSAGES + 1)],
    "fetchwise": [{"policy": "greedy"}, {"question": "Who?"}, {"stream": True}],
}
ACCEPTED: dict[str, list[Any]] = {
    "n": [1],
    "temperature": [0, 0.0],
    "top_p": [1, 1.0],
    "frequency_penalty": [0],
    "presence_penalty": [0.0],
    "logit_bias": [{}],
    "logprobs": [False],
    "top_logprobs": [0],
    "stop": [[]],
    "response_format": [{"type": "text"}],
    "modalities": [["text"]],
    "tools": [[]],
    "tool_choice": ["none"],
    "functions": [[]],
    "function_call": ["none"],
    "reasoning_effort": ["none"],
    "store": [False],
    "seed": [7],
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
    "stream": [True, False],
    "fetchwise": [{}, {"policy": "binary", "retrieval": "required", "tags": {"team": "x"}}],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in REFUSED.items() for value in values])
def test_what_cannot_be_honoured_is_refused(field: str, value: Any) -> None:
    """An unsupported field is refused with a reason, never ignored."""
    problems = wrong({field: value})
    assert all(name.split(".")[0] == field for name in problems), problems
    assert all(problems.values())


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in ACCEPTED.items() for value in values])
def test_what_changes_nothing_is_accepted(field: str, value: Any) -> None:
    """Defaults that clients spell out, and labels that are ignored."""
    ChatRequest.model_validate(ASKED | {field: value})


def test_null_is_absence() -> None:
    """Null is accepted: clients send it for missing values."""
    fields = set(ChatRequest.model_fields) - {"model", "messages"}
    assert ChatRequest.model_validate(ASKED | dict.fromkeys(fields)) == ChatRequest.model_validate(ASKED)


def test_an_unknown_field_is_refused() -> None:
    """An unknown field is refused, because a misspelt one would be ignored."""
    assert wrong({"temprature": 0}) == {"temprature": "Extra inputs are not permitted"}


def test_two_names_for_one_length() -> None:
    """Either name is accepted, and both if they agree."""
    assert ChatRequest.model_validate(ASKED | {"max_tokens": 7}).longest == 7
    assert ChatRequest.model_validate(ASKED | {"max_completion_tokens": 8, "max_tokens": 8}).longest == 8
    assert "max_tokens" in wrong({"max_tokens": 7, "max_completion_tokens": 8})


def test_every_field_that_the_client_can_send_is_decided_on() -> None:
    """Every field of the installed client is listed; a new one fails here until it is handled."""
    known: set[str] = set()
    for params in (
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    ):
        known |= get_type_hints(params).keys()
    assert known <= ChatRequest.model_fields.keys()
    assert ChatRequest.model_fields.keys() - known == {"fetchwise"}
    assert known - {"model", "messages"} <= REFUSED.keys() | ACCEPTED.keys()


TEXTS = st.text(st.characters(exclude_categories=()), max_size=LONGEST + 5)
CONTENTS = TEXTS | st.none() | st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXTS), max_size=3)
MESSAGES = st.lists(
    st.builds(said, st.sampled_from(["system", "developer", "user", "assistant"]), CONTENTS), min_size=1, max_size=6
)


@given(messages=MESSAGES)
def test_any_conversation(messages: list[dict[str, Any]]) -> None:
    """Any conversation is refused, or gives a question and turns within the limits that contain every text."""
    try:
        question, earlier = parsed(messages)
    except RequestValidationError as error:
        (one,) = error.errors()
        assert one["loc"][:2] == ("body", "messages")
        assert one["msg"]
        return
    except ValidationError:
        # Only lone surrogates do not make a message.
        assert any("\ud800" <= c <= "\udfff" for message in messages for c in str(message["content"]))
        return
    texts = [Message.model_validate(message).text.strip() for message in messages]
    assert question == texts[-1]
    assert 0 < len(question) <= LONGEST
    assert sum(len(turn.text) for turn in earlier) <= 3 * LONGEST
    assert "system" not in {turn.role for turn in earlier[1:]}
    spoken = [
        (message["role"], text)
        for message, text in zip(messages[:-1], texts[:-1], strict=True)
        if text and message["role"] in {"user", "assistant"}
    ]
    assert [(turn.role, turn.text) for turn in earlier if turn.role != "system"] == spoken
