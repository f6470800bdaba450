"""`pydantic-ai`, with its chat model and its responses model."""

from typing import Any

from pydantic_ai import Agent, ModelHTTPError, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from scenarios import (
    ASK_FOR_JSON,
    ASK_FOR_TOOL,
    MODEL,
    QUESTION,
    SYSTEM,
    UNSURE,
    Capital,
    Short,
    abstains,
    raises,
    report,
    says_something,
)


def agent(gateway: Any, key: str | None = None, kind: Any = OpenAIChatModel, **more: Any) -> Agent[None, Any]:
    provider = OpenAIProvider(base_url=gateway["url"] + "/v1", api_key=key or gateway["key"])
    return Agent(kind(MODEL, provider=provider), **more)


def chat(gateway: Any) -> None:
    says_something(agent(gateway).run_sync(QUESTION).output)


def stream(gateway: Any) -> None:
    says_something("".join(agent(gateway).run_stream_sync(QUESTION).stream_text(delta=True)))


def system_prompt(gateway: Any) -> None:
    says_something(agent(gateway, system_prompt=SYSTEM).run_sync(QUESTION).output)
    says_something(agent(gateway, instructions=SYSTEM).run_sync(QUESTION).output)


def three_turns(gateway: Any) -> None:
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        asked = agent(gateway, kind=kind, model_settings={"max_tokens": 40})
        first = asked.run_sync(QUESTION)
        second = asked.run_sync("Which sea surrounds it?", message_history=first.all_messages())
        says_something(asked.run_sync("Which currency?", message_history=second.all_messages()).output)


def structured_output(gateway: Any) -> None:
    limit: Any = {"max_tokens": 80}
    # Only a schema makes a small model write what fits.
    if gateway["calls_tools"] == "always":
        output = agent(gateway, output_type=Capital, model_settings=limit).run_sync(ASK_FOR_JSON).output
        assert isinstance(output, Capital)
    output = agent(gateway, output_type=NativeOutput(Capital), model_settings=limit).run_sync(ASK_FOR_JSON).output
    assert isinstance(output, Capital)


def tool_call(gateway: Any) -> None:
    called = []
    asked = agent(gateway, model_settings={"max_tokens": 80})

    @asked.tool_plain
    def population(city: Short) -> str:
        """Look up the population of a city."""
        called.append(city)
        return "1,200,000"

    says_something(asked.run_sync(ASK_FOR_TOOL).output)
    # Whether to call it is the model's choice: a small one may not.
    assert called or gateway["calls_tools"] != "always"


def abstention(gateway: Any) -> None:
    abstains(agent(gateway).run_sync(UNSURE).output)


def rate_limit(gateway: Any) -> None:
    provider = OpenAIProvider(base_url=gateway["url"] + "/v1", api_key=gateway["limited"].pop())
    provider.client.max_retries = 0
    asked: Agent[None, str] = Agent(OpenAIChatModel(MODEL, provider=provider))
    error = raises(ModelHTTPError, lambda: asked.run_sync(QUESTION))
    assert error.status_code == 429


def responses(gateway: Any) -> None:
    says_something(agent(gateway, kind=OpenAIResponsesModel).run_sync(QUESTION).output)


report(chat, stream, system_prompt, three_turns, structured_output, tool_call, abstention, rate_limit, responses)
