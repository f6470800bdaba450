"""A reader, an embedder and vectors behind one address, in this process: fixed replies, at once or after a set time.

It serves tens of thousands of replies per second on one core, so no measured system waits for it.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httptools

from bench.gateway import replies

_LIMIT = re.compile(rb'"limit":\s*(\d+)')
# Passages are numbered in a prompt, in ours and in the pass-through's. Of five the reader is sure.
_FIFTH = b"[5] "
# A chat asks for none.
_LOGPROBS = b'"logprobs"'


@dataclass
class Slots:
    """A reader that generates this many answers at once, each in this many seconds; other requests queue."""

    at_once: int
    seconds: float
    busy: int = 0
    waiting: deque[tuple["_Connection", bytes]] = field(default_factory=deque)

    def take(self, connection: "_Connection", reply: bytes) -> None:
        """Answer as soon as a slot is free."""
        if self.busy == self.at_once:
            self.waiting.append((connection, reply))
            return
        self.busy += 1
        asyncio.get_running_loop().call_later(self.seconds, self._done, connection, reply)

    def _done(self, connection: "_Connection", reply: bytes) -> None:
        connection.send(reply)
        self.busy -= 1
        while self.waiting:
            # As in vLLM, nothing is generated for a client that has disconnected.
            following, its_reply = self.waiting.popleft()
            if not following.gone:
                self.take(following, its_reply)
                return


class Canned:
    """Every reply, rendered once."""

    def __init__(self) -> None:
        self._by_path = {f" {path}?".encode(): replies.chat(sure) for path, sure in replies.SURE.items()}
        self._from_five = replies.chat(0.95)
        self._written = replies.written()
        self._found = {limit: replies.found(limit) for limit in (1, 5)}
        self._not_found = replies.not_found()
        of_collection = f"/collections/{replies.COLLECTION}"
        self._fixed = {
            b"/v1/models": replies.models(),
            b"/tokenize": replies.tokenized(),
            b"/v1/embeddings": replies.embedding(),
            b"/collections": replies.collections(),
            of_collection.encode(): replies.collection(),
            f"{of_collection}/points/count".encode(): replies.count(),
        }
        self._query = f"{of_collection}/points/query".encode()

    def reply(self, path: bytes, body: bytes) -> bytes:
        """The reply of the upstream behind this path."""
        if path == self.chat_path:
            if _FIFTH in body:
                return self._from_five if _LOGPROBS in body else self._written
            return next((reply for marker, reply in self._by_path.items() if marker in body), self._not_found)
        if path == self._query:
            limit = _LIMIT.search(body)
            return self._found.get(int(limit[1]), self._not_found) if limit else self._not_found
        return self._fixed.get(path, self._not_found)

    chat_path = b"/v1/chat/completions"


class _Connection(asyncio.Protocol):
    def __init__(self, canned: Canned, slots: Slots | None) -> None:
        self._canned = canned
        self._slots = slots
        self._parser = httptools.HttpRequestParser(self)
        self._path, self._body = b"", b""
        self.gone = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self.gone = True

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path, self._body = url.partition(b"?")[0], b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        reply = self._canned.reply(self._path, self._body)
        if self._slots is not None and self._path == Canned.chat_path:
            self._slots.take(self, reply)
        else:
            self.send(reply)

    def send(self, reply: bytes) -> None:
        if not self.gone:
            self._transport.write(reply)


@asynccontextmanager
async def simulator(slots: Slots | None = None) -> AsyncIterator[int]:
    """Serve on a free loopback port; yields the address."""
    canned = Canned()
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(canned, slots), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
