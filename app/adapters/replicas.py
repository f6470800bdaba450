"""The servers behind one reader: how each fares, and whether it is the model that it should be."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields

from app.adapters.resilience import Breaker
from app.errors import ConfigurationError, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from app.ports import Reader, ReaderIdentity

logger = logging.getLogger(__name__)

_IDENTIFY_S = 5.0


@dataclass(slots=True, eq=False)
class Replica:
    """One server."""

    name: str
    reader: Reader
    breaker: Breaker
    in_flight: int = 0
    # Not known to be what it should be: never asked yet, or it was gone in between.
    suspect: bool = True
    # Why nothing is asked of it although it answers; empty where it may be asked.
    stranger: str = ""
    _salted: "hashlib.blake2b" = field(init=False)

    def __post_init__(self) -> None:
        self._salted = hashlib.blake2b(self.name.encode(), digest_size=8)

    def rank(self, question: str) -> bytes:
        """Rendezvous hashing: of the replicas that may answer a question the highest does, in every process."""
        salted = self._salted.copy()
        salted.update(question.encode(errors="surrogatepass"))
        return salted.digest()


class Roster:
    """All replicas, and the one identity that those who may answer have."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas
        self._identity: ReaderIdentity | None = None

    async def identify(self) -> ReaderIdentity:
        """Ask all of them; who is not what was agreed on is left out until it is.

        Where none is that any more, those that are there agree anew. Where none was ever known, replicas that differ
        are a ConfigurationError.
        """
        outcomes = await asyncio.gather(*(_identity(one) for one in self.replicas), return_exceptions=True)
        told: dict[Replica, ReaderIdentity] = {}
        refused: dict[Replica, ConfigurationError] = {}
        failed: list[UpstreamError] = []
        for replica, outcome in zip(self.replicas, outcomes, strict=True):
            match outcome:
                case ReaderIdentity():
                    told[replica] = outcome
                case ConfigurationError():
                    refused[replica] = outcome
                case UpstreamError():
                    failed.append(outcome)
                    replica.suspect = True
                case _:
                    raise outcome
        if not told or (refused and self._identity is None):
            raise next((*refused.values(), *failed).__iter__())
        self._identity = self._agreed(told)
        for replica, identity in told.items():
            self._judge(replica, _difference(identity, self._identity))
        for replica, error in refused.items():
            self._judge(replica, str(error))
        return self._identity

    async def confirm(self, replica: Replica) -> None:
        """Make sure that it is what it should be, before anything that it said is passed on."""
        if self._identity is None:
            return
        try:
            self._judge(replica, _difference(await _identity(replica), self._identity))
        except ConfigurationError as error:
            self._judge(replica, str(error))
        self.refuse_stranger(replica)

    @staticmethod
    def refuse_stranger(replica: Replica) -> None:
        """Raise UpstreamUnavailable where it is not to be asked."""
        if replica.stranger:
            raise UpstreamUnavailable("reader", f"{replica.name} is not the reader that it was: {replica.stranger}")

    def _agreed(self, told: Mapping[Replica, ReaderIdentity]) -> ReaderIdentity:
        if self._identity in told.values():
            assert self._identity is not None
            return self._identity
        (first, identity), *others = told.items()
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

    def _judge(self, replica: Replica, wrong: str) -> None:
        if wrong and wrong != replica.stranger:
            logger.warning("%s is left out: %s", replica.name, wrong)
        elif replica.stranger and not wrong:
            logger.info("%s takes part again", replica.name)
        replica.stranger = wrong
        replica.suspect = bool(wrong)


async def _identity(replica: Replica) -> ReaderIdentity:
    async with within(_IDENTIFY_S, f"{replica.name} did not say in time what it serves"):
        return await replica.reader.identify()


@asynccontextmanager
async def within(seconds: float | None, message: str) -> AsyncIterator[None]:
    """Turn what takes longer into UpstreamTimeout."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise UpstreamTimeout("reader", message) from error


def _difference(one: ReaderIdentity, other: ReaderIdentity) -> str:
    """How one differs from what it should be; empty where it does not."""
    return "; ".join(
        f"{part.name} is {getattr(one, part.name)!r}, not {getattr(other, part.name)!r}"
        for part in fields(ReaderIdentity)
        if getattr(one, part.name) != getattr(other, part.name)
    )
