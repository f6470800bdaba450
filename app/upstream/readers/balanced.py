"""Replicas of one reader behind a single `Reader`: sticky routing by question, balanced by health and load.

The probe and the read of a question go to the same replica while it is healthy, so that they share its prefix cache. A
replica that was down must confirm that it serves the same model before its answers are used, because the calibrator
holds only for that model.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from app.core.artifact import Identity
from app.errors import ConfigurationError, UpstreamBadReply, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from app.ports import Generation, Prompt, Reader
from app.upstream.resilience import Breaker, Resilience

logger = logging.getLogger(__name__)

T = TypeVar("T")
# A replica with more than 1.5 times its share of questions passes new ones on; a few concurrent ones are fine.
_LOAD = 1.5
_FEW = 4
# Shorter than the timeout of a ping, so that one replica that hangs does not fail the ping of all.
_PING_S = 1.5
_IDENTIFY_S = 5.0
# What messages call the fields of an identity.
_CALLED = {"reader": "model"}


@dataclass(slots=True, eq=False)
class _Replica:
    """One server."""

    name: str
    reader: Reader
    resilience: Resilience
    breaker: Breaker
    in_flight: int = 0
    # Its identity is unconfirmed: never asked, or it was down since.
    suspect: bool = True
    # Why it gets no questions although it answers; empty if it may get some.
    mismatch: str = ""
    _salted: "hashlib.blake2b" = field(init=False)

    def __post_init__(self) -> None:
        self._salted = hashlib.blake2b(self.name.encode(), digest_size=8)

    def rank(self, question: str) -> bytes:
        """Rendezvous hashing: the available replica with the highest score answers, in every process alike."""
        salted = self._salted.copy()
        salted.update(question.encode(errors="surrogatepass"))
        return salted.digest()

    def check(self) -> None:
        """Raise UpstreamUnavailable if this replica must not answer."""
        if self.mismatch:
            raise UpstreamUnavailable("reader", f"{self.name} serves another model now: {self.mismatch}")

    def judge(self, mismatch: str) -> None:
        """Store how it differs from the expected identity; empty if it does not."""
        if mismatch and mismatch != self.mismatch:
            logger.warning("%s is left out: %s", self.name, mismatch)
        elif self.mismatch and not mismatch:
            logger.info("%s takes part again", self.name)
        self.mismatch = mismatch
        self.suspect = bool(mismatch)

    async def identify(self) -> Identity:
        """Ask what it serves."""
        async with _within(_IDENTIFY_S, f"{self.name} did not report its model in time"):
            return await self.reader.identify()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Record with its breaker how a call ended."""
        self.check()
        with self.breaker.watching():
            self.in_flight += 1
            began, result = time.perf_counter(), "cancelled"
            try:
                yield
                result = "ok"
            except UpstreamError as error:
                result = error.kind
                # Another model may run there when it answers again.
                self.suspect |= isinstance(error, UpstreamUnavailable)
                raise
            finally:
                self.in_flight -= 1
                self.resilience.on_call(self.name, result, time.perf_counter() - began)


class BalancedReader:
    """A Reader over several; messages use their names."""

    def __init__(self, readers: Mapping[str, Reader], resilience: Resilience) -> None:
        self._replicas = [
            _Replica(name, reader, resilience, resilience.breaker("reader")) for name, reader in readers.items()
        ]
        self._several = len(self._replicas) > 1
        # Retry only if there was no answer: a bad reply has already cost a generation.
        self._retries = resilience.retries("reader", UpstreamUnavailable)
        # The identity that all active replicas share; None until one reported it.
        self._identity: Identity | None = None

    async def start(self) -> None:
        """Refuse replicas that differ; one that is unreachable now joins when it answers."""
        try:
            await self.identify()
        except UpstreamError as error:
            logger.warning("no reader can be reached yet: %s", error)

    async def identify(self) -> Identity:
        """Identify all replicas; one that differs from the shared identity gets no questions until it matches.

        If none matches any more, the reachable ones set a new shared identity. If none was ever known, replicas that
        differ raise ConfigurationError.
        """
        outcomes = await asyncio.gather(*(one.identify() for one in self._replicas), return_exceptions=True)
        identities: dict[_Replica, Identity] = {}
        refused: dict[_Replica, ConfigurationError] = {}
        failed: list[UpstreamError] = []
        for replica, outcome in zip(self._replicas, outcomes, strict=True):
            match outcome:
                case Identity():
                    identities[replica] = outcome
                case ConfigurationError():
                    refused[replica] = outcome
                case UpstreamError():
                    failed.append(outcome)
                    replica.suspect = True
                case _:
                    raise outcome
        if not identities or (refused and self._identity is None):
            raise next(iter((*refused.values(), *failed)))
        self._identity = self._agreed(identities)
        for replica, identity in identities.items():
            replica.judge(_difference(identity, self._identity))
        for replica, error in refused.items():
            replica.judge(str(error))
        return self._identity

    async def generate(self, prompt: Prompt, *, max_tokens: int) -> Generation:
        """Answer at the question's replica; if it gives no answer, retry once at another."""
        return await self._asked(prompt.question, lambda reader: reader.generate(prompt, max_tokens=max_tokens))

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Pass the request on to the conversation's replica; if it gives no answer, retry once at another."""
        return await self._asked(_conversation(body), lambda reader: reader.chat(body))

    async def _asked(self, key: str, ask: Callable[[Reader], Awaitable[T]]) -> T:
        self._retries.earn()
        replica, tried = self._choose(key), 0
        while True:
            try:
                with replica.visit():
                    reply = await ask(replica.reader)
                    if replica.suspect:
                        await self._confirm(replica)
                    return reply
            except UpstreamError as error:
                tried += 1
                replica = await self._next(key, replica, error, tried)

    async def chat_stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Stream the reply; no retry after the first event."""
        self._retries.earn()
        key = _conversation(body)
        replica, tried = self._choose(key), 0
        while True:
            begun = False
            try:
                with replica.visit():
                    async with aclosing(replica.reader.chat_stream(body)) as events:
                        async for event in events:
                            if not begun and replica.suspect:
                                await self._confirm(replica)
                            begun = True
                            yield event
            except UpstreamError as error:
                if begun:
                    raise
                tried += 1
                replica = await self._next(key, replica, error, tried)
            else:
                return

    async def control_tokens(self, texts: Iterable[str]) -> Collection[str]:
        """Ask any of them: they serve the same model."""
        return await self._choose("").reader.control_tokens(texts)

    async def stream(self, prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[str | Generation, None]:
        """Stream the answer; no retry after the first piece."""
        self._retries.earn()
        replica, tried = self._choose(prompt.question), 0
        while True:
            begun = False
            try:
                with replica.visit():
                    async with aclosing(replica.reader.stream(prompt, max_tokens=max_tokens)) as pieces:
                        async for piece in pieces:
                            if not begun and replica.suspect:
                                await self._confirm(replica)
                            begun = True
                            if isinstance(piece, Generation):
                                # Yielded below: the caller may close this generator then, which is no failure.
                                break
                            yield piece
                        else:
                            raise UpstreamBadReply("reader", "the stream ended before the answer was complete")
            except UpstreamError as error:
                if begun:
                    raise
                tried += 1
                replica = await self._next(prompt.question, replica, error, tried)
            else:
                yield piece
                return

    async def ping(self) -> str | None:
        """Return if at least one can answer now, with a remark if not all can."""
        if not self._several:
            await self._ping(self._replicas[0], within_s=None)
            return None
        outcomes = await asyncio.gather(
            *(self._ping(one, within_s=_PING_S) for one in self._replicas), return_exceptions=True
        )
        failures = []
        for replica, outcome in zip(self._replicas, outcomes, strict=True):
            replica.resilience.on_ping(replica.name, outcome is None)
            if isinstance(outcome, UpstreamError):
                failures.append(f"{replica.name}: {outcome}")
            elif outcome is not None:
                raise outcome
        well = len(self._replicas) - len(failures)
        remark = f"{well} of {len(self._replicas)} readers answer; " + "; ".join(failures)
        if not well:
            raise UpstreamUnavailable("reader", remark)
        return remark if failures else None

    async def close(self) -> None:
        """Close all connections; idempotent."""
        for replica in self._replicas:
            await replica.reader.close()

    def _choose(self, question: str, avoid: _Replica | None = None) -> _Replica:
        """The first replica in the question's order that is healthy and not overloaded; a failing one if all fail."""
        if not self._several:
            return self._replicas[0]
        fit = [one for one in self._replicas if not one.mismatch]
        well = [one for one in fit if not one.breaker.open]
        able = [one for one in well if one is not avoid] or well or [one for one in fit if one.breaker.due]
        if not able:
            raise self._none_available(fit)
        most = max(_FEW, _LOAD * sum(one.in_flight for one in able) / len(able))
        ranked = sorted(able, key=lambda one: one.rank(question), reverse=True)
        return next((one for one in ranked if one.in_flight <= most), ranked[0])

    def _none_available(self, fit: Sequence[_Replica]) -> UpstreamUnavailable:
        if fit:
            return min(fit, key=lambda one: one.breaker.wait_s).breaker.refusal()
        return UpstreamUnavailable(
            "reader", "every reader serves another model now: " + "; ".join(one.mismatch for one in self._replicas)
        )

    async def _next(self, question: str, failed: _Replica, error: UpstreamError, tried: int) -> _Replica:
        """The replica for a retry; raises the failure if there is to be none."""
        alone = not self._several
        if (alone and (failed.breaker.open or failed.mismatch)) or not self._retries.allow(error, tried):
            raise error
        try:
            replica = self._choose(question, avoid=failed)
        except UpstreamUnavailable:
            raise error from None
        if replica is failed:
            await self._retries.pause(tried)
        return replica

    async def _ping(self, replica: _Replica, *, within_s: float | None) -> None:
        replica.check()
        async with _within(within_s, "it did not answer in time"):
            await replica.reader.ping()
            if replica.breaker.due:
                # Listing its model does not prove that it can generate; one token does, and no question waits for it.
                with replica.visit():
                    await replica.reader.generate(Prompt("ping"), max_tokens=1)
                    await self._confirm(replica)

    async def _confirm(self, replica: _Replica) -> None:
        """Confirm its identity before any of its answers is used."""
        if self._identity is None:
            return
        try:
            replica.judge(_difference(await replica.identify(), self._identity))
        except ConfigurationError as error:
            replica.judge(str(error))
        replica.check()

    def _agreed(self, identities: Mapping[_Replica, Identity]) -> Identity:
        if self._identity in identities.values():
            assert self._identity is not None
            return self._identity
        (first, identity), *others = identities.items()
        if self._identity is not None:
            logger.warning("the reader serves another model now: %s", _difference(identity, self._identity))
            return identity
        for replica, another in others:
            difference = _difference(another, identity)
            if difference:
                raise ConfigurationError(
                    f"FETCHWISE_READER: {replica.name} is not the same as {first.name}: {difference}. One calibrator "
                    "cannot hold for both: serve the same model, in the same way, at every URL"
                )
        return identity


@asynccontextmanager
async def _within(seconds: float | None, message: str) -> AsyncIterator[None]:
    """Raise UpstreamTimeout after this time."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise UpstreamTimeout("reader", message) from error


def _conversation(body: Mapping[str, Any]) -> str:
    """What the turns of a conversation have in common: its first message of a user."""
    return next((str(one.get("content")) for one in body["messages"] if one.get("role") == "user"), "")


def _difference(one: Identity, other: Identity) -> str:
    """How an identity differs from the expected one; empty if it does not."""
    return "; ".join(
        f"{_CALLED.get(part.name, part.name)} is {getattr(one, part.name)!r}, not {getattr(other, part.name)!r}"
        for part in fields(Identity)
        if getattr(one, part.name) != getattr(other, part.name)
    )
