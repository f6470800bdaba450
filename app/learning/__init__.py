"""Learns from live traffic: the decision log, exploration, shadow runs.

`telemetry` and the layers above it may import it.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.core.artifact import Identity
from app.core.corpus_stats import CorpusStats
from app.errors import ConfigurationError
from app.learning.log import DecisionLog, LogMetrics
from app.learning.sampling import Budget, Sampler
from app.learning.shadow import ShadowRunner
from app.ports import Embedder, Reader, Retriever, Rows
from app.settings import Settings, groups


@asynccontextmanager
async def open_log(settings: groups.Log, rows: Rows | None, metrics: LogMetrics) -> AsyncIterator[DecisionLog | None]:
    """Write decisions and feedback to the rows, which the log closes; None without rows."""
    if rows is None:
        yield None
        return
    log = DecisionLog(
        rows,
        capacity=settings.buffer,
        keep_days=settings.retention_days,
        most=settings.max_decisions,
        metrics=metrics,
    )
    log.start()
    try:
        yield log
    finally:
        await log.close()


@dataclass(frozen=True, slots=True)
class Learning:
    """What is drawn at random, and the budget and the shadow runs where they are on."""

    sampler: Sampler
    # Counts what learning costs, as an observer of every decision.
    budget: Budget | None = None
    shadows: ShadowRunner | None = None


@asynccontextmanager
async def open_learning(
    settings: Settings,
    log: DecisionLog | None,
    *,
    reader: Reader,
    embedder: Embedder,
    retriever: Retriever,
    identity: Callable[[], Identity | None],
    stats: Callable[[], CorpusStats],
    on_shadow: Callable[[str], None],
) -> AsyncIterator[Learning]:
    """Draw as the settings say; without a log nothing could be learned, so nothing is drawn.

    `stats` returns the corpus statistics in use, for the evidence of shadow runs.
    """
    learning = settings.learning
    if learning.shadow_share and settings.log.texts == "hash":
        raise ConfigurationError(
            "FETCHWISE_SHADOW_SHARE needs the texts, since a shadow run without them cannot be judged: set it to 0, or "
            "FETCHWISE_LOG_TEXTS=full"
        )
    if log is None:
        yield Learning(Sampler())
        return
    if not (learning.explore_share or learning.shadow_share):
        yield Learning(Sampler(solicit=learning.solicit_share))
        return
    budget = Budget(learning.budget)
    shadows = ShadowRunner(
        learning.shadow_share,
        budget,
        reader=reader,
        embedder=embedder,
        retriever=retriever,
        identity=identity,
        stats=stats,
        on_done=log.observe,
        on_end=on_shadow,
    )
    sampler = Sampler(
        explore=learning.explore_share, solicit=learning.solicit_share, shadow=shadows.draws, budget=budget
    )
    shadows.start()
    try:
        yield Learning(sampler, budget, shadows if learning.shadow_share else None)
    finally:
        await shadows.close()
