"""The outside world on one page: small Protocols, and the values that cross them."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from app.core.artifact import Identity
from app.core.available import Passage
from app.core.feedback import Asked, AuditRow, Feedback, Judged
from app.core.ladder import Step
from app.core.question import Filter
from app.core.record import DecisionRecord, FullRun
from app.core.signals import TokenLogprobs
from app.errors import BadRequest, DocumentConflict


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question with the passages to answer it from, best first; none means closed-book."""

    question: str
    passages: tuple[Passage, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished answer. `tokens` excludes the end token and the stop sequence."""

    text: str
    tokens: tuple[TokenLogprobs, ...]
    prompt_tokens: int
    completion_tokens: int
    # Fewer than given if the reader's context was too short: the worst-ranked are dropped.
    passages_read: int
    # Whether `max_tokens` cut it off.
    truncated: bool = False
    # Even the best passage alone was too long: this many characters of it were read.
    read_chars: int | None = None


class Reader(Protocol):
    """A language model that gives short answers with token log-probabilities."""

    async def identify(self) -> Identity:
        """Ask the server which model it runs, as the reader's part of an identity; raises UpstreamError."""
        ...

    async def generate(self, prompt: Prompt, *, max_tokens: int) -> Generation:
        """Answer greedily; cancelling the call stops the generation upstream."""
        ...

    def stream(self, prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[str | Generation, None]:
        """Yield the answer in pieces, then as a whole; closing the generator stops the generation upstream."""
        ...

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a chat request as it is, with the reader's own model; returns the reply.

        ReaderRefused if the server does not accept it, PromptTooLong if it does not fit. Cancelling the call stops the
        generation upstream.
        """
        ...

    def chat_stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The same, streamed: yields the events, the usage in one of the last. Closing it stops the generation."""
        ...

    async def control_tokens(self, texts: Iterable[str]) -> Collection[str]:
        """What the reader would parse as control tokens in texts that are data; break these up before sending them."""
        ...

    async def ping(self) -> str | None:
        """Return, perhaps with a remark, if it can answer now; raise UpstreamError if not."""
        ...

    async def close(self) -> None:
        """Release connections; idempotent."""
        ...


class Embedder(Protocol):
    """Turns text into vectors of one length, normalised to unit length."""

    @property
    def name(self) -> str:
        """Checkpoint and query prefix; part of a calibrator's identity."""
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
        """Return at most `limit` passages, nearest first; UnknownCollection if it does not exist."""
        ...

    async def count(self, collection: str) -> int:
        """How many passages the collection holds; UnknownCollection if it does not exist."""
        ...

    async def ping(self) -> None:
        """Return if it can search now, raise UpstreamError if not."""
        ...

    async def close(self) -> None:
        """Flush and release; idempotent."""
        ...


class VectorStore(Retriever, Protocol):
    """A Retriever that can also be written to, for ingestion."""

    async def create(self, collection: str, *, dimension: int) -> None:
        """Create the collection if it does not exist; DataError if it exists with another dimension."""
        ...

    async def known(self, collection: str, ids: Sequence[str]) -> set[str]:
        """Which of these passage ids the collection already holds."""
        ...

    async def sample(self, collection: str, *, limit: int) -> list[Passage]:
        """Return at most `limit` passages, drawn by a hash of their ids: the same in every store, without scores."""
        ...

    async def add(self, collection: str, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Store passages durably; a known id is replaced."""
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a document and its revision, which a writer names to replace it."""

    content: bytes
    revision: str


class Documents(Protocol):
    """A folder of small documents, each replaced as a whole. Every call blocks; StorageError if it fails."""

    def read(self, name: str) -> Document | None:
        """The document with this name; None if there is none."""
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


def update(documents: Documents, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
    """Replace a document by what `change` makes of it; again if another writer was faster. None changes nothing."""
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


class Rows(Protocol):
    """The append-only rows of the decision log. Every call blocks; LogUnavailable if it fails."""

    def write(
        self, entries: Sequence[tuple[float, DecisionRecord | FullRun]], given: Sequence[tuple[float, Feedback]]
    ) -> list[Judged | BadRequest]:
        """Store decisions and shadow runs, then feedback, durably and all or nothing; one outcome for each feedback."""
        ...

    def size(self, most: int = 0) -> int:
        """About how many decisions there are; counted if they seem to be more than `most`, unless 0."""
        ...

    def prune(self, older_than_s: float, *, limit: int, most: int = 0) -> int:
        """Delete up to `limit` of the oldest decisions: older than that, and beyond the newest `most`; 0 keeps all.

        Returns how many. They are old by the clocks of the database and of this host, and if all before them are.
        """
        ...

    def asked(self, version: str, *, after: int, until: float, wait: float, limit: int) -> list[Asked]:
        """Answers under this calibrator whose verdict was asked for, after a position in the log and up to a time.

        Each with its first verdict within `wait` seconds.
        """
        ...

    def audit_rows(self, *, since: float, limit: int) -> list[AuditRow]:
        """At most `limit` decisions from that time on, newest first."""
        ...

    @property
    def documents(self) -> Documents:
        """Documents beside the rows, for state that means nothing without them."""
        ...

    def close(self) -> None:
        """Release connections; idempotent."""
        ...


class Rate(Protocol):
    """What one key may still do. Called for every request: it neither blocks nor raises."""

    def take(self, per_minute: int) -> float:
        """Take one request; returns how many seconds to wait for one, 0 if it was taken."""
        ...

    def begin(self, max_concurrent: int) -> bool:
        """Count one more question, unless `max_concurrent` are being answered; after True, call `end`."""
        ...

    def end(self) -> None:
        """One question is answered."""
        ...


class Rates(Protocol):
    """The rates of all keys."""

    def of(self, identifier: str) -> Rate:
        """The rate of the key with this public id."""
        ...


class Observer(Protocol):
    """Receives every finished decision; must not block. Errors are logged and do not affect the response."""

    def observe(self, record: DecisionRecord) -> None:
        """Receive one finished decision."""
        ...


class Listener(Protocol):
    """Receives the progress of a question; must not block. What it received is never taken back."""

    def step(self, step: Step, evidence: Mapping[str, float]) -> None:
        """The next action, why, and the evidence that is known."""
        ...

    def found(self, passages: Sequence[Passage]) -> None:
        """The passages that the reader is about to read."""
        ...

    def token(self, text: str) -> None:
        """A piece of the final answer; never of one that may still be withheld."""
        ...

    def chunk(self, event: Mapping[str, Any]) -> None:
        """An event of the reader's own reply to a chat request."""
        ...


class Silent:
    """Ignores progress: the caller waits for the whole answer."""

    def step(self, step: Step, evidence: Mapping[str, float]) -> None:
        """Drop it."""

    def found(self, passages: Sequence[Passage]) -> None:
        """Drop them."""

    def token(self, text: str) -> None:
        """Drop it."""

    def chunk(self, event: Mapping[str, Any]) -> None:
        """Drop it."""


SILENT = Silent()

# A context manager around each named stage; tracing makes a span of it.
Stages = Callable[[str], AbstractContextManager[object]]

# A monotonic clock in seconds, for timings.
Clock = Callable[[], float]
