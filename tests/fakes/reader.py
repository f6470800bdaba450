"""A reader without a model: it gives scripted answers with scripted confidence."""

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.artifact import Identity
from app.core.available import Passage
from app.core.signals import TOP, TokenLogprobs
from app.errors import PromptTooLong, ReaderRefused, UpstreamUnavailable
from app.ports import Generation, Prompt

_CAPITAL_ASKED = re.compile(r"capital of (\w+)\?", re.IGNORECASE)
_KNOWN = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo"}


@dataclass(frozen=True, slots=True)
class Scripted:
    """An answer and its log-probabilities; without tokens, none are reported."""

    text: str
    tokens: tuple[TokenLogprobs, ...]


class FakeReader:
    """Answers from `says`, else from `from_passages`; records every prompt in `prompts`.

    While set, `fail_with` is raised by every call (only by generations with `fail_on_k` passages if that is set too),
    and `hang` keeps a generation from ending. `cancelled` counts the cancelled generations, and `hanging` those that
    started while `hang` was set.
    """

    def __init__(self, *, model: str = "fake", context_chars: int = 8000) -> None:
        self.prompts: list[Prompt] = []
        # Chat requests as they came, and what to reply to them instead of an answer.
        self.chats: list[Mapping[str, Any]] = []
        self.choices: list[dict[str, Any]] | None = None
        self.fail_with: Exception | None = None
        self.fail_on_k: int | None = None
        self.hang = False
        self.before: Callable[[Prompt], None] = lambda _: None
        self.cancelled = 0
        self.hanging = 0
        self.pings = 0
        self.closed = False
        self._model = model
        self._context_chars = context_chars
        self._script: dict[tuple[str, int | None], Scripted] = {}

    def says(
        self,
        question: str,
        text: str,
        *,
        k: int | None = None,
        sure: float = 0.9,
        tokens: tuple[TokenLogprobs, ...] | None = None,
    ) -> None:
        """Script the answer to a question read with k passages (None: any number); see `surely` for `sure`."""
        self._script[question, k] = Scripted(
            text, tuple(surely(sure) for _ in pieces(text)) if tokens is None else tokens
        )

    @property
    def calls(self) -> int:
        """The number of generations requested."""
        return len(self.prompts)

    async def identify(self) -> Identity:
        await self._turn()
        return Identity(
            self._model, "none", "fake template", "fake prompts", "fake writing", stop=("\n",), logprobs=f"top{TOP}"
        )

    async def generate(self, prompt: Prompt, *, max_tokens: int) -> Generation:
        try:
            return await self._answer(prompt, max_tokens)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def stream(self, prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[str | Generation, None]:
        try:
            whole = await self._answer(prompt, max_tokens)
            texts = pieces(whole.text)[:max_tokens]
            for text in texts:
                await asyncio.sleep(0)
                yield text
            yield whole
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            choices, usage = await self._chosen(body)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return {"id": "upstream", "object": "chat.completion", "model": self._model, "choices": choices, "usage": usage}

    async def chat_stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        try:
            choices, usage = await self._chosen(body)
            for choice in choices:
                message = dict(choice["message"])
                texts = pieces(message.pop("content") or "")
                for delta in (message, *({"content": text} for text in texts)):
                    await asyncio.sleep(0)
                    said = {"index": choice["index"], "delta": delta, "finish_reason": None}
                    if body.get("logprobs") and "content" in delta:
                        said["logprobs"] = {"content": [{"token": delta["content"], "logprob": -0.125}]}
                    event = self._event(said)
                    if (body.get("stream_options") or {}).get("continuous_usage_stats"):
                        event["usage"] = usage
                    yield event
                ended = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
                yield self._event(ended)
            yield {"model": self._model, "choices": [], "usage": usage}
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    def _event(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {"id": "upstream", "object": "chat.completion.chunk", "model": self._model, "choices": [choice]}

    async def control_tokens(self, texts: Iterable[str]) -> Collection[str]:
        return ()

    async def _chosen(self, body: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """The choices of a reply to a chat request, and its usage."""
        self.chats.append(body)
        await self._turn()
        if self.hang:
            self.hanging += 1
            await asyncio.Event().wait()
        texts = [_content(message) for message in body["messages"]]
        if sum(map(len, texts)) > self._context_chars:
            raise PromptTooLong("the question does not fit the reader's context: shorten it")
        scripted = self._script.get((texts[-1].rpartition("\n")[2], None))
        said = pieces(scripted.text if scripted else from_passages(texts[-1], "\n".join(texts)))
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or len(said) + 1
        if type(limit) is not int or limit < 1:
            raise ReaderRefused("the limit is not a number", kind="BadRequestError", param="max_tokens")
        message = {"role": "assistant", "content": "".join(said[:limit]).strip()}
        choice = {"index": 0, "message": message, "finish_reason": "length" if len(said) > limit else "stop"}
        usage = {
            "prompt_tokens": 1 + sum(map(len, texts)) // 4,
            "completion_tokens": min(len(said) + 1, limit),
        }
        return self.choices or [choice], usage

    async def ping(self) -> None:
        self.pings += 1
        await self._turn()

    async def close(self) -> None:
        self.closed = True

    async def _answer(self, prompt: Prompt, max_tokens: int) -> Generation:
        self.prompts.append(prompt)
        self.before(prompt)
        await self._turn(len(prompt.passages))
        if self.hang:
            self.hanging += 1
            await asyncio.Event().wait()
        passages, read_chars = self._fitting(prompt)
        scripted = self._scripted(prompt.question, passages)
        texts = pieces(scripted.text)
        return Generation(
            text="".join(texts[:max_tokens]).strip(),
            tokens=scripted.tokens[:max_tokens],
            prompt_tokens=1 + _length(prompt.question, passages) // 4,
            # The end token counts if it was reached.
            completion_tokens=min(len(texts) + 1, max_tokens),
            passages_read=len(passages),
            truncated=len(texts) >= max_tokens,
            read_chars=read_chars,
        )

    def _scripted(self, question: str, passages: Sequence[Passage]) -> Scripted:
        for k in (len(passages), None):
            if (question, k) in self._script:
                return self._script[question, k]
        text = from_passages(question, "\n".join(passage.text for passage in passages))
        return Scripted(text, tuple(surely(0.9) for _ in pieces(text)))

    def _fitting(self, prompt: Prompt) -> tuple[tuple[Passage, ...], int | None]:
        passages = prompt.passages
        read_chars = None
        while _length(prompt.question, passages) > self._context_chars:
            if len(passages) > 1:
                passages = passages[:-1]
            elif passages and len(passages[0].text) >= 200:
                read_chars = len(passages[0].text) // 2
                passages = (replace(passages[0], text=passages[0].text[:read_chars]),)
            else:
                raise PromptTooLong("the question does not fit the reader's context: shorten it")
        return passages, read_chars

    async def _turn(self, k: int | None = None) -> None:
        # A real reader always yields to other tasks; a fake that does not would hide races.
        await asyncio.sleep(0)
        if self.closed:
            raise UpstreamUnavailable("reader", "the reader was closed")
        if self.fail_with is not None and self.fail_on_k in {None, k}:
            raise self.fail_with


def surely(sure: float) -> TokenLogprobs:
    """A token with log-probability sure - 1, for which a min-max calibrator from -1 to 0 returns `sure`."""
    logprob = sure - 1.0
    rest = math.log((1.0 - math.exp(logprob)) / (TOP - 1)) if sure < 1.0 else -100.0
    return TokenLogprobs(logprob, tuple(sorted([logprob, *[rest] * (TOP - 1)], reverse=True)))


def pieces(text: str) -> list[str]:
    """A text as tokens: its words, each with the space before it."""
    return re.findall(r"\s*\S+", text)


def from_passages(question: str, passages: str) -> str:
    """Answer a question about a capital from the passages, or from a few known facts without any."""
    asked = _CAPITAL_ASKED.search(question)
    if asked is None:
        return "I cannot tell."
    found = re.search(rf"capital of {asked[1]} is (\w+)", passages)
    capital = found[1] if found else _KNOWN.get(asked[1], "unknown")
    return f"The capital of {asked[1]} is {capital}."


def _content(message: Mapping[str, Any]) -> str:
    """The text of a message, in one string or in parts."""
    match message.get("content"):
        case None:
            return ""
        case str(content):
            return content
        case [*parts] if all(isinstance(part, dict) and isinstance(part.get("text", ""), str) for part in parts):
            return "\n".join(part.get("text", "") for part in parts)
    raise ReaderRefused("the content is not text", kind="BadRequestError", param="messages")


def _length(question: str, passages: Sequence[Passage]) -> int:
    return len(question) + sum(len(passage.title) + len(passage.text) for passage in passages)
