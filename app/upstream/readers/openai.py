"""The reader over the OpenAI chat API, as vLLM and llama.cpp speak it: short greedy answers with log-probabilities."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import orjson

from app.core.artifact import Identity
from app.core.available import Passage
from app.core.prompts import Prompts, break_markers
from app.core.signals import TOP
from app.errors import (
    ConfigurationError,
    PromptTooLong,
    UpstreamBadReply,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.ports import Generation, Prompt, Token
from app.upstream.http import HttpClient, Refused
from app.upstream.openai_replies import assemble, events_of, generation, reading_refusal

STOP = ("\n",)
_CHAT = "/v1/chat/completions"
# A passage that is too long is shortened to at most the first of these, and then by halves.
_LONGEST_CHARS, _SHORTEST_CHARS = 100_000, 100
# A fixed conversation whose rendering tells two chat templates apart.
_SAMPLE_CHAT = [{"role": "user", "content": "fetchwise"}]


class OpenAIReader:
    """Any server that speaks `/v1/chat/completions` with `logprobs` and `top_logprobs: 20`."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        prompts: Prompts,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        max_connections: int = 256,
        quantisation: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._http = HttpClient.of_openai(
            "reader", url, api_key=api_key, timeout_s=timeout_s, max_connections=max_connections
        )
        self._model = model
        self._prompts = prompts
        self._quantisation = quantisation
        self._template = {"chat_template_kwargs": dict(chat_template_kwargs)} if chat_template_kwargs else {}
        # The part of the request body that is the same for every question.
        self._always: dict[str, Any] = {
            "model": model,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": TOP,
            "stop": list(STOP),
            **self._template,
        }
        # Context length in tokens; None until the server was asked, 0 if it does not report it.
        self._context: int | None = None
        # How to ask for running usage: a cancelled stream never reaches its final usage.
        self._counting: dict[str, Any] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

    async def identify(self) -> Identity:
        """Ask the server what it runs; ConfigurationError if it does not serve the model."""
        mine = await self._served()
        reported = (mine.get("meta") or {}).get("ftype")
        return Identity(
            reader=self._model,
            quantisation=self._quantisation or reported or "unquantised",
            chat_template=await self._chat_template_digest(),
            prompts=self._prompts.digest,
            stop=STOP,
            logprobs=f"top{TOP}",
        )

    async def _served(self) -> dict[str, Any]:
        """What the server says about our model."""
        served = (await self._json("GET", "/v1/models")).get("data")
        if not isinstance(served, list) or not all(isinstance(entry, dict) for entry in served):
            raise UpstreamBadReply("reader", "the reader's list of models is not a list of objects")
        mine = next((entry for entry in served if entry.get("id") == self._model), None)
        if mine is None:
            names = ", ".join(str(entry.get("id")) for entry in served) or "none"
            raise ConfigurationError(
                f"the reader does not serve the model {self._model!r}, only: {names}. Set FETCHWISE_READER_MODEL."
            )
        length = mine.get("max_model_len") or (mine.get("meta") or {}).get("n_ctx") or 0
        self._context = length if isinstance(length, int) else 0
        if mine.get("owned_by") == "llamacpp":
            self._counting["timings_per_token"] = True
        return dict(mine)

    async def generate(self, prompt: Prompt, *, max_tokens: int) -> Generation:
        """Answer greedily, at most to the first newline, with as many of the passages as fit."""
        refused: PromptTooLong | None = None
        for passages, read_chars in _shrinking(prompt.passages):
            body = self._body(prompt, passages, max_tokens)
            try:
                reply = generation(await self._json("POST", _CHAT, body), len(passages), max_tokens)
            except PromptTooLong as error:
                refused = error
            else:
                return replace(reply, read_chars=read_chars)
        assert refused is not None
        raise refused

    async def stream(self, prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[Token | Generation, None]:
        """Yield the answer's pieces, then the whole; the same text and tokens as `generate`."""
        if self._context is None:
            # If the model is not served, the generation reports it.
            with suppress(ConfigurationError):
                await self._served()
        begun, refused = False, None
        for passages, read_chars in _shrinking(prompt.passages):
            body = self._body(prompt, passages, max_tokens)
            # Usage is known from the first event on, so a prompt that is too long is found before anything is yielded.
            body |= {"stream": True, **self._counting}
            try:
                async with self._events(body) as events:
                    # With one passage left, keep it if the answer fits after all.
                    context = (self._context or 0) if len(passages) > 1 else 0
                    async for item in assemble(events, len(passages), max_tokens, context):
                        begun = True
                        yield replace(item, read_chars=read_chars) if isinstance(item, Generation) else item
                    return
            except PromptTooLong as error:
                if begun:
                    raise
                refused = error
        assert refused is not None
        raise refused

    async def ping(self) -> None:
        """Look for the model in the server's list: cheap, and it is listed only once it is loaded."""
        try:
            await self._served()
        except ConfigurationError as error:
            raise UpstreamUnavailable("reader", str(error)) from error

    async def close(self) -> None:
        """Close the connection pool; later calls raise UpstreamUnavailable. Idempotent."""
        await self._http.close()

    def _body(self, prompt: Prompt, passages: Sequence[Passage], max_tokens: int) -> dict[str, Any]:
        content = self._prompts.render(prompt.question, [(passage.title, passage.text) for passage in passages])
        messages = [{"role": turn.role, "content": break_markers(turn.text)} for turn in prompt.earlier]
        messages.append({"role": "user", "content": content})
        return {**self._always, "messages": messages, "max_tokens": max_tokens}

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            reply = self._http.parsed(await self._http.request(method, path, body))
        except Refused as refused:
            raise reading_refusal(self._http, refused, self._model) from refused
        if not isinstance(reply, dict):
            raise UpstreamBadReply("reader", "the reader's reply is not a JSON object")
        return reply

    @asynccontextmanager
    async def _events(self, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        try:
            async with self._http.stream(_CHAT, body) as lines:
                yield events_of(lines, self._http)
        except Refused as refused:
            raise reading_refusal(self._http, refused, self._model) from refused

    async def _chat_template_digest(self) -> str:
        """Fingerprint the chat template by a rendered example, because each server publishes templates differently."""
        attempts = (
            ("/apply-template", {"messages": _SAMPLE_CHAT, **self._template}, "prompt"),
            ("/tokenize", {"model": self._model, "messages": _SAMPLE_CHAT, **self._template}, "tokens"),
        )
        for path, body, key in attempts:
            try:
                rendered = (await self._json("POST", path, body)).get(key)
            except UpstreamTimeout:
                raise
            except UpstreamError as error:
                if _for_now(error):
                    raise
                continue  # not every server has this path; the last resort below is still a fixed value
            if rendered:
                return hashlib.sha256(orjson.dumps(rendered)).hexdigest()[:16]
        return "unknown"


def _for_now(error: UpstreamError) -> bool:
    """Whether the server failed temporarily: that must not look like another template."""
    refused = error.__cause__
    if isinstance(refused, Refused):
        return refused.status == 429 or (refused.status >= 500 and refused.status != 501)
    return isinstance(error, UpstreamUnavailable)


def _shrinking(passages: tuple[Passage, ...]) -> Iterator[tuple[tuple[Passage, ...], int | None]]:
    """All passages, then fewer, then less and less of the best one, until the server accepts the prompt.

    The second is how many characters are left of the best one, None if all are.
    """
    yield passages, None
    for n in range(len(passages) - 1, 0, -1):
        yield passages[:n], None
    for best in passages[:1]:
        chars = min(max(len(best.title), len(best.text)) // 2, _LONGEST_CHARS)
        while chars >= _SHORTEST_CHARS:
            yield (replace(best, title=best.title[:chars], text=best.text[:chars]),), chars
            chars //= 2
