"""One reader or several that serve the same model, as one: sticky, balanced by health and load, each with a breaker.

A question's probe and read go to the same replica while that is well, so that they share its prefix cache. A replica
that was gone must say that it is still the same model before an answer of its is given: the calibrator holds for that
one alone.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager

from app.adapters.replicas import Replica, Roster, within
from app.adapters.resilience import Resilience
from app.errors import UpstreamBadReply, UpstreamError, UpstreamUnavailable
from app.ports import Generation, Prompt, Reader, ReaderIdentity, Token

logger = logging.getLogger(__name__)

# A replica with more than half again its share of the questions passes them on; a few at once are no burden.
_LOAD = 1.5
_FEW = 4
# Shorter than a ping of all of them may take, so that one that hangs does not speak for the others.
_PING_S = 1.5


class BalancedReader:
    """A Reader over others; their names say which of them is meant."""

    def __init__(self, readers: Mapping[str, Reader], resilience: Resilience) -> None:
        self._replicas = [Replica(name, reader, resilience.breaker("reader")) for name, reader in readers.items()]
        self._roster = Roster(self._replicas)
        self._several = len(self._replicas) > 1
        # Only where it gave no answer: one that answers nonsense has worked for it.
        self._retries = resilience.retries("reader", UpstreamUnavailable)

    async def start(self) -> None:
        """Refuse replicas that are not the same; one that cannot be reached yet is taken up when it can be."""
        try:
            await self.identify()
        except UpstreamError as error:
            logger.warning("no reader can be reached yet: %s", error)

    async def identify(self) -> ReaderIdentity:
        """Ask all of them; those that differ from what was agreed on are left out."""
        return await self._roster.identify()

    async def generate(self, prompt: Prompt, *, max_tokens: int) -> Generation:
        """Answer at the question's own replica, or once more at another where that one gave no answer."""
        self._retries.earn()
        replica, tried = self._choose(prompt.question), 0
        while True:
            try:
                with self._visit(replica):
                    generation = await replica.reader.generate(prompt, max_tokens=max_tokens)
                    if replica.suspect:
                        await self._roster.confirm(replica)
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
                with self._visit(replica):
                    async with aclosing(replica.reader.stream(prompt, max_tokens=max_tokens)) as pieces:
                        async for piece in pieces:
                            if not begun and replica.suspect:
                                await self._roster.confirm(replica)
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

    def _choose(self, question: str, avoid: Replica | None = None) -> Replica:
        """The first in the question's own order that is well and not overburdened; a failing one where all fail."""
        if not self._several:
            return self._replicas[0]
        fit = [one for one in self._replicas if not one.stranger]
        well = [one for one in fit if not one.breaker.open]
        able = [one for one in well if one is not avoid] or well or [one for one in fit if one.breaker.due]
        if not able:
            raise self._nobody(fit)
        most = max(_FEW, _LOAD * sum(one.in_flight for one in able) / len(able))
        ranked = sorted(able, key=lambda one: one.rank(question), reverse=True)
        return next((one for one in ranked if one.in_flight <= most), ranked[0])

    def _nobody(self, fit: Sequence[Replica]) -> UpstreamUnavailable:
        if fit:
            return min(fit, key=lambda one: one.breaker.wait_s).breaker.refusal()
        return UpstreamUnavailable(
            "reader", "no reader is what it was: " + "; ".join(r.stranger for r in self._replicas)
        )

    async def _next(self, question: str, failed: Replica, error: UpstreamError, tried: int) -> Replica:
        """Where to try a question again that failed; raises the failure where it is not to be."""
        alone = not self._several
        if (alone and (failed.breaker.open or failed.stranger)) or not self._retries.allow(error, tried):
            raise error
        try:
            replica = self._choose(question, avoid=failed)
        except UpstreamUnavailable:
            raise error from None
        if replica is failed:
            await self._retries.pause(tried)
        return replica

    @contextmanager
    def _visit(self, replica: Replica) -> Iterator[None]:
        """Let the replica's breaker know how a call ended."""
        self._roster.refuse_stranger(replica)
        with replica.breaker.watching():
            replica.in_flight += 1
            try:
                yield
            except UpstreamUnavailable:
                # It may have been replaced by the time it answers again.
                replica.suspect = True
                raise
            finally:
                replica.in_flight -= 1

    async def _ping(self, replica: Replica, *, within_s: float | None) -> None:
        self._roster.refuse_stranger(replica)
        async with within(within_s, "it did not answer in time"):
            await replica.reader.ping()
            if replica.breaker.due:
                # That it lists its model does not prove that it answers; one token does, and no question waits for it.
                with self._visit(replica):
                    await replica.reader.generate(Prompt("ping"), max_tokens=1)
                    await self._roster.confirm(replica)
