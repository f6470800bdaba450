"""Callers that ask without a pause and keep every reply."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Reply:
    """What one caller got: a status with a body, or the error of the connection."""

    caller: int
    status: int | None
    body: str
    error: str = ""

    def __str__(self) -> str:
        return self.error or f"{self.status} {self.body[:200]}"


@dataclass
class Load:
    """Every reply so far, in order of arrival."""

    replies: list[Reply] = field(default_factory=list)

    @property
    def failed(self) -> list[Reply]:
        """Replies that are no answer."""
        return [reply for reply in self.replies if reply.status != 200]

    @property
    def counts(self) -> Counter[str]:
        """Replies by status, or by the kind of error."""
        return Counter(str(reply.status or reply.error.partition("(")[0]) for reply in self.replies)

    def wait_for(self, more: int) -> None:
        """Wait until so many more replies have arrived."""
        wanted = len(self.replies) + more
        wait_until(lambda: len(self.replies) >= wanted, f"no more replies: {self.counts}")

    def wait_for_everyone(self) -> None:
        """Wait until every caller has the reply to a question that it asked after this call."""
        before, known = len(self.replies), {reply.caller for reply in self.replies}

        def all_asked() -> bool:
            since = Counter(reply.caller for reply in self.replies[before:])
            # The first may be to a question from before.
            return all(since[caller] >= 2 for caller in known)

        wait_until(all_asked, f"a caller waits: {self.counts}")


@contextmanager
def load(url: str, *, callers: int = 8, pause_s: float = 0.0, body: dict[str, Any] | None = None) -> Iterator[Load]:
    """Ask from so many callers at once until the end of the block.

    Half of them keep their connection, the others open one for each question.
    """
    found, done = Load(), threading.Event()
    thread = threading.Thread(
        target=lambda: asyncio.run(_ask(url, callers, pause_s, body or {}, found, done)), name="load", daemon=True
    )
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join(120)
        assert not thread.is_alive(), "callers still wait for replies"


async def _ask(
    url: str, callers: int, pause_s: float, body: dict[str, Any], found: Load, done: threading.Event
) -> None:
    async def caller(number: int) -> None:
        limits = httpx.Limits(max_keepalive_connections=1 if number % 2 else 0)
        async with httpx.AsyncClient(base_url=url, timeout=90, limits=limits) as client:
            while not done.is_set():
                question = {"question": f"What is number {len(found.replies)}?"}
                try:
                    response = await client.post("/answer", json=question | body)
                    found.replies.append(Reply(number, response.status_code, response.text))
                except httpx.HTTPError as error:
                    found.replies.append(Reply(number, None, "", repr(error)))
                await asyncio.sleep(pause_s)

    await asyncio.gather(*(caller(number) for number in range(callers)))
