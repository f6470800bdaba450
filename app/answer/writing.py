"""Writes the text once k is chosen: decide, then write.

In chat mode the caller's own request goes to the reader. Only the passages are added to it.
"""

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from app.core.available import Available, Passage, Usage
from app.core.ladder import Reply, Written
from app.core.policy import Reason
from app.core.prompts import WRITING
from app.core.question import Writing
from app.errors import PromptTooLong, UpstreamBadReply
from app.ports import SILENT, Listener, Reader

# With these, and without passages, there is no evidence.
_MISSING = frozenset({Reason.OUT_OF_SCOPE, Reason.NO_PASSAGES, Reason.RETRIEVAL_FAILED})
_LENGTHS = ("max_tokens", "max_completion_tokens")


def to_write(writing: Writing, reply: Reply) -> Reply:
    """The decision about the short answer, as one about the text. A chat is withheld only if evidence is missing.

    Neither the short answer nor its confidence is that of the text.
    """
    if writing.kind == "full":
        return reply
    return replace(reply, text=None, confidence=None, withheld=_lacks(reply) and writing.missing == "withhold")


def _lacks(reply: Reply) -> bool:
    """Whether evidence was wanted, and there is none."""
    return reply.k == 0 and reply.reason in _MISSING


async def write_chat(writing: Writing, available: Available, reply: Reply, reader: Reader, listener: Listener) -> Reply:
    """Answer the caller's own request with the chosen passages."""
    passages = (available.passages or ())[: reply.k]
    if passages:
        listener.found(passages)
    markers = await reader.control_tokens([text for one in passages for text in (one.title, one.text)])
    refused: PromptTooLong | None = None
    for body, added in _bodies(writing, passages, markers, note=_lacks(reply) and writing.missing == "note"):
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
        if event.get("usage"):
            self.usage = Usage.of(event["usage"])
        for choice in event.get("choices") or ():
            self.answered = True
            if isinstance(choice, dict) and not choice.get("index"):
                message = choice.get("message") or choice.get("delta")
                content = message.get("content") if isinstance(message, dict) else None
                self.said += content if isinstance(content, str) else ""
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
