"""The question behind the last message of a conversation: as typed if it stands alone, else rewritten by the reader.

The conversation is data: each message is one line of a block, with control tokens broken up. Whatever goes wrong, the
message is searched together with the one before it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from app.answer.run import Upstreams
from app.core.available import Usage
from app.core.prompts import break_markers
from app.core.question import Standalone
from app.core.standalone import is_rewrite, joined, small_talk, stands_alone, text_of
from app.errors import FetchwiseError
from app.ports import Reader

_NAMES = {"user": "User", "assistant": "Assistant"}
_INSTRUCTION = "Rewrite the last message of the user as a full question that names what it is about.\n\n"
# Short enough for a small reader's context. They show a pronoun, another subject, and another fact.
_EXAMPLES = (
    ("User: Who wrote Hamlet?\nAssistant: William Shakespeare.\nUser: When was he born?", "When was Shakespeare born?"),
    ("User: How high is Mount Everest?\nAssistant: 8,849 metres.\nUser: And K2?", "How high is K2?"),
    (
        "User: What is the largest planet?\nAssistant: Jupiter.\nUser: And the number of its moons?",
        "What is the number of moons of Jupiter?",
    ),
)
# Messages that count, those of them that the reader is shown, and characters of each.
_RECENT, _SHOWN, _MOST_CHARS = 12, 4, 400
_MAX_TOKENS = 48


async def standalone(
    messages: Sequence[Mapping[str, Any]], upstreams: Upstreams, deadline: float | None
) -> tuple[str, Standalone]:
    """The text to search for, and how it was found. `deadline` is on the event loop's clock."""
    said = [(str(message.get("role")), text_of(message).strip()) for message in messages]
    asked = max((place for place, (role, _) in enumerate(said) if role == "user"), default=len(said))
    original = said[asked][1] if said[asked:] else ""
    if not original or any(map(_of_tool, messages[asked + 1 :])):
        return original, Standalone("tool_turn", original)
    if small_talk(original):
        return original, Standalone("small_talk", original)
    recent = said[max(0, asked - _RECENT) : asked]
    before = [(role, text[:_MOST_CHARS]) for role, text in recent if role in _NAMES and text and not small_talk(text)]
    if stands_alone(original, _of_user(before)):
        return original, Standalone("as_asked", original)
    return await rewritten(before, original, upstreams, deadline)


async def rewritten(
    before: Sequence[tuple[str, str]], original: str, upstreams: Upstreams, deadline: float | None
) -> tuple[str, Standalone]:
    """The message after these, as (role, text), rewritten by the reader; if that fails, with the one before it."""
    shown = before[-_SHOWN:]
    began = upstreams.clock()
    rewrite, usage = "", None
    try:
        async with asyncio.timeout_at(deadline):
            with upstreams.stages("rewrite"):
                reply = await upstreams.reader.chat(await _request(shown, original, upstreams.reader))
        rewrite, usage = _said(reply), Usage.of(reply.get("usage"))
    except (FetchwiseError, TimeoutError):
        pass  # `how` says so, and there is something to search for
    ms = (upstreams.clock() - began) * 1000.0
    if is_rewrite(rewrite, original, [text for _, text in shown]):
        return rewrite, Standalone("rewritten", original, ms, usage)
    return joined(original, _of_user(before)), Standalone("failed", original, ms, usage)


def _of_tool(message: Mapping[str, Any]) -> bool:
    """Whether a message calls a tool or is its result: it continues what was asked before."""
    called = message.get("tool_calls") or message.get("function_call")
    return bool(called) or message.get("role") in {"tool", "function"}


def _of_user(said: Sequence[tuple[str, str]]) -> list[str]:
    return [text for role, text in said if role == "user"]


async def _request(before: Sequence[tuple[str, str]], asked: str, reader: Reader) -> Mapping[str, Any]:
    lines = [f"{_NAMES[role]}: {_line(text)}" for role, text in before]
    # The end of a long message says what is wanted.
    block = "\n".join((*lines, f"User: {_line(asked[-_MOST_CHARS:])}"))
    block = break_markers(block, await reader.control_tokens([block]))
    messages = []
    for shown, question in _EXAMPLES:
        messages += [{"role": "user", "content": shown}, {"role": "assistant", "content": question}]
    messages[0]["content"] = _INSTRUCTION + messages[0]["content"]
    messages.append({"role": "user", "content": block})
    return {"messages": messages, "temperature": 0, "max_tokens": _MAX_TOKENS, "stop": ["\n"]}


def _said(reply: Mapping[str, Any]) -> str:
    """The text of a reply; empty if it is cut off."""
    choice = next(iter(reply.get("choices") or ()), None)
    if not isinstance(choice, dict) or choice.get("finish_reason") == "length":
        return ""
    message = choice.get("message")
    return text_of(message).strip() if isinstance(message, dict) else ""


def _line(text: str) -> str:
    return " ".join(text.split())
