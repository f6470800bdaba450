"""Parses replies of OpenAI-compatible servers: answers with their tokens, streams, and errors.

vLLM and llama.cpp differ in what they report at the end of an answer, how they refuse a long prompt, and the shape of
their errors. This module hides the differences.
"""

import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp
import orjson

from app.core.signals import TokenLogprobs
from app.errors import FetchwiseError, PromptTooLong, UpstreamBadReply, UpstreamUnavailable
from app.ports import Generation, Token
from app.upstream.http import HttpClient, Refused, meaning

# The type of an error, and the parameter that it is about: names, not texts.
_NAME = re.compile(r"[A-Za-z][\w.\[\]-]{0,63}", re.ASCII)
_TOO_LONG = "the question does not fit the reader's context: shorten it"


def refusal(client: HttpClient, refused: Refused, model: str) -> FetchwiseError:
    """Translate a status other than 200 from a server that serves this model."""
    if refused.status == 404:
        return UpstreamUnavailable(client.upstream, f"{client.called} has no such path or does not serve {model!r}")
    return meaning(client.upstream, refused, _error_message(refused.body), _error_kind(refused.body))


def reading_refusal(client: HttpClient, refused: Refused, model: str) -> FetchwiseError:
    """The same for the reader, which also refuses prompts longer than its context."""
    if refused.status == 400 and _is_too_long(f"{_error_kind(refused.body)} {_error_message(refused.body)}"):
        return PromptTooLong(_TOO_LONG)
    return refusal(client, refused, model)


def _error_message(raw: bytes) -> str:
    """The server's explanation, which may repeat what was sent to it."""
    error = _error(raw)
    if isinstance(error, dict):
        return str(error.get("message", ""))[:500]
    return str(error or raw[:200].decode(errors="replace"))[:500]


def _error_kind(raw: bytes) -> str:
    """The type of an error, and the parameter that it is about, if the server names them."""
    error = _error(raw)
    named = (error.get("type"), error.get("param")) if isinstance(error, dict) else ()
    return ", ".join(name for name in named if isinstance(name, str) and _NAME.fullmatch(name))


def _error(raw: bytes) -> object:
    try:
        return orjson.loads(raw).get("error")
    except (orjson.JSONDecodeError, AttributeError):
        return None


def _is_too_long(message: str) -> bool:
    lowered = message.lower()
    return any(phrase in lowered for phrase in ("context length", "context size", "exceed_context", "too long"))


def generation(reply: Mapping[str, Any], passages_read: int, max_tokens: int) -> Generation:
    """Parse a whole reply; UpstreamBadReply if a part is missing, PromptTooLong if the context cut the answer short."""
    try:
        choice = reply["choices"][0]
        finish_reason, usage = choice.get("finish_reason"), reply.get("usage") or {}
        _reject_truncated(finish_reason, usage, max_tokens)
        content = choice["message"]["content"] or ""
        tokens = [_raw_token(token) for token in (choice.get("logprobs") or {}).get("content") or []]
        return _finished(content, tokens, usage, passages_read, finish_reason)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise UpstreamBadReply("reader", f"the reader's reply lacks a part: {type(error).__name__}") from error


def _reject_truncated(finish_reason: object, usage: Mapping[str, Any], max_tokens: int) -> None:
    """Servers silently cut an answer when the context is full; treat that as a prompt that is too long."""
    if finish_reason == "length" and int(usage.get("completion_tokens") or max_tokens) < max_tokens:
        raise PromptTooLong(_TOO_LONG)


def _counted(timings: Mapping[str, Any] | None) -> dict[str, int]:
    """Usage so far as llama.cpp reports it: cached plus newly read prompt tokens."""
    if not timings:
        return {}
    read = int(timings.get("cache_n") or 0) + int(timings.get("prompt_n") or 0)
    return {"prompt_tokens": read, "completion_tokens": int(timings.get("predicted_n") or 0)}


_RawToken = tuple[bytes, TokenLogprobs]
_FLOATS = frozenset({float})


def _raw_token(token: Mapping[str, Any]) -> _RawToken:
    raw = token.get("bytes")
    text = bytes(raw) if raw else str(token["token"]).encode()
    top = tuple([entry["logprob"] for entry in token.get("top_logprobs") or ()])
    # Twenty per token: checking for non-floats is cheaper than converting each.
    if not _FLOATS.issuperset(map(type, top)):
        top = tuple(map(_number, top))
    return text, TokenLogprobs(_number(token["logprob"]), top)


def _number(value: object) -> float:
    # JSON has no NaN or infinity, so servers send null for them.
    return float(value) if isinstance(value, (int, float)) else math.nan


def _finished(
    content: str, tokens: Sequence[_RawToken], usage: Mapping[str, Any], passages_read: int, finish_reason: object
) -> Generation:
    answer = content.split("\n", 1)[0].strip()
    return Generation(
        text=answer,
        tokens=tuple(_answer_tokens(answer, tokens)),
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or len(tokens)),
        passages_read=passages_read,
        truncated=finish_reason == "length",
    )


def _answer_tokens(answer: str, tokens: Sequence[_RawToken]) -> list[TokenLogprobs]:
    """Keep the tokens of the answer itself, without the stop and the end token.

    Servers differ in whether and how they report the end token, so decide by position, not by name. Leading white space
    is not part of the answer, so counting starts after it.
    """
    if not answer:
        return []
    joined = b"".join(text for text, _ in tokens).decode(errors="replace")
    position = -len(joined[: len(joined) - len(joined.lstrip())].encode())
    length = len(answer.encode())
    kept = []
    for text, logprobs in tokens:
        if position >= length:
            break
        kept.append(logprobs)
        position += len(text)
    return kept


async def events_of(lines: aiohttp.StreamReader, client: HttpClient) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of a server-sent event stream; UpstreamUnavailable if it ends before `[DONE]`."""
    async for line in lines:
        payload = line.strip().removeprefix(b"data:").strip()
        if payload == b"[DONE]":
            return
        if line.startswith(b"data:"):
            event = client.parsed(payload)
            if not isinstance(event, dict):
                raise UpstreamBadReply("reader", "the reader's event is not a JSON object")
            if "error" in event:
                kind = _error_kind(payload) or "no type"
                raise UpstreamUnavailable("reader", f"the reader failed while answering ({kind})")
            yield event
    raise UpstreamUnavailable("reader", "the reader ended the stream early")


async def assemble(
    events: AsyncIterator[dict[str, Any]], passages_read: int, max_tokens: int, context: int
) -> AsyncGenerator[Token | Generation, None]:
    """Yield the pieces of a streamed reply, then the same answer that a whole reply would give."""
    content, tokens, usage, finish_reason = "", list[_RawToken](), dict[str, Any](), None
    answered = False
    try:
        async for event in events:
            usage = event.get("usage") or _counted(event.get("timings")) or usage
            if context and not tokens and int(usage.get("prompt_tokens") or 0) + max_tokens > context:
                raise PromptTooLong(_TOO_LONG)
            for choice in event.get("choices") or ():
                answered = True
                text = (choice.get("delta") or {}).get("content") or ""
                new = [_raw_token(token) for token in (choice.get("logprobs") or {}).get("content") or ()]
                finish_reason = choice.get("finish_reason") or finish_reason
                content += text
                tokens += new
                if text or new:
                    counted = int(usage.get("prompt_tokens") or 0)
                    yield Token(text, tuple(logprobs for _, logprobs in new), counted)
        if not answered:
            raise UpstreamBadReply("reader", "the reader's stream holds no answer")
        _reject_truncated(finish_reason, usage, max_tokens)
        yield _finished(content, tokens, usage, passages_read, finish_reason)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UpstreamBadReply("reader", f"the reader's stream lacks a part: {type(error).__name__}") from error
