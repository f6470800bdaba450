"""Writes the text once k is chosen: decide, then write.

In chat mode the caller's own request goes to the reader. Only the passages are added to it.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

from app.core.available import Answer, Available, Passage, Usage
from app.core.ladder import Reply, Written
from app.core.policy import Reason
from app.core.prompts import WRITING
from app.core.question import Writing
from app.core.sentences import LongAnswer
from app.errors import PromptTooLong, UpstreamBadReply
from app.ports import SILENT, Listener, Reader

Show = Callable[[str], None]
# With these, and without passages, there is no evidence.
_MISSING = frozenset({Reason.OUT_OF_SCOPE, Reason.NO_PASSAGES, Reason.RETRIEVAL_FAILED})
_LENGTHS = ("max_tokens", "max_completion_tokens")


async def write_chat(writing: Writing, available: Available, reply: Reply, reader: Reader, listener: Listener) -> Reply:
    """Answer the caller's own request with the chosen passages."""
    passages = (available.passages or ())[: reply.k]
    if passages:
        listener.found(passages)
    markers = await reader.control_tokens([text for one in passages for text in (one.title, one.text)])
    lacking = reply.k == 0 and reply.reason in _MISSING
    refused: PromptTooLong | None = None
    for body, added in _bodies(writing, passages, markers, note=lacking and writing.missing == "note"):
        text = _Text()
        try:
            if listener is SILENT:
                text.whole = await reader.chat(body)
                text.add(text.whole)
            else:
                await _relayed(reader.chat_stream(body), text, listener)
        except PromptTooLong as error:
            refused = error
            continue
        written = Written(text.usage, added, text.whole)
        return replace(reply, text=text.said, truncated=text.finish_reason == "length", written=written)
    assert refused is not None
    raise refused


async def write_full(writing: Writing, available: Available, reply: Reply, reader: Reader, show: Show) -> Reply:
    """Write the short answer out from the passages that it was read from; unchanged if the reader writes nothing.

    The caller gives the short answer then, and if this fails before anything is shown.
    """
    short = available.answers[reply.k]
    passages = (available.passages or ())[: short.passages_read]
    answer, text, added = LongAnswer(available.asked, ()), _Text(), 0
    texts = [available.asked.text, short.text, *(text for one in passages for text in (one.title, one.text))]
    markers = await reader.control_tokens(texts)
    for body, added in _full_bodies(writing, available.asked.text, short, passages, markers):
        answer, text = LongAnswer(available.asked, passages[:added]), _Text()
        with suppress(PromptTooLong):
            await _shown(reader.chat_stream(body), text, answer, show, limit=writing.body["max_tokens"])
            break
    if not answer.text:
        return reply
    written = Written(
        text.usage,
        added,
        text=answer.text,
        sentences=tuple(answer.sentences),
        truncated=text.finish_reason == "length",
    )
    return replace(reply, written=written)


def _full_bodies(
    writing: Writing, question: str, short: Answer, passages: Sequence[Passage], markers: Collection[str]
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The request with all passages, then with fewer, at last without a limit on the length: until it fits."""
    texts = [(one.title, one.text[: short.read_chars]) for one in passages]
    for added in range(len(texts), 0, -1) if texts else (0,):
        message = WRITING.to_write_out(question, short.text, texts[:added], markers)
        body = {
            **writing.body,
            "messages": [{"role": "user", "content": message}],
            "temperature": 0,
            "logprobs": True,
            # The text may end before the reader does.
            "stream_options": {"continuous_usage_stats": True},
        }
        yield body, added
    yield {name: value for name, value in body.items() if name not in _LENGTHS}, added


async def _shown(
    events: AsyncGenerator[dict[str, Any], None], text: "_Text", answer: LongAnswer, show: Show, *, limit: int
) -> None:
    """Show a full answer while it is written."""
    pieces = 0
    async with aclosing(events):
        async for event in events:
            before = len(text.said)
            text.add(event)
            pieces += len(text.said) > before
            if shown := answer.add(text.said[before:], tokens_of(event)):
                show(shown)
            # Servers may ignore the limit, and it may not have been sent.
            if answer.repeats or pieces > limit:
                text.finish_reason = text.finish_reason or ("length" if pieces > limit else "stop")
                break
    if shown := answer.finish():
        show(shown)


def tokens_of(event: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The tokens of an event with their log-probabilities; NaN where the server sent something else."""
    try:
        reported = [choice["logprobs"]["content"] for choice in event["choices"] if choice.get("logprobs")]
        return [(str(token["token"]), float(token["logprob"])) for tokens in reported for token in tokens]
    except (KeyError, TypeError, AttributeError, ValueError):
        return [("", nan)]


async def _relayed(events: AsyncGenerator[dict[str, Any], None], text: "_Text", listener: Listener) -> None:
    async with aclosing(events):
        async for event in events:
            text.add(event)
            listener.chunk(event)
    if not text.answered:
        raise UpstreamBadReply("reader", "the reader's stream holds no answer")


def _bodies(
    writing: Writing, passages: Sequence[Passage], markers: Collection[str], *, note: bool
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The request with all passages, then with fewer, at last without a limit on the length: until it fits."""
    messages = writing.body["messages"]
    texts = [(passage.title, passage.text) for passage in passages]
    for added in range(len(texts), 0, -1):
        yield {**writing.body, "messages": WRITING.with_passages(messages, texts[:added], markers)}, added
    alone = {**writing.body, "messages": WRITING.with_note(messages) if note else messages}
    yield alone, 0
    if any(alone.get(name) for name in _LENGTHS):
        yield {name: value for name, value in alone.items() if name not in _LENGTHS}, 0


@dataclass(slots=True)
class _Text:
    """What the record keeps of a reply, whole or in events: the text of its first choice."""

    whole: dict[str, Any] | None = None
    usage: Usage = field(default_factory=Usage)
    said: str = ""
    finish_reason: object = None
    answered: bool = False

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event, or a whole reply."""
        self.usage = Usage.so_far(event) or self.usage
        for choice in event.get("choices") or ():
            self.answered = True
            if isinstance(choice, dict) and not choice.get("index"):
                message = choice.get("message") or choice.get("delta")
                content = message.get("content") if isinstance(message, dict) else None
                self.said += content if isinstance(content, str) else ""
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
