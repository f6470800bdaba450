"""What every client library is asked to do, and how its program reports."""

import json
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, Field

MODEL = "fetchwise"
QUESTION = "What is the capital of Jamaica?"
SYSTEM = "You are a helpful assistant. Answer in one sentence."
TURNS = [
    {"role": "user", "content": "What is the capital of Jamaica?"},
    {"role": "assistant", "content": "The capital of Jamaica is Kingston."},
    {"role": "user", "content": "Which sea surrounds it?"},
    {"role": "assistant", "content": "The Caribbean Sea."},
    {"role": "user", "content": "Which currency do people pay with there?"},
]
ASK_FOR_JSON = "Give the capital of Jamaica and its country as JSON."
ASK_FOR_TOOL = "Look up the population of Kingston with the tool."
# The gateways abstain from it.
UNSURE = "How long must sourdough bread bake?"
WITHHELD = "I do not know"


# A small model would repeat itself without end.
Short = Annotated[str, Field(max_length=20)]


class Capital(BaseModel):
    """A capital and its country."""

    capital: Short
    country: Short


def says_something(text: Any) -> None:
    """Fail unless this is an answer."""
    assert isinstance(text, str), text
    assert text.strip()
    assert not text.startswith(WITHHELD), text


def has_no_tools(gateway: Any) -> bool:
    """Whether the reader ignores tools and writes text, as the embedded reader does."""
    return bool(gateway["calls_tools"] == "never")


def fits_the_tool(gateway: Any, arguments: Any) -> None:
    """Fail unless these are the tool's arguments; what exactly a real model writes is its own matter."""
    assert isinstance(arguments, dict), arguments
    assert gateway["calls_tools"] != "always" or set(arguments) == {"city"}, arguments


def abstains(text: Any) -> None:
    """Fail unless this is the sentence of an abstention."""
    assert isinstance(text, str), text
    assert text.startswith(WITHHELD), text


def raises(kind: type[BaseException], call: Callable[[], object]) -> BaseException:
    """The exception of the second call: the key's first request is allowed."""
    try:
        call()
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def report(*scenarios: Callable[[Any], None]) -> None:
    """Run every scenario against the gateway that the argument describes, and print the outcomes as JSON."""
    gateway = json.loads(sys.argv[1])
    outcomes = {}
    for scenario in scenarios:
        try:
            scenario(gateway)
        except Exception:  # noqa: BLE001 - the test shows it
            outcomes[scenario.__name__] = traceback.format_exc()[-3000:]
        else:
            outcomes[scenario.__name__] = ""
    print("\n" + json.dumps(outcomes))
