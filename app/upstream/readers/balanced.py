"""One reader or several that serve the same model, as one: sticky, balanced by health and load, each with a breaker.

A question's probe and read go to the same replica while that is well, so that they share its prefix cache. A replica
that was gone must say that it is still the same model before an answer of its is given: the calibrator holds for that
one alone.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields

from app.core.artifact import Identity
from app.errors import ConfigurationError, UpstreamBadReply, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from app.ports import Generation, Prompt, Reader, Token
from app.upstream.resilience import Breaker, Resilience

logger = logging.getLogger(__name__)

# A replica with more than half again its share of the questions passes them on; a few at once are no burden.
_LOAD = 1.5
_FEW = 4
# Shorter than a ping of all of them may take, so that one that hangs does not speak for the others.
_PING_S = 1.5
_IDENTIFY_S = 5.0
# In messages about readers, the identity's `reader` is which model it serves.
_CALLED = {"reader": "model"}


@dataclass(slots=True, eq=False)
class _Replica:
    """One server."""

    name: str
    reader: Reader
    breaker: Breaker
    in_flight: int = 0
    # Not known to be what it should be: never asked yet, or it was gone in between.
    suspect: bool = True
    # Why nothing is asked of it although it answers; empty where it may be asked.
    mismatch: str = ""
    _salted: "hashlib.blake2b" = field(init=False)

    def __post_init__(self) -> None:
        self._salted = hashlib.blake2b(self.name.encode(), digest_size=8)

    def rank(self, question: str) -> bytes:
        """Rendezvous hashing: of the replicas that may answer a question the highest does, in every process."""
        salted = self._salted.copy()
        salted.update(question.encode(errors="surrogatepass"))
        return salted.digest()

    def check(self) -> None:
        """Raise UpstreamUnavailable where it is not to be asked."""
        if self.mismatch:
            raise UpstreamUnavailable("reader", f"{self.name} is not the reader that it was: {self.mismatch}")

    def judge(self, mismatch: str) -> None:
        """Take note of how it differs from what it should be; empty where it does not."""
        if mismatch and mismatch != self.mismatch:
            logger.warning("%s is left out: %s", self.name, mismatch)
        elif self.mismatch and not mismatch:
            logger.info("%s takes part again", self.name)
        self.mismatch = mismatch
        self.suspect = bool(mismatch)

    async def identify(self) -> Identity:
        """Ask what it serves."""
        async with _within(_IDENTIFY_S, f"{self.name} did not say in time what it serves"):
            return await self.reader.identify()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Let its breaker know how a call ended."""
        self.check()
        with self.breaker.watching():
            self.in_flight += 1
            try:
                yield
            except UpstreamUnavailable:
                # It may have been replaced by the time it answers again.
                self.suspect = True
                raise
            finally:
                self.in_flight -= 1


class BalancedReader:
    """A Reader over others; their names say which of them is meant."""

    def __init__(self, readers: Mapping[str, Reader], resilience: Resilience) -> None:
        self._replicas = [_Replica(name, reader, resilience.breaker("reader")) for name, reader in readers.items()]
        self._several = len(self._replicas) > 1
        # Only where it gave no answer: one that answers nonsense has worked for it.
        self._retries = resilience.retries("reader", UpstreamUnavailable)
        # What those who may answer have agreed on; None until one was asked.
        self._identity: Identity | None = None

    async def start(self) -> None:
        """Refuse replicas that are not the same; one that cannot be reached yet is taken up when it can be."""
        try:
            await self.identify()
        except UpstreamError as error:
            logger.warning("no reader can be reached yet: %s", error)

    async def identify(self) -> Identity:
        """Ask all of them; one that is not what was agreed on is left out until it is.

        Where none is that any more, those that are there agree anew. Where none was ever known, replicas that differ
        are a ConfigurationError.
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
        """Answer at the question's own replica, or once more at another where that one gave no answer."""
        self._retries.earn()
        replica, tried = self._choose(prompt.question), 0
        while True:
            try:
                with replica.visit():
                    generation = await replica.reader.generate(prompt, max_tokens=max_tokens)
                    if replica.suspect:
                        await self._confirm(replica)
                    return generation
            except UpstreamError as error:
                tried += 1
                replica = await self._next(prompt.question, replica, error, tried)

    async def stream(self, prompt: Prompt, *, max_tokens: int) -> AsyncGenerator[Token | Generation, None]:
        """Answer in pieces; once one was given, nothing is tried again."""
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
                                # Given below: whoever has the whole may close this generator, which is no failure.
                                break
                            yield piece
                        else:
                            raise UpstreamBadReply("reader", "the stream ended before the answer did")
            except UpstreamError as error:
                if begun:
                    raise
                tried += 1
                replica = await self._next(prompt.question, replica, error, tried)
            else:
                yield piece
                return

    async def ping(self) -> str | None:
        """Return if one of them can answer now, with a remark where not all of them can."""
        if not self._several:
            await self._ping(self._replicas[0], within_s=None)
            return None
        outcomes = await asyncio.gather(
            *(self._ping(one, within_s=_PING_S) for one in self._replicas), return_exceptions=True
        )
        failures = []
        for replica, outcome in zip(self._replicas, outcomes, strict=True):
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
        """Release all connections; idempotent."""
        for replica in self._replicas:
            await replica.reader.close()

    def _choose(self, question: str, avoid: _Replica | None = None) -> _Replica:
        """The first in the question's own order that is well and not overburdened; a failing one where all fail."""
        if not self._several:
            return self._replicas[0]
        fit = [one for one in self._replicas if not one.mismatch]
        well = [one for one in fit if not one.breaker.open]
        able = [one for one in well if one is not avoid] or well or [one for one in fit if one.breaker.due]
        if not able:
            raise self._nobody(fit)
        most = max(_FEW, _LOAD * sum(one.in_flight for one in able) / len(able))
        ranked = sorted(able, key=lambda one: one.rank(question), reverse=True)
        return next((one for one in ranked if one.in_flight <= most), ranked[0])

    def _nobody(self, fit: Sequence[_Replica]) -> UpstreamUnavailable:
        if fit:
            return min(fit, key=lambda one: one.breaker.wait_s).breaker.refusal()
        return UpstreamUnavailable(
            "reader", "no reader is what it was: " + "; ".join(one.mismatch for one in self._replicas)
        )

    async def _next(self, question: str, failed: _Replica, error: UpstreamError, tried: int) -> _Replica:
        """Where to try a question again that failed; raises the failure where it is not to be."""
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
                # That it lists its model does not prove that it answers; one token does, and no question waits for it.
                with replica.visit():
                    await replica.reader.generate(Prompt("ping"), max_tokens=1)
                    await self._confirm(replica)

    async def _confirm(self, replica: _Replica) -> None:
        """Make sure that it is what it should be, before anything that it said is passed on."""
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
            logger.warning("the reader is another one now: %s", _difference(identity, self._identity))
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
    """Turn what takes longer into UpstreamTimeout."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise UpstreamTimeout("reader", message) from error


def _difference(one: Identity, other: Identity) -> str:
    """How one differs from what it should be; empty where it does not."""
    return "; ".join(
        f"{_CALLED.get(part.name, part.name)} is {getattr(one, part.name)!r}, not {getattr(other, part.name)!r}"
        for part in fields(Identity)
        if getattr(one, part.name) != getattr(other, part.name)
    )
