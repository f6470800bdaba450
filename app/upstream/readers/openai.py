"""The reader over the OpenAI chat API, as vLLM and llama.cpp speak it: short greedy answers with log-probabilities."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import orjson

from app.core.artifact import Identity
from app.core.available import Passage, count
from app.core.prompts import WRITING, Prompts, possible_markers
from app.core.signals import TOP
from app.errors import (
    ConfigurationError,
    FetchwiseError,
    PromptTooLong,
    UpstreamBadReply,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.ports import Generation, Prompt
from app.upstream.http import HttpClient, Refused
from app.upstream.openai_replies import assemble, chat_refusal, events_of, generation, reading_refusal

STOP = ("\n",)
_MOST_REMEMBERED = 10_000
_CHAT = "/v1/chat/completions"
_LENGTHS = ("max_tokens", "max_completion_tokens")
# Translates the refusal of a server.
Meaning = Callable[[HttpClient, Refused, str], FetchwiseError]
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
        self._identified: Identity | None = None
        # Whether the tokenizer makes a control token of a text that looks like one.
        self._is_control_token: dict[str, bool] = {}
        # How to ask for running usage: a cancelled stream never reaches its final usage.
        self._counting: dict[str, Any] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

    async def identify(self) -> Identity:
        """Ask the server what it runs; ConfigurationError if it does not serve the model."""
        mine = await self._served()
        reported = _meta(mine).get("ftype")
        identity = Identity(
            reader=self._model,
            quantisation=self._quantisation or str(reported or "unquantised"),
            chat_template=await self._chat_template_digest(),
            prompts=self._prompts.digest,
            writing=WRITING.digest,
            stop=STOP,
            logprobs=f"top{TOP}",
        )
        if identity != self._identified:
            # Another model may have another tokenizer.
            self._identified = identity
            self._is_control_token.clear()
        return identity

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
        length = mine.get("max_model_len") or _meta(mine).get("n_ctx")
        self._context = count(length)
        if mine.get("owned_by") == "llamacpp":
            self._counting["timings_per_token"] = True
        return dict(mine)

    async def generate(self, prompt: Prompt, *, max_tokens: int) -> Generation:
        """Answer greedily, at most to the first newline, with as many of the passages as fit."""
        refused: PromptTooLong | None = None
        markers = await self.control_tokens(_texts(prompt))
        for passages, read_chars in _shrinking(prompt.passages):
            body = self._body(prompt, passages, max_tokens, markers)
            try:
                reply = generation(await self._json("POST", _CHAT, body), len(passages), max_tokens)
            except PromptTooLong as error:
                refused = error
            else:
                return reply if read_chars is None else replace(reply, read_chars=read_chars)
        assert refused is not None
        raise refused

    async def stream(self, prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[str | Generation, None]:
        """Yield the answer's pieces, then the whole; the same text and tokens as `generate`."""
        if self._context is None:
            # If the model is not served, the generation reports it.
            with suppress(ConfigurationError):
                await self._served()
        begun, refused = False, None
        markers = await self.control_tokens(_texts(prompt))
        for passages, read_chars in _shrinking(prompt.passages):
            body = self._body(prompt, passages, max_tokens, markers)
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

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Pass the caller's request on, and return the reply as it is."""
        reply = await self._json("POST", _CHAT, await self._passed_on(body), chat_refusal)
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise UpstreamBadReply("reader", "the reader's reply holds no choices")
        return reply

    async def chat_stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The same, streamed."""
        options = {**(body.get("stream_options") or {}), "include_usage": True}
        passed_on = await self._passed_on(body) | {"stream": True, "stream_options": options}
        if options.get("continuous_usage_stats"):
            passed_on |= self._counting
        async with self._events(passed_on, chat_refusal) as events:
            async for event in events:
                yield event

    async def _passed_on(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The caller's request with our model. A limit on the length that leaves no room for a prompt is dropped.

        Then the server ends the answer where its context ends.
        """
        if self._context is None:
            with suppress(ConfigurationError):
                await self._served()
        room = (self._context or 0) // 2
        dropped = {name for name in _LENGTHS if room and _larger(body.get(name), room)}
        passed_on = {name: value for name, value in body.items() if name not in dropped}
        return {**self._template, **passed_on, "model": self._model}

    async def ping(self) -> None:
        """Look for the model in the server's list: cheap, and it is listed only once it is loaded."""
        try:
            await self._served()
        except ConfigurationError as error:
            raise UpstreamUnavailable("reader", str(error)) from error

    async def close(self) -> None:
        """Close the connection pool; later calls raise UpstreamUnavailable. Idempotent."""
        await self._http.close()

    def _body(
        self, prompt: Prompt, passages: Sequence[Passage], max_tokens: int, markers: Collection[str]
    ) -> dict[str, Any]:
        texts = [(passage.title, passage.text) for passage in passages]
        content = self._prompts.render(prompt.question, texts, markers)
        return {**self._always, "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}

    async def control_tokens(self, texts: Iterable[str]) -> Collection[str]:
        """What this reader would parse as control tokens in texts; its tokenizer is asked once each."""
        possible = set[str]().union(*map(possible_markers, texts))
        if not possible:
            return possible
        if new := possible - self._is_control_token.keys():
            try:
                pieces = await self._pieces(" ".join(new))
            except (UpstreamError, PromptTooLong) as error:
                if not (isinstance(error.__cause__, Refused) and error.__cause__.status in {404, 405, 501}):
                    return possible  # rather too many than one too few
                pieces = set()  # the server has no such path
            if len(self._is_control_token) > _MOST_REMEMBERED:
                self._is_control_token.clear()
            self._is_control_token |= {marker: marker in pieces for marker in new}
        return {marker for marker in possible if self._is_control_token.get(marker, True)}

    async def _pieces(self, text: str) -> set[str]:
        """The tokens of a text, in which a control token is always one; the fields are those of either server."""
        asked = {"content": text, "with_pieces": True, "model": self._model, "prompt": text, "return_token_strs": True}
        reply = await self._json("POST", "/tokenize", asked | {"add_special_tokens": False})
        spelled, tokens = reply.get("token_strs"), reply.get("tokens")
        if not isinstance(spelled, list):
            if not isinstance(tokens, list):
                raise UpstreamBadReply("reader", "the reader's tokenizer sent no tokens")
            spelled = [token.get("piece") for token in tokens if isinstance(token, dict)]
        return {token for token in spelled if isinstance(token, str)}

    async def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, meaning: Meaning = reading_refusal
    ) -> dict[str, Any]:
        try:
            reply = self._http.parsed(await self._http.request(method, path, body))
        except Refused as refused:
            raise meaning(self._http, refused, self._model) from refused
        if not isinstance(reply, dict):
            raise UpstreamBadReply("reader", "the reader's reply is not a JSON object")
        return reply

    @asynccontextmanager
    async def _events(
        self, body: Mapping[str, Any], meaning: Meaning = reading_refusal
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        try:
            async with self._http.stream(_CHAT, body) as lines, aclosing(events_of(lines, self._http)) as events:
                yield events
        except Refused as refused:
            raise meaning(self._http, refused, self._model) from refused

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


def _meta(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """What llama.cpp says about a model."""
    meta = model.get("meta")
    return meta if isinstance(meta, dict) else {}


def _texts(prompt: Prompt) -> Iterator[str]:
    yield prompt.question
    for passage in prompt.passages:
        yield passage.title
        yield passage.text


def _larger(limit: object, room: int) -> bool:
    return isinstance(limit, int) and limit > room


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
