"""What the life of a question needs from the world: small Protocols, and the values that cross them."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from app.core.artifact import Identity
from app.core.available import Passage
from app.core.ladder import Step
from app.core.question import Filter, Turn
from app.core.record import DecisionRecord
from app.core.signals import TokenLogprobs
from app.errors import DocumentConflict


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question with the passages to answer it from, best first; none means closed-book."""

    question: str
    passages: tuple[Passage, ...] = ()
    # The conversation that it continues, oldest first.
    earlier: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a streamed answer as the server sent it: usually one token, sometimes none of its text yet."""

    text: str
    logprobs: tuple[TokenLogprobs, ...]
    # Of the prompt; 0 where the server has not said so yet.
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished answer. `tokens` holds the answer's own tokens: the end token and the stop are not among them."""

    text: str
    tokens: tuple[TokenLogprobs, ...]
    prompt_tokens: int
    completion_tokens: int
    # Fewer than were given where the reader's context was too short: the worst-ranked were dropped.
    passages_read: int
    # Whether the longest answer was reached before its end.
    cut_off: bool = False


class Reader(Protocol):
    """A language model that answers briefly and says how sure each token was."""

    async def identify(self) -> Identity:
        """The reader's part of what runs; asks the server, so it raises UpstreamError where there is none."""
        ...

    async def generate(self, prompt: Prompt, *, max_tokens: int) -> Generation:
        """Answer greedily; cancelling the call stops the generation upstream."""
        ...

    def stream(self, prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[Token | Generation, None]:
        """Answer token by token, then once as a whole; closing the generator stops the generation upstream."""
        ...

    async def ping(self) -> str | None:
        """Return if it can answer now, with a remark where there is one to make; raise UpstreamError if not."""
        ...

    async def close(self) -> None:
        """Release connections; idempotent."""
        ...


class Embedder(Protocol):
    """Turns text into vectors of one length, normalised to unit length."""

    @property
    def name(self) -> str:
        """What goes into a calibrator's identity: the checkpoint and its query prefix."""
        ...

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        ...

    async def embed_query(self, text: str) -> Sequence[float]:
        """Embed one question, with the query prefix if the model wants one."""
        ...

    async def embed_passages(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Embed many passages, without the query prefix, in order."""
        ...

    async def ping(self) -> None:
        """Return if it can embed now, raise UpstreamError if not."""
        ...

    async def close(self) -> None:
        """Release threads and connections; idempotent."""
        ...


class Retriever(Protocol):
    """Searches named collections of passages by vector."""

    async def search(
        self, collection: str, vector: Sequence[float], *, limit: int, where: Filter | None = None
    ) -> list[Passage]:
        """Return at most `limit` passages, nearest first; UnknownCollection where there is none of that name."""
        ...

    async def count(self, collection: str) -> int:
        """How many passages the collection holds; UnknownCollection where there is none of that name."""
        ...

    async def ping(self) -> None:
        """Return if it can search now, raise UpstreamError if not."""
        ...

    async def close(self) -> None:
        """Flush and release; idempotent."""
        ...


class VectorStore(Retriever, Protocol):
    """A Retriever with its writing side, for ingestion."""

    async def create(self, collection: str, *, dimension: int) -> None:
        """Make the collection if it is not there; DataError if it is there with another dimension."""
        ...

    async def known(self, collection: str, ids: Sequence[str]) -> set[str]:
        """Which of these passage ids the collection already holds."""
        ...

    async def add(self, collection: str, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Store passages durably; a known id is replaced."""
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a document, and its revision: whoever replaces it says which one was read."""

    content: bytes
    revision: str


class Documents(Protocol):
    """A folder of small documents, each replaced as a whole. Every call blocks; DocumentError where it fails."""

    def read(self, name: str) -> Document | None:
        """The document with this name; None where there is none."""
        ...

    def write(self, name: str, content: bytes, *, expected: str | None) -> str:
        """Store the document durably and return its revision.

        DocumentConflict unless `expected` is the stored revision; None expects that there is no such document.
        """
        ...

    def names(self) -> list[str]:
        """Every document, sorted by name."""
        ...

    def where(self, name: str) -> str:
        """Where this document is, for messages."""
        ...

    def close(self) -> None:
        """Release connections; idempotent."""
        ...


def update(documents: Documents, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
    """Replace a document by what `change` makes of it; again where another writer was faster. None changes nothing."""
    while True:
        found = documents.read(name)
        content = change(found.content if found else None)
        if content is None:
            return
        try:
            documents.write(name, content, expected=found.revision if found else None)
        except DocumentConflict:
            continue
        return


class Observer(Protocol):
    """Sees every finished decision; must not block and must not raise."""

    def observe(self, record: DecisionRecord) -> None:
        """Take note of one finished decision."""
        ...


class Listener(Protocol):
    """Receives what happens to a question while it is worked on; must not block. Nothing is ever taken back."""

    def step(self, step: Step) -> None:
        """What is done next, and why."""
        ...

    def found(self, passages: Sequence[Passage]) -> None:
        """The passages that the reader is about to read."""
        ...

    def token(self, text: str) -> None:
        """A piece of the answer that is given; never of one that may still be withheld."""
        ...


class Silent:
    """Nobody listens: the caller waits for the whole answer."""

    def step(self, step: Step) -> None:
        """Drop it."""

    def found(self, passages: Sequence[Passage]) -> None:
        """Drop them."""

    def token(self, text: str) -> None:
        """Drop it."""


SILENT = Silent()

# Enter with the name of a stage, leave with the stage or with what it raised; a trace watches stages so.
Stages = Callable[[str], AbstractContextManager[object]]

# Seconds that only go forward, for timings.
Clock = Callable[[], float]
