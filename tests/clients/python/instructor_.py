"""`instructor`: structured output only, by tools (its default) and by JSON schema."""

from typing import Any

import instructor
import openai
from instructor.core import InstructorRetryException
from scenarios import ASK_FOR_JSON, MODEL, SYSTEM, TURNS, Capital, raises, report


def modes(gateway: Any) -> list[Any]:
    # Only a schema makes a small model write what fits.
    return [instructor.Mode.JSON_SCHEMA, *([instructor.Mode.TOOLS] if gateway["calls_tools"] == "always" else [])]


def client(gateway: Any, key: str | None = None, mode: Any = None, **more: Any) -> Any:
    made = openai.OpenAI(base_url=gateway["url"] + "/v1", api_key=key or gateway["key"], **more)
    return instructor.from_openai(made, mode=mode or modes(gateway)[-1])


def ask(asked: Any, messages: Any, **more: Any) -> Any:
    return asked.chat.completions.create(model=MODEL, messages=messages, response_model=Capital, max_tokens=80, **more)


def structured_output(gateway: Any) -> None:
    for mode in modes(gateway):
        assert isinstance(ask(client(gateway, mode=mode), [{"role": "user", "content": ASK_FOR_JSON}]), Capital)


def system_prompt(gateway: Any) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASK_FOR_JSON}]
    assert isinstance(ask(client(gateway), messages), Capital)


def three_turns(gateway: Any) -> None:
    assert isinstance(ask(client(gateway), TURNS), Capital)


def stream(gateway: Any) -> None:
    asked = client(gateway).chat.completions
    messages = [{"role": "user", "content": ASK_FOR_JSON}]
    *_, last = asked.create_partial(model=MODEL, messages=messages, response_model=Capital, max_tokens=80)
    assert last.capital


def rate_limit(gateway: Any) -> None:
    asked = client(gateway, gateway["limited"].pop(), max_retries=0)
    error = raises(
        InstructorRetryException, lambda: ask(asked, [{"role": "user", "content": ASK_FOR_JSON}], max_retries=0)
    )
    assert isinstance(error.__cause__.__cause__ or error.__cause__, openai.RateLimitError) or "429" in str(error)


report(structured_output, system_prompt, three_turns, stream, rate_limit)
