"""The keys in force: held in memory, and read anew from their file every second by every worker."""

import asyncio
import logging
import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

from app.adapters.key_file import KeyFile
from app.decision.access import Key, matching
from app.errors import ConfigurationError, DataError

logger = logging.getLogger(__name__)

POLL_S = 1.0


class KeyStore:
    """Knows who may ask. Once keys are on they stay on: a file that is gone or damaged lets nobody in.

    They are on where there is a file, or where they are `required`: then nobody is let in without one.
    """

    def __init__(self, file: KeyFile, *, required: bool = False) -> None:
        self._file = file
        self._content: bytes | None = None
        self._keys: Mapping[str, Key] = {}
        self._on = required
        self._problem = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def on(self) -> bool:
        """Whether a key is asked for."""
        return self._on

    def find(self, presented: str) -> Key | None:
        """The key that was presented, if it is in force: a lookup, one SHA-256 and one comparison."""
        return matching(self._keys, presented)

    async def start(self) -> None:
        """Read the keys, then keep watching; ConfigurationError where the file is there and cannot be used."""
        await asyncio.to_thread(self._reload)
        if self._problem:
            raise ConfigurationError(self._problem)
        if not self._on:
            logger.info("no keys: whoever reaches this address may ask and see everything")
        self._task = asyncio.create_task(self._watch(), name="watch keys")

    async def close(self) -> None:
        """Stop watching; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await asyncio.to_thread(self._reload)
            except Exception:
                logger.exception("looking for changed keys failed; trying again")

    def _reload(self) -> None:
        try:
            content = self._file.content()
            if content == self._content:
                self._settled()
                return
            keys = self._parsed(content)
        except DataError as error:
            # There is, or was, a file: somebody wants keys.
            self._on = True
            stand = "; the keys read before stay in force" if self._content is not None else ""
            self._complain(f"{error}{stand}")
            return
        # The keys in one assignment, and before they are asked for: a request sees those of before or of after.
        self._keys, self._content, self._on = keys, content, True
        self._problem = ""
        in_force = sum(not key.revoked for key in keys.values())
        logger.info("keys: %d in force", in_force)
        if in_force == 0:
            logger.warning("no key is in force, so everyone is refused: `fetchwise keys create NAME`")

    def _parsed(self, content: bytes | None) -> dict[str, Key]:
        if content is None:
            raise DataError(f"{self._file.path} is gone")
        return {one.id: one.key() for one in self._file.parsed(content)}

    def _settled(self) -> None:
        if self._problem:
            self._problem = ""
            logger.info("keys: the file is as it was read before")

    def _complain(self, problem: str) -> None:
        # Once, not every second.
        if problem != self._problem:
            self._problem = problem
            logger.error("keys: %s", problem)


def reachable_from_elsewhere(host: str) -> bool:
    """Whether an address to listen on is open to other machines; in doubt it is. Blocks where it is a name."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host or None, None, flags=socket.AI_PASSIVE)}
    except OSError:
        return True
    return not all(_loopback(ip_address(one.partition("%")[0])) for one in found)


def _loopback(address: IPv4Address | IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
