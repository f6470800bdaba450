"""`langchain-openai`."""

from typing import Any

import openai
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from scenarios import (
    ASK_FOR_JSON,
    ASK_FOR_TOOL,
    MODEL,
    QUESTION,
    SYSTEM,
    TURNS,
    UNSURE,
    Capital,
    Short,
    abstains,
    fits_the_tool,
    has_no_tools,
    raises,
    report,
    says_something,
)


@tool
def population(city: Short) -> str:
    """Look up the population of a city."""
    return f"{city}: 1,200,000"


def client(gateway: Any, key: str | None = None, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=gateway["url"] + "/v1", api_key=key or gateway["key"], **more)


def chat(gateway: Any) -> None:
    says_something(client(gateway).invoke(QUESTION).content)


def stream(gateway: Any) -> None:
    says_something("".join(chunk.text for chunk in client(gateway).stream(QUESTION)))


def system_prompt(gateway: Any) -> None:
    says_something(client(gateway).invoke([("system", SYSTEM), ("user", QUESTION)]).content)


def three_turns(gateway: Any) -> None:
    says_something(client(gateway, temperature=0.7, max_tokens=40).invoke(TURNS).content)


def structured_output(gateway: Any) -> None:
    asked = client(gateway, max_tokens=80).with_structured_output(Capital)
    assert isinstance(asked.invoke(ASK_FOR_JSON), Capital)


def tool_call(gateway: Any) -> None:
    if has_no_tools(gateway):
        says_something(client(gateway, max_tokens=40).bind_tools([population]).invoke(ASK_FOR_TOOL).content)
        return
    asked = client(gateway, max_tokens=80).bind_tools([population], tool_choice="population", strict=True)
    message = asked.invoke(ASK_FOR_TOOL)
    (call,) = message.tool_calls
    assert call["name"] == "population"
    fits_the_tool(gateway, call["args"])
    result = ToolMessage(population.invoke(call["args"]), tool_call_id=call["id"])
    final = client(gateway, max_tokens=40).invoke([("user", ASK_FOR_TOOL), message, result])
    says_something(final.content)


def abstention(gateway: Any) -> None:
    abstains(client(gateway).invoke(UNSURE).content)


def rate_limit(gateway: Any) -> None:
    asked = client(gateway, gateway["limited"].pop(), max_retries=0)
    error = raises(openai.RateLimitError, lambda: asked.invoke(QUESTION))
    assert int(error.response.headers["retry-after"]) >= 1


def responses(gateway: Any) -> None:
    asked = client(gateway, use_responses_api=True, max_tokens=40)
    says_something(asked.invoke(TURNS).text)
    says_something("".join(chunk.text for chunk in asked.stream(QUESTION)))


report(chat, stream, system_prompt, three_turns, structured_output, tool_call, abstention, rate_limit, responses)
