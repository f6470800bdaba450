"""An embedder without a model: texts that share words are near, and equal texts have equal vectors."""

import asyncio
import hashlib
import math
import re
from collections.abc import Sequence

from app.errors import UpstreamError, UpstreamUnavailable

_WORD = re.compile(r"\w+")


class FakeEmbedder:
    """A hashing bag of words with unit length; while set, `fail_with` is raised by every call.

    `queries` and `passages` hold the embedded texts in order, and `batches` the sizes of passage calls.
    """

    def __init__(self, dimension: int = 256, query_prefix: str = "", fail_with: UpstreamError | None = None) -> None:
        self._dimension = dimension
        self._query_prefix = query_prefix
        self.fail_with = fail_with
        self.queries: list[str] = []
        self.passages: list[str] = []
        self.batches: list[int] = []
        self.closed = False

    async def start(self) -> None:
        """Nothing to load."""

    @property
    def name(self) -> str:
        return f"fake-{self._dimension}" + (f"+{self._query_prefix!r}" if self._query_prefix else "")

    @property
    def dimension(self) -> int:
        return self._dimension

    async def embed_query(self, text: str) -> Sequence[float]:
        await self._turn()
        self.queries.append(text)
        return hashed_words(self._query_prefix + text, self._dimension)

    async def embed_passages(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        await self._turn()
        self.passages.extend(texts)
        self.batches.append(len(texts))
        return [hashed_words(text, self._dimension) for text in texts]

    async def ping(self) -> None:
        await self._turn()

    async def close(self) -> None:
        self.closed = True

    async def _turn(self) -> None:
        # A real embedder always yields to other tasks; a fake that does not would hide races.
        await asyncio.sleep(0)
        if self.closed:
            raise UpstreamUnavailable("embedder", "the embedder was closed")
        if self.fail_with is not None:
            raise self.fail_with


def hashed_words(text: str, dimension: int) -> list[float]:
    """Count each word at the position and with the sign given by its hash, then scale to unit length."""
    vector = [0.0] * dimension
    # The constant word gives a text without words a direction.
    for word in ["", *_WORD.findall(text.lower())]:
        digest = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
        weight = 1.0 if word else 0.1
        vector[(digest >> 1) % dimension] += weight if digest & 1 else -weight
    length = math.hypot(*vector)
    return [x / length for x in vector]
