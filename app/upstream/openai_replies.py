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

from app.core.available import Usage
from app.core.signals import TokenLogprobs
from app.errors import FetchwiseError, PromptTooLong, ReaderRefused, UpstreamBadReply, UpstreamUnavailable
from app.ports import Generation
from app.upstream.http import HttpClient, Refused, meaning

# The longest tokens of common vocabularies are runs of spaces or dashes of about this length.
CHARS_PER_TOKEN = 128
_NOT_PLAIN = re.compile(r"[^!-~]+")
# The type of an error, and the parameter that it is about: names, not texts.
_NAME = re.compile(r"[A-Za-z][\w.\[\]-]{0,63}", re.ASCII)
# Statuses of a request that the caller must change.
_CALLERS_FAULT = frozenset({400, 413, 415, 422})
# Addresses and paths, which callers must not see.
_INTERNAL = re.compile(r"\w+://\S+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?|(?<![\w<])(?:/[\w.@+-]+){2,}/?|\blocalhost:\d+")
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


def chat_refusal(client: HttpClient, refused: Refused, model: str) -> FetchwiseError:
    """The same for a request that the caller made: the message is for them."""
    error = reading_refusal(client, refused, model)
    if isinstance(error, PromptTooLong) or refused.status not in _CALLERS_FAULT:
        return error
    found = _error(refused.body)
    named = found if isinstance(found, dict) else {}
    kind, param = (
        name if isinstance(name := named.get(key), str) and _NAME.fullmatch(name) else None for key in ("type", "param")
    )
    said = _INTERNAL.sub("…", " ".join(_error_message(refused.body).split()).replace(model, "the model"))
    return ReaderRefused(
        f"the reader does not accept the request: {said or 'it does not say why'}", kind=kind, param=param
    )


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
        answer = _Answer(passages_read, max_tokens)
        answer.usage = Usage.of(reply.get("usage"))
        answer.finish_reason = choice.get("finish_reason")
        answer.reject_if_cut_by_context()
        answer.add(choice["message"]["content"] or "", _tokens(choice.get("logprobs")))
        return answer.finished()
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise UpstreamBadReply("reader", f"the reader's reply lacks a part: {type(error).__name__}") from error


_RawToken = tuple[bytes, TokenLogprobs]
# For what cannot be a token: then the answer has no signals.
_UNREADABLE: _RawToken = (b"", TokenLogprobs(math.nan))
_FLOATS = frozenset({float})


def _tokens(logprobs: object) -> list[_RawToken]:
    reported = logprobs.get("content") if isinstance(logprobs, dict) else None
    return [_raw_token(token) for token in reported] if isinstance(reported, list) else []


def _raw_token(token: Mapping[str, Any]) -> _RawToken:
    try:
        raw = token.get("bytes")
        # Of a number, `bytes` would make that many zeros.
        text = bytes(raw) if isinstance(raw, list) and raw else str(token["token"]).encode()
        top = tuple([entry["logprob"] for entry in token.get("top_logprobs") or ()])
        # Twenty per token: checking for non-floats is cheaper than converting each.
        if not _FLOATS.issuperset(map(type, top)):
            top = tuple(map(_number, top))
        return text, TokenLogprobs(_number(token["logprob"]), top)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        return _UNREADABLE


def _number(value: object) -> float:
    # JSON has no NaN or infinity, so servers send null for them. A boolean is an int, but no log-probability.
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


class _Answer:
    """The answer in a reply, whole or in pieces: its first line, without white space around it, and its tokens.

    Servers may ignore `stop` and `max_tokens`. `full` says that the rest must not be read.
    """

    def __init__(self, passages_read: int, max_tokens: int) -> None:
        self.usage = Usage()
        self.finish_reason: object = None
        self.full = False
        self.tokens = list[_RawToken]()
        self._passages_read = passages_read
        self._max_tokens = max_tokens
        self._text = ""
        # White space that is part of the answer only if something follows it.
        self._held = ""
        self._cut = False

    def add(self, text: str, tokens: Sequence[_RawToken]) -> str:
        """Add a piece; returns the part of it that can be shown."""
        if self.full:
            return ""
        if (excess := len(self.tokens) + len(tokens) - self._max_tokens) > 0:
            tokens = tokens[: len(tokens) - excess]
            text = b"".join([spelled for spelled, _ in tokens]).decode(errors="ignore")
            self.full = self._cut = True
        self.tokens += tokens
        line, newline, _ = text.partition("\n")
        line = self._held + line
        if not self._text:
            line = line.lstrip()
        if (excess := len(self._text) + len(line) - self._max_tokens * CHARS_PER_TOKEN) > 0:
            line = line[: len(line) - excess]
            self.full = self._cut = True
        shown = line.rstrip()
        self._held = line[len(shown) :]
        self._text += shown
        self.full = self.full or bool(newline)
        return shown

    def reject_if_cut_by_context(self) -> None:
        """Servers silently cut an answer when the context is full; treat that as a prompt that is too long."""
        if self.finish_reason == "length" and (self.usage.completion_tokens or self._max_tokens) < self._max_tokens:
            raise PromptTooLong(_TOO_LONG)

    def finished(self) -> Generation:
        """The whole answer."""
        return Generation(
            text=self._text,
            tokens=tuple(_answer_tokens(self._text, self.tokens)),
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens or len(self.tokens),
            passages_read=self._passages_read,
            truncated=self._cut or self.finish_reason == "length",
        )


def _answer_tokens(answer: str, tokens: Sequence[_RawToken]) -> list[TokenLogprobs]:
    """Keep the tokens of the answer itself, without the stop and the end token; none if they spell another text.

    Servers differ in whether and how they report the end token, so decide by position, not by name. Leading white space
    is not part of the answer, so counting starts after it.
    """
    joined = b"".join([text for text, _ in tokens]).decode(errors="replace")
    if not answer or not _spells(joined, answer):
        return []
    position = -len(joined[: len(joined) - len(joined.lstrip())].encode())
    length = len(answer.encode())
    kept = []
    for text, logprobs in tokens:
        if position >= length:
            break
        kept.append(logprobs)
        position += len(text)
    return kept


def _spells(joined: str, answer: str) -> bool:
    """Whether the tokens cover the whole answer: the confidence of a part must not pass for that of the whole.

    Some tokenizers lose spaces, or the bytes of a character that is split across tokens. Then the rest must agree, and
    be long enough.
    """
    if joined.lstrip().startswith(answer):
        return True
    seen, wanted = _NOT_PLAIN.sub("", joined), _NOT_PLAIN.sub("", answer)
    long_enough = len("".join(joined.split()).encode()) >= len("".join(answer.split()).encode())
    return seen.startswith(wanted) and long_enough


async def events_of(lines: aiohttp.StreamReader, client: HttpClient) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the JSON objects of a server-sent event stream; UpstreamUnavailable if it ends before `[DONE]`."""
    async for line in lines:
        payload = line.strip().removeprefix(b"data:").strip()
        if payload == b"[DONE]":
            return
        if line.startswith(b"data:"):
            event = client.parsed(payload)
            if not isinstance(event, dict):
                raise UpstreamBadReply("reader", "the reader's event is not a JSON object")
            if event.get("error"):
                kind = _error_kind(payload) or "no type"
                raise UpstreamUnavailable("reader", f"the reader failed while answering ({kind})")
            yield event
    raise UpstreamUnavailable("reader", "the reader ended the stream early")


async def assemble(
    events: AsyncIterator[dict[str, Any]], passages_read: int, max_tokens: int, context: int
) -> AsyncGenerator[str | Generation, None]:
    """Yield the pieces of a streamed reply, then the same answer that a whole reply would give."""
    answer, answered = _Answer(passages_read, max_tokens), False
    try:
        async for event in events:
            answer.usage = Usage.so_far(event) or answer.usage
            if context and not answer.tokens and answer.usage.prompt_tokens + max_tokens > context:
                raise PromptTooLong(_TOO_LONG)
            for choice in event.get("choices") or ():
                answered = True
                answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
                text = (choice.get("delta") or {}).get("content") or ""
                if shown := answer.add(text, _tokens(choice.get("logprobs"))):
                    yield shown
            if answer.full:
                break
        if not answered:
            raise UpstreamBadReply("reader", "the reader's stream holds no answer")
        answer.reject_if_cut_by_context()
        yield answer.finished()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UpstreamBadReply("reader", f"the reader's stream lacks a part: {type(error).__name__}") from error
