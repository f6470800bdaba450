"""Background work at fixed intervals: one failure does not stop it, and leaving the context cancels all of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, Counter

from app.errors import FetchwiseError

logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


class Periodic:
    """Runs named work again and again while it is open. It logs a failure once until the work succeeds again."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures = Counter(
            "fetchwise_background_failures", "Failed runs of background work.", ("task",), registry=registry
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def every(self, seconds: float, name: str, work: Work) -> None:
        """Run the work once before returning, then again `seconds` after each run has ended."""
        self._failures.labels(name)
        failing = await self._run(seconds, name, work, failing=False)
        self._tasks.append(asyncio.create_task(self._repeat(seconds, name, work, failing=failing), name=name))

    def failures_of(self, name: str) -> Callable[[], None]:
        """Count the failures of work that runs elsewhere, under this name: call it for each."""
        return self._failures.labels(name).inc

    async def _repeat(self, seconds: float, name: str, work: Work, *, failing: bool) -> None:
        while True:
            await asyncio.sleep(seconds)
            failing = await self._run(seconds, name, work, failing=failing)

    async def _run(self, seconds: float, name: str, work: Work, *, failing: bool) -> bool:
        """Run the work once; returns whether it failed."""
        try:
            await work()
        except Exception as error:
            self._failures.labels(name).inc()
            if not failing:
                # An error of our own says what is wrong; anything else is a bug, and needs its trace.
                trace = None if isinstance(error, FetchwiseError) else error
                logger.error("%s failed, next try in %g s: %s", name, seconds, error, exc_info=trace)  # noqa: TRY400
            return True
        if failing:
            logger.info("%s works again", name)
        return False
