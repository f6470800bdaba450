"""`llama-index-llms-openai-like`."""

from typing import Any

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
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


def client(gateway: Any, key: str | None = None, **more: Any) -> OpenAILike:
    chosen = {"is_chat_model": True, "is_function_calling_model": True} | more
    return OpenAILike(model=MODEL, api_base=gateway["url"] + "/v1", api_key=key or gateway["key"], **chosen)


def population(city: Short) -> str:
    """Look up the population of a city."""
    return f"{city}: 1,200,000"


def chat(gateway: Any) -> None:
    says_something(client(gateway).chat([ChatMessage(QUESTION)]).message.content)
    says_something(client(gateway).complete(QUESTION).text)


def stream(gateway: Any) -> None:
    says_something("".join(chunk.delta or "" for chunk in client(gateway).stream_chat([ChatMessage(QUESTION)])))


def system_prompt(gateway: Any) -> None:
    says_something(client(gateway).chat([ChatMessage(SYSTEM, role="system"), ChatMessage(QUESTION)]).message.content)


def three_turns(gateway: Any) -> None:
    turns = [ChatMessage(turn["content"], role=turn["role"]) for turn in TURNS]
    says_something(client(gateway, max_tokens=40).chat(turns).message.content)


def structured_output(gateway: Any) -> None:
    asked = client(gateway, max_tokens=80, should_use_structured_outputs=True).as_structured_llm(Capital)
    assert isinstance(asked.complete(ASK_FOR_JSON).raw, Capital)


def tool_call(gateway: Any) -> None:
    asked = client(gateway, max_tokens=80, strict=True)
    tool = FunctionTool.from_defaults(population)
    reply = asked.chat_with_tools([tool], ASK_FOR_TOOL, tool_required=not has_no_tools(gateway))
    if has_no_tools(gateway):
        says_something(reply.message.content)
        return
    (call,) = asked.get_tool_calls_from_response(reply)
    assert call.tool_name == "population"
    fits_the_tool(gateway, call.tool_kwargs)
    result = ChatMessage("1,200,000", role="tool", additional_kwargs={"tool_call_id": call.tool_id})
    says_something(
        client(gateway, max_tokens=40).chat([ChatMessage(ASK_FOR_TOOL), reply.message, result]).message.content
    )


def abstention(gateway: Any) -> None:
    abstains(client(gateway).chat([ChatMessage(UNSURE)]).message.content)


def rate_limit(gateway: Any) -> None:
    asked = client(gateway, gateway["limited"].pop(), max_retries=0)
    error = raises(openai.RateLimitError, lambda: asked.complete(QUESTION))
    assert int(error.response.headers["retry-after"]) >= 1


report(chat, stream, system_prompt, three_turns, structured_output, tool_call, abstention, rate_limit)
