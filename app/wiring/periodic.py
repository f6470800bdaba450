"""Background work at fixed intervals: a failure does not stop it, and leaving the context ends all of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, Counter

from app.errors import FetchwiseError

logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]
# Time for work that is running to end when the context is left: a thread cannot be cancelled.
GRACE_S = 1.0


class Periodic:
    """Runs named work again and again while it is open. It logs a failure once until the work succeeds again."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures = Counter(
            "fetchwise_background_failures", "Failed runs of background work.", ("task",), registry=registry
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        if self._tasks:
            _, running = await asyncio.wait(self._tasks, timeout=GRACE_S)
            for task in running:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def every(self, seconds: float, name: str, work: Work, *, at_once: bool = True) -> None:
        """Run the work once before returning if `at_once`, then again `seconds` after each run has ended."""
        self._failures.labels(name)
        failing = at_once and await self._run(seconds, name, work, failing=False)
        self._tasks.append(asyncio.create_task(self._repeat(seconds, name, work, failing=failing), name=name))

    def failures_of(self, name: str) -> Callable[[], None]:
        """Count the failures of work that runs elsewhere, under this name: call it for each."""
        return self._failures.labels(name).inc

    async def _repeat(self, seconds: float, name: str, work: Work, *, failing: bool) -> None:
        while not await self._closed_within(seconds):
            failing = await self._run(seconds, name, work, failing=failing)

    async def _closed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._closing.wait()
        except TimeoutError:
            return False

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
