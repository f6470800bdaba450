"""A real HTTP server for chat completions that behaves like vLLM or llama.cpp; a proxy adds faults."""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any

from aiohttp import web

from tests.fakes.reader import from_passages, pieces
from tests.wire.servers import handling

MODEL = "smollm2"
CHARS_PER_TOKEN = 4


class Dialect(StrEnum):
    """Which server to imitate."""

    VLLM = auto()
    LLAMA = auto()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as received."""

    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class _Piece:
    """One generated token: its text, and how the dialect reports it."""

    delta: str
    entry: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Answer:
    pieces: list[_Piece]
    finish: str
    stop_reason: str | None
    prompt_tokens: int

    @property
    def usage(self) -> dict[str, int]:
        written, read = len(self.pieces), self.prompt_tokens
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


class ReaderServer:
    """Answers with `answer(content of the message)`; `dropped` counts clients that disconnected during generation."""

    def __init__(self, dialect: Dialect, *, context_chars: int = 8000) -> None:
        self.dialect = dialect
        self.url = ""
        self.context_chars = context_chars
        self.answer: Callable[[str], str] = lambda content: from_passages(content, content)
        # The status of its refusal to show the chat template, if it refuses.
        self.template_status: int | None = None
        self.template = "<|im_start|>user\n"
        # What its tokenizer replies instead.
        self.tokenized: object = None
        # What its tokenizer makes one token of.
        self.control_tokens: set[str] = set()
        self.token_delay_s = 0.0
        self.requests: list[Asked] = []
        self.generated = 0
        self.dropped = 0

    @property
    def chats(self) -> list[Any]:
        """The bodies of the received chat completions."""
        return [asked.body for asked in self.requests if asked.path == "/v1/chat/completions"]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer any request."""
        body: Any = json.loads(raw) if (raw := await request.read()) else None
        self.requests.append(Asked(request.path, dict(request.headers), body))
        match request.method, request.path:
            case "GET", "/v1/models":
                return web.json_response({"object": "list", "data": [self._model()]})
            case "POST", "/tokenize" | "/apply-template" if self.template_status:
                return _error(self.template_status, "SomeError", "not now")
            case "POST", "/tokenize" if "messages" not in body:
                return self._tokenized(body) if self.tokenized is None else web.json_response(self.tokenized)
            case "POST", "/tokenize" if self.dialect is Dialect.VLLM:
                return web.json_response(
                    {"count": 3, "max_model_len": self._context, "tokens": [*self.template.encode()]}
                )
            case "POST", "/apply-template" if self.dialect is Dialect.LLAMA:
                return web.json_response({"prompt": self.template + body["messages"][0]["content"]})
            case "POST", "/v1/chat/completions":
                return await self._chat(request, body)
        if self.dialect is Dialect.VLLM:
            return web.json_response({"detail": "Not Found"}, status=404)
        return _error(404, "not_found_error", "File Not Found")

    def _tokenized(self, body: Any) -> web.Response:
        """The tokens of a text: each control token, and every other character."""
        text = body["prompt" if self.dialect is Dialect.VLLM else "content"]
        if self.dialect is Dialect.VLLM and len(text) > self.context_chars:
            return _error(400, "BadRequestError", f"This model's maximum context length is {self._context} tokens.")
        known = "|".join(map(re.escape, sorted(self.control_tokens))) or "(?!)"
        found = [match[0] for match in re.finditer(f"{known}|.", text)]
        if self.dialect is Dialect.VLLM:
            assert body["add_special_tokens"] is False
            names = found if body.get("return_token_strs") else None
            return web.json_response({"tokens": list(range(len(found))), "token_strs": names})
        return web.json_response({"tokens": [{"id": number, "piece": piece} for number, piece in enumerate(found)]})

    @property
    def _context(self) -> int:
        return self.context_chars // CHARS_PER_TOKEN

    def _model(self) -> dict[str, Any]:
        if self.dialect is Dialect.VLLM:
            return {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": self._context}
        return {"id": MODEL, "object": "model", "owned_by": "llamacpp", "meta": {"n_ctx_train": 2048, "ftype": "Q8_0"}}

    async def _chat(self, request: web.Request, body: Any) -> web.StreamResponse:
        if (refused := self._refusal(body)) is not None:
            return refused
        return await self._watched(self._streamed(request, body) if body.get("stream") else self._whole(body))

    async def _watched(self, generating: Awaitable[web.StreamResponse]) -> web.StreamResponse:
        """Count a client that disconnects: aiohttp then cancels the handler, or a write fails."""
        try:
            return await generating
        except (asyncio.CancelledError, ConnectionError):
            self.dropped += 1
            raise

    def _refusal(self, body: Any) -> web.Response | None:
        if self.dialect is Dialect.VLLM and body["model"] != MODEL:
            return _error(404, "NotFoundError", f"The model `{body['model']}` does not exist.")
        if any(isinstance(message.get("content"), int) for message in body["messages"]):
            return _error(400, "BadRequestError", f"{MODEL} at {self.url}: content must be a string")
        if _length(body) <= self.context_chars:
            return None
        if self.dialect is Dialect.VLLM:
            return _error(
                400,
                "BadRequestError",
                f"This model's maximum context length is {self._context} tokens. However, your prompt contains at "
                f"least {self._context + 1} input tokens, which exceeds this limit even without any output tokens.",
            )
        return _error(
            400, "exceed_context_size_error", "the request exceeds the available context size, try increasing it"
        )

    def _generate(self, body: Any) -> _Answer:
        content = _text(body["messages"][-1])
        text, newline, _ = self.answer(content).partition("\n")
        made = [piece for word in pieces(text) for piece in self._tokens(word)]
        if newline and self.dialect is Dialect.VLLM:
            made.append(_Piece("", _entry("\n", b"\n", len(made))))
        elif not newline:
            end = "<|im_end|>" if self.dialect is Dialect.VLLM else ""
            made.append(_Piece("", _entry(end, end.encode(), len(made))))
        room = max(1, (self.context_chars - _length(body)) // CHARS_PER_TOKEN)
        limit = min(room, body.get("max_completion_tokens") or body.get("max_tokens") or room)
        finish = "length" if len(made) > limit else "stop"
        prompt_tokens = self._context - room
        return _Answer(made[:limit], finish, "\n" if newline and finish == "stop" else None, prompt_tokens)

    def _tokens(self, word: str) -> list[_Piece]:
        """One token per ASCII word, three for any other word, whose characters are complete in the third."""
        raw = word.encode()
        if word.isascii():
            return [_Piece(word, _entry(word, raw, len(word)))]
        if self.dialect is Dialect.VLLM:
            parts = [("", b""), ("", b""), (word, raw)]
        else:
            parts = [("", raw[:-2]), ("", raw[-2:-1]), ("", raw[-1:])]
        return [
            _Piece(word if last else "", _entry(token, part, number))
            for number, ((token, part), last) in enumerate(zip(parts, (False, False, True), strict=True))
        ]

    async def _whole(self, body: Any) -> web.StreamResponse:
        answer = self._generate(body)
        for _ in answer.pieces:
            await asyncio.sleep(self.token_delay_s)
            self.generated += 1
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(piece.delta for piece in answer.pieces)},
            "logprobs": {"content": [piece.entry for piece in answer.pieces]},
            "finish_reason": answer.finish,
            "stop_reason": answer.stop_reason,
        }
        return web.json_response({"object": "chat.completion", "choices": [choice], "usage": answer.usage})

    async def _streamed(self, request: web.Request, body: Any) -> web.StreamResponse:
        answer = self._generate(body)
        options = body.get("stream_options") or {}
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)

        async def send(event: dict[str, Any], written: int = 0) -> None:
            if options.get("continuous_usage_stats") and self.dialect is Dialect.VLLM:
                event = {"usage": answer.usage | {"completion_tokens": written}} | event
            if written and body.get("timings_per_token") and self.dialect is Dialect.LLAMA:
                event |= {"timings": {"cache_n": 1, "prompt_n": answer.prompt_tokens - 1, "predicted_n": written}}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        # Comments are allowed in an event stream, and are not events.
        await response.write(b": hello\n\n")
        await send(self._chunk({"role": "assistant", "content": "" if self.dialect is Dialect.VLLM else None}, None))
        for number, piece in enumerate(answer.pieces, start=1):
            await asyncio.sleep(self.token_delay_s)
            self.generated += 1
            finish = answer.finish if number == len(answer.pieces) and self.dialect is Dialect.VLLM else None
            await send(self._chunk({"content": piece.delta}, piece.entry, finish), number)
        if self.dialect is Dialect.LLAMA:
            await send(self._chunk({}, None, answer.finish))
        if options.get("include_usage"):
            await send({"choices": [], "usage": answer.usage})
        await response.write(b"data: [DONE]\n\n")
        if self.dialect is Dialect.LLAMA and request.transport is not None:
            # As llama.cpp does, without announcing it in the headers.
            await response.write_eof()
            request.transport.close()
        return response

    def _chunk(self, delta: dict[str, Any], entry: dict[str, Any] | None, finish: str | None = None) -> dict[str, Any]:
        logprobs = {"content": [entry]} if entry else None
        return {"choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}


def _entry(token: str, raw: bytes, number: int) -> dict[str, Any]:
    """A token as reported: its text, its bytes, and twenty alternatives with itself first."""
    own = -0.05 * min(number + 1, 12)
    top = [round(own if rank == 0 else math.log(1 - math.exp(own)) - rank, 6) for rank in range(20)]
    named = [{"token": f"t{rank}", "logprob": logprob, "bytes": [116]} for rank, logprob in enumerate(top)]
    return {"token": token, "logprob": top[0], "bytes": list(raw), "top_logprobs": named}


def _length(body: Any) -> int:
    """The context that all messages use, in characters."""
    return sum(len(_text(message)) for message in body["messages"])


def _text(message: Any) -> str:
    """The text of a message, in one string or in parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _error(status: int, kind: str, message: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


@asynccontextmanager
async def reader_server(dialect: Dialect, *, context_chars: int = 8000) -> AsyncIterator[ReaderServer]:
    """Serve on a free port."""
    server = ReaderServer(dialect, context_chars=context_chars)
    async with handling(server.handle, client_max_size=2**24) as server.url:
        yield server
