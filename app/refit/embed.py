"""Embedding the questions of a table, as the gateway would embed each of them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np

from app.errors import DataError
from app.ports import Clock, Embedder
from app.refit.pregate import embedded
from app.refit.table import Outcomes

# Questions under way at once, so that an embedder can batch them.
_BATCH = 64
# Questions that are embedded alone, one after the other, to see what one costs.
_TIMED = 32


async def embed_questions(
    table: Outcomes,
    embedder: Embedder,
    *,
    embed_ms: float | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
    clock: Clock = time.perf_counter,
) -> Outcomes:
    """The table with its questions embedded; refused where it was collected with another embedder.

    What one costs is measured on the first of them, alone, unless `embed_ms` says it.
    """
    if not table.questions:
        raise DataError("the table holds no questions, only what became of them: nothing can be embedded")
    if table.identity is not None and table.identity.embedder != embedder.name:
        raise DataError(
            f"the table was collected with the embedder {table.identity.embedder!r}, and {embedder.name!r} runs: "
            "set FETCHWISE_EMBEDDER to that one"
        )
    # A question asked twice is one to embed.
    distinct = list(dict.fromkeys(table.questions))
    if embed_ms is None:
        embed_ms = median([await _timed(embedder, question, clock) for question in distinct[:_TIMED]])
    vectors: dict[str, list[float]] = {}
    for start in range(0, len(distinct), _BATCH):
        batch = distinct[start : start + _BATCH]
        for question, vector in zip(batch, await asyncio.gather(*map(embedder.embed_query, batch)), strict=True):
            vectors[question] = list(vector)
        on_progress(len(vectors))
    matrix = np.array([vectors[question] for question in table.questions])
    asked = embedded(table.questions, matrix, embedder=embedder.name, embed_ms=embed_ms)
    return replace(table, asked=asked)


async def _timed(embedder: Embedder, question: str, clock: Clock) -> float:
    started = clock()
    await embedder.embed_query(question)
    return (clock() - started) * 1000.0
