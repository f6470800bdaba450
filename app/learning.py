"""Opens what keeps the log honest: random actions and shadow runs, under one budget."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.adapters.gatekeeper import ArtifactGatekeeper
from app.errors import ConfigurationError
from app.explore import Budget, DiceExplorer
from app.observers.decision_log import DecisionLog
from app.parts import Parts
from app.settings import Settings
from app.shadow import ShadowRunner


@dataclass(frozen=True, slots=True)
class Learning:
    """What is switched on; None where it is not."""

    # Counts what learning costs, as an observer of every decision.
    budget: Budget | None = None
    explorer: DiceExplorer | None = None
    shadows: ShadowRunner | None = None


@asynccontextmanager
async def open_learning(
    settings: Settings,
    parts: Parts,
    gatekeeper: ArtifactGatekeeper,
    log: DecisionLog | None,
    *,
    on_shadow: Callable[[str], None],
) -> AsyncIterator[Learning]:
    """Draw as the settings say; without a log nothing could be learned, so nothing is drawn."""
    if settings.shadow_share and settings.log_texts == "hash":
        raise ConfigurationError(
            "FETCHWISE_SHADOW_SHARE needs the texts, or nobody could ever judge a shadow run: set it to 0, or "
            "FETCHWISE_LOG_TEXTS=full"
        )
    if log is None or not (settings.explore_share or settings.shadow_share):
        yield Learning()
        return
    budget = Budget(settings.learning_budget)
    shadows = ShadowRunner(
        settings.shadow_share,
        budget,
        reader=parts.reader,
        embedder=parts.embedder,
        retriever=parts.vectors,
        identity=lambda: gatekeeper.running,
        on_done=log.observe,
        on_end=on_shadow,
    )
    shadows.start()
    try:
        yield Learning(
            budget,
            DiceExplorer(settings.explore_share, budget) if settings.explore_share else None,
            shadows if settings.shadow_share else None,
        )
    finally:
        await shadows.close()
