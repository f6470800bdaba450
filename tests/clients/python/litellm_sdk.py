"""The `litellm` SDK."""

import json
from typing import Any

import litellm
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

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "population",
        "description": "Look up the population of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def ask(gateway: Any, messages: Any, key: str | None = None, **more: Any) -> Any:
    return litellm.completion(
        model=f"openai/{MODEL}",
        api_base=gateway["url"] + "/v1",
        api_key=key or gateway["key"],
        messages=messages,
        **more,
    )


def question() -> list[Any]:
    return [{"role": "user", "content": QUESTION}]


def chat(gateway: Any) -> None:
    says_something(ask(gateway, question()).choices[0].message.content)


def stream(gateway: Any) -> None:
    chunks = ask(gateway, question(), stream=True)
    says_something("".join(chunk.choices[0].delta.content or "" for chunk in chunks))


def system_prompt(gateway: Any) -> None:
    says_something(ask(gateway, [{"role": "system", "content": SYSTEM}, *question()]).choices[0].message.content)


def three_turns(gateway: Any) -> None:
    says_something(ask(gateway, TURNS, max_tokens=40, temperature=0.7).choices[0].message.content)


def structured_output(gateway: Any) -> None:
    asked = [{"role": "user", "content": ASK_FOR_JSON}]
    content = ask(gateway, asked, response_format=Capital, max_tokens=80).choices[0].message.content
    Capital.model_validate_json(content)


def tool_call(gateway: Any) -> None:
    asked = [{"role": "user", "content": ASK_FOR_TOOL}]
    if has_no_tools(gateway):
        says_something(ask(gateway, asked, tools=[TOOL], max_tokens=40).choices[0].message.content)
        return
    choice = {"type": "function", "function": {"name": "population"}}
    message = ask(gateway, asked, tools=[TOOL], tool_choice=choice, max_tokens=80).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "population"
    fits_the_tool(gateway, json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": "1,200,000"}
    says_something(ask(gateway, [*asked, message, result], max_tokens=40).choices[0].message.content)


def abstention(gateway: Any) -> None:
    abstains(ask(gateway, [{"role": "user", "content": UNSURE}]).choices[0].message.content)


def rate_limit(gateway: Any) -> None:
    key = gateway["limited"].pop()
    error = raises(litellm.RateLimitError, lambda: ask(gateway, question(), key, max_retries=0))
    assert int(error.litellm_response_headers["retry-after"]) >= 1


def responses(gateway: Any) -> None:
    reply = litellm.responses(
        model=f"openai/{MODEL}", input=QUESTION, api_base=gateway["url"] + "/v1", api_key=gateway["key"]
    )
    says_something(reply.output_text)


def embeddings(gateway: Any) -> None:
    made = litellm.embedding(
        model=f"openai/{MODEL}", input=["Kingston"], api_base=gateway["url"] + "/v1", api_key=gateway["key"]
    )
    assert len(made.data) == 1


report(
    *(chat, stream, system_prompt, three_turns, structured_output, tool_call, abstention, rate_limit),
    *(responses, embeddings),
)
