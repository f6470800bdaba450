"""`openai` for Python: chat completions, responses, embeddings and models."""

import json
from typing import Any

import openai
from scenarios import (
    ASK_FOR_JSON,
    ASK_FOR_TOOL,
    MODEL,
    QUESTION,
    SYSTEM,
    TURNS,
    UNSURE,
    Capital,
    abstains,
    fits_the_tool,
    has_no_tools,
    raises,
    report,
    says_something,
)

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "population", "parameters": PARAMETERS, "strict": True}}
FLAT_TOOL: Any = {"type": "function", "name": "population", "parameters": PARAMETERS, "strict": True}


def client(gateway: Any, key: str | None = None, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway["url"] + "/v1", api_key=key or gateway["key"], **more)


def said(gateway: Any, messages: Any, **more: Any) -> Any:
    return client(gateway).chat.completions.create(model=MODEL, messages=messages, **more).choices[0].message


def chat(gateway: Any) -> None:
    says_something(said(gateway, [{"role": "user", "content": QUESTION}]).content)


def stream(gateway: Any) -> None:
    chunks = client(gateway).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], stream=True
    )
    says_something("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))


def system_prompt(gateway: Any) -> None:
    says_something(
        said(gateway, [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]).content
    )


def three_turns(gateway: Any) -> None:
    says_something(said(gateway, TURNS, temperature=0.7, max_completion_tokens=40).content)
    with client(gateway).chat.completions.stream(model=MODEL, messages=TURNS) as events:  # type: ignore[arg-type]
        says_something(events.get_final_completion().choices[0].message.content)


def structured_output(gateway: Any) -> None:
    parsed = client(gateway).chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": ASK_FOR_JSON}],
        response_format=Capital,
        max_completion_tokens=80,
    )
    assert isinstance(parsed.choices[0].message.parsed, Capital)


def tool_call(gateway: Any) -> None:
    asked: list[Any] = [{"role": "user", "content": ASK_FOR_TOOL}]
    if has_no_tools(gateway):
        says_something(said(gateway, asked, tools=[TOOL], max_completion_tokens=40).content)
        return
    choice: Any = {"type": "function", "function": {"name": "population"}}
    message = said(gateway, asked, tools=[TOOL], tool_choice=choice, max_completion_tokens=80)
    (call,) = message.tool_calls
    assert call.function.name == "population"
    fits_the_tool(gateway, json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": "1,200,000"}
    final = said(gateway, [*asked, message, result], tools=[TOOL], tool_choice="none", max_completion_tokens=40)
    says_something(final.content)
    events = client(gateway).chat.completions.create(
        model=MODEL, messages=asked, tools=[TOOL], tool_choice=choice, stream=True, max_completion_tokens=80
    )
    deltas = [delta for event in events if event.choices for delta in event.choices[0].delta.tool_calls or []]
    assert deltas[0].function.name == "population"
    fits_the_tool(gateway, json.loads("".join(delta.function.arguments or "" for delta in deltas)))


def abstention(gateway: Any) -> None:
    asked = client(gateway)
    reply = asked.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": UNSURE}])
    abstains(reply.choices[0].message.content)
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model_extra["fetchwise"]["abstained"] is True
    abstains(asked.responses.create(model=MODEL, input=UNSURE).output_text)


def rate_limit(gateway: Any) -> None:
    asked = client(gateway, gateway["limited"].pop(), max_retries=0)
    error = raises(
        openai.RateLimitError,
        lambda: asked.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": QUESTION}]),
    )
    assert int(error.response.headers["retry-after"]) >= 1


def responses(gateway: Any) -> None:
    asked = client(gateway).responses
    reply = asked.create(model=MODEL, input=QUESTION)
    says_something(reply.output_text)
    assert reply.usage.total_tokens > 0
    says_something(asked.create(model=MODEL, input=QUESTION, instructions=SYSTEM).output_text)
    says_something(asked.create(model=MODEL, input=TURNS, max_output_tokens=40).output_text)
    with asked.stream(model=MODEL, input=TURNS, max_output_tokens=40) as events:
        seen = list(events)
    says_something("".join(event.delta for event in seen if event.type == "response.output_text.delta"))
    assert seen[-1].type in {"response.completed", "response.incomplete"}


def responses_structured(gateway: Any) -> None:
    parsed = client(gateway).responses.parse(model=MODEL, input=ASK_FOR_JSON, text_format=Capital, max_output_tokens=80)
    assert isinstance(parsed.output_parsed, Capital)


def responses_tool_call(gateway: Any) -> None:
    asked: list[Any] = [{"role": "user", "content": ASK_FOR_TOOL}]
    more: Any = {"model": MODEL, "tools": [FLAT_TOOL], "max_output_tokens": 80}
    if has_no_tools(gateway):
        says_something(client(gateway).responses.create(input=asked, **more).output_text)
        return
    choice: Any = {"type": "function", "name": "population"}
    whole = client(gateway).responses.create(input=asked, tool_choice=choice, **more)
    (call,) = [item for item in whole.output if item.type == "function_call"]
    fits_the_tool(gateway, json.loads(call.arguments))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "1,200,000"}
    final = client(gateway).responses.create(input=[*asked, call.to_dict(), result], tool_choice="none", **more)
    says_something(final.output_text)
    with client(gateway).responses.stream(input=asked, tool_choice=choice, **more) as events:
        done = [event for event in events if event.type == "response.function_call_arguments.done"]
    fits_the_tool(gateway, json.loads(done[0].arguments))


def embeddings(gateway: Any) -> None:
    vectors = client(gateway).embeddings.create(model=MODEL, input=["Kingston", "Jamaica"]).data
    assert len(vectors) == 2
    assert abs(sum(x * x for x in vectors[0].embedding) - 1) < 1e-3


def models(gateway: Any) -> None:
    assert MODEL in [model.id for model in client(gateway).models.list()]


report(
    *(chat, stream, system_prompt, three_turns, structured_output, tool_call, abstention, rate_limit),
    *(responses, responses_structured, responses_tool_call, embeddings, models),
)
