"""The reader over the OpenAI chat API, as vLLM and llama.cpp speak it: short greedy answers with log-probabilities."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import orjson

from app.adapters.openai_replies import assemble, check, events_of, generation, json_object
from app.correlation import outgoing
from app.decision.signals import TOP
from app.errors import (
    ConfigurationError,
    PromptTooLong,
    UpstreamBadReply,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.ports import Generation, Passage, Prompt, ReaderIdentity, Token
from app.prompts import Prompts

STOP = ("\n",)
# vLLM and llama.cpp close idle connections after five seconds; ours must go first, or a request meets a closed one.
_KEEPALIVE_S = 3.0
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
        self._url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._prompts = prompts
        self._key = api_key
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(5.0, timeout_s))
        self._max_connections = max_connections
        self._quantisation = quantisation
        self._template_kwargs = dict(chat_template_kwargs) if chat_template_kwargs else None
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        # Tokens for prompt and answer together; None until the server was asked, 0 where it does not tell.
        self._context: int | None = None

    async def identify(self) -> ReaderIdentity:
        """Ask the server what it runs; a model that it does not serve is a configuration error."""
        mine = await self._served()
        reported = (mine.get("meta") or {}).get("ftype")
        return ReaderIdentity(
            model=self._model,
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
        told = mine.get("max_model_len") or (mine.get("meta") or {}).get("n_ctx") or 0
        self._context = told if isinstance(told, int) else 0
        return dict(mine)

    async def generate(self, prompt: Prompt, *, max_tokens: int) -> Generation:
        """Answer greedily, at most to the first newline, with as many of the passages as fit."""
        for passages in _fewer_and_fewer(prompt.passages):
            body = self._body(prompt.question, passages, max_tokens)
            try:
                reply = await self._json("POST", "/v1/chat/completions", body)
                return generation(reply, len(passages), max_tokens)
            except PromptTooLong:
                if len(passages) <= 1:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def stream(self, prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[Token | Generation, None]:
        """Yield the answer's pieces, then the whole; the same text and tokens as `generate`."""
        if self._context is None:
            # A model that is not served is the generation's to report, where the server minds at all.
            with suppress(ConfigurationError):
                await self._served()
        begun = False
        for passages in _fewer_and_fewer(prompt.passages):
            body = self._body(prompt.question, passages, max_tokens)
            # Usage from the first event on: a prompt that leaves no room is known before anything is yielded.
            body |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
            try:
                async with self._post_stream(body) as events:
                    # The last that is left may stay where the answer turns out to fit after all.
                    context = (self._context or 0) if len(passages) > 1 else 0
                    async for item in assemble(events, len(passages), max_tokens, context):
                        begun = True
                        yield item
                    return
            except PromptTooLong:
                if begun or len(passages) <= 1:
                    raise

    async def ping(self) -> None:
        """Look for our model in the list of those served: cheap, and there only once it is loaded."""
        try:
            await self._served()
        except ConfigurationError as error:
            raise UpstreamUnavailable("reader", str(error)) from error

    async def close(self) -> None:
        """Close the connection pool; whoever asks afterwards gets UpstreamUnavailable. Idempotent."""
        self._closed = True
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def _body(self, question: str, passages: Sequence[Passage], max_tokens: int) -> dict[str, Any]:
        content = self._prompts.render(question, [(passage.title, passage.text) for passage in passages])
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": TOP,
            "stop": list(STOP),
        }
        if self._template_kwargs:
            body["chat_template_kwargs"] = self._template_kwargs
        return body

    def _pool(self) -> aiohttp.ClientSession:
        if self._closed:
            raise UpstreamUnavailable("reader", "the reader was closed")
        # Made on first use because aiohttp ties a session to the running loop.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=_KEEPALIVE_S),
                headers=self._headers,
                timeout=self._timeout,
            )
        return self._session

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = orjson.dumps(body) if body is not None else None
        headers = {"content-type": "application/json", **outgoing.get()} if data else None
        with _translated():
            # No redirects: question and key are meant for this server alone.
            async with self._pool().request(
                method, self._url + path, data=data, headers=headers, allow_redirects=False
            ) as response:
                raw = await response.read()
                check(response.status, self._without_key(raw), self._model)
        return json_object(raw)

    @asynccontextmanager
    async def _post_stream(self, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        with _translated():
            async with self._pool().post(
                self._url + "/v1/chat/completions",
                data=orjson.dumps(body),
                # llama.cpp hangs up after a stream without announcing it: the next question must not be sent there.
                headers={"content-type": "application/json", "connection": "close", **outgoing.get()},
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    check(response.status, self._without_key(await response.read()), self._model)
                yield events_of(response, self._without_key)

    def _without_key(self, raw: bytes) -> bytes:
        """What the server said, fit to be quoted: some repeat the key that they were given."""
        return raw.replace(self._key.encode(), b"***") if self._key else raw

    async def _chat_template_digest(self) -> str:
        """Fingerprint the chat template by what it does: no two servers publish it in the same way."""
        kwargs = {"chat_template_kwargs": self._template_kwargs} if self._template_kwargs else {}
        attempts = (
            ("/apply-template", {"messages": _SAMPLE_CHAT, **kwargs}, "prompt"),
            ("/tokenize", {"model": self._model, "messages": _SAMPLE_CHAT, **kwargs}, "tokens"),
        )
        for path, body, key in attempts:
            try:
                rendered = (await self._json("POST", path, body)).get(key)
            except UpstreamTimeout:
                raise
            except UpstreamError:
                continue  # not every server has this path; the last resort below is still a fixed value
            if rendered:
                return hashlib.sha256(orjson.dumps(rendered)).hexdigest()[:16]
        return "unknown"


def _fewer_and_fewer(passages: tuple[Passage, ...]) -> list[tuple[Passage, ...]]:
    """All the passages, then without the worst-ranked, down to the best one: the server says what fits."""
    return [passages[:n] for n in range(len(passages), 0, -1)] or [()]


class _translated:  # noqa: N801 - reads as a phrase: with _translated()
    """Turn aiohttp's exceptions into ours, most specific first."""

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the translation of a vendor's exception; let everything else pass."""
        match error:
            case asyncio.TimeoutError():  # aiohttp's own timeouts inherit from it
                raise UpstreamTimeout("reader", "the reader did not answer in time") from error
            case aiohttp.InvalidURL():
                raise ConfigurationError("FETCHWISE_READER is not a URL that can be called") from error
            case aiohttp.ClientConnectionError() | aiohttp.ClientPayloadError():
                raise UpstreamUnavailable("reader", f"the reader broke the connection off: {error}") from error
            case aiohttp.ClientError() | ValueError():
                raise UpstreamBadReply("reader", f"the reader does not speak HTTP as expected: {error}") from error
