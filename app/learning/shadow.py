"""Shadow runs: some questions are asked again at every k, when nobody waits, so that a refit sees all outcomes.

A drawn question waits for an idle moment. Whoever arrives in mid-run is served first: the run is cancelled upstream
and tried again later. So which questions are shadowed depends on the dice alone, unless the queue overflows.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable

from app.answer.full_run import full_run
from app.core.artifact import Identity
from app.core.policy import Retrieval
from app.core.question import Question
from app.core.record import DecisionRecord, FullRun
from app.errors import FetchwiseError, UpstreamUnavailable
from app.learning.sampling import Budget
from app.ports import Clock, Embedder, Reader, Retriever

logger = logging.getLogger(__name__)

WAITING = 64
IDLE_S = 0.25


class ShadowRunner:
    """Draws questions as they are answered, and runs them one at a time while the gateway is idle."""

    def __init__(
        self,
        share: float,
        budget: Budget,
        *,
        reader: Reader,
        embedder: Embedder,
        retriever: Retriever,
        identity: Callable[[], Identity | None],
        on_done: Callable[[FullRun], None],
        on_end: Callable[[str], None] = lambda _: None,
        rng: random.Random | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._share = share
        self._budget = budget
        self._reader = reader
        self._embedder = embedder
        self._retriever = retriever
        self._identity = identity
        self._on_done = on_done
        self._on_end = on_end
        self._rng = rng or random.Random()  # noqa: S311 - drawing samples, not secrets
        self._clock = clock
        self._waiting: deque[tuple[str, str]] = deque()
        self._wanted = asyncio.Event()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._run: asyncio.Task[FullRun] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch for idle moments."""
        if self._share > 0.0:
            self._task = asyncio.create_task(self._work(), name="shadow runs")

    async def close(self) -> None:
        """Give up what waits; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def began(self) -> None:
        """A question arrived: it goes first."""
        self._in_flight += 1
        self._idle.clear()
        if self._run is not None:
            self._run.cancel()

    def ended(self) -> None:
        """It has been answered."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()

    def draws(self, question: Question) -> bool:
        """Throw the dice for a question that an outcome table could hold: asked of the system as it is fitted."""
        ask = question.options
        if self._task is None or question.earlier or ask.retrieval is not Retrieval.AUTO or ask.filtered:
            return False
        identity = self._identity()
        if identity is None:
            return False
        if (question.collection, question.max_tokens) != (identity.collection, identity.max_tokens):
            return False
        return self._rng.random() < self._share and self._budget.left

    def observe(self, record: DecisionRecord) -> None:
        """Put an answered question on the list, if it was drawn."""
        if not record.policy.sampled.shadow:
            return
        if len(self._waiting) >= WAITING:
            self._on_end("lost")
            return
        self._waiting.append((record.question.id, record.question.text))
        self._wanted.set()

    async def _work(self) -> None:
        while True:
            await self._wanted.wait()
            # A pause between two questions of one client is no idle moment.
            await asyncio.sleep(IDLE_S)
            while not self._idle.is_set():
                await self._idle.wait()
            if not self._waiting:
                self._wanted.clear()
                continue
            identifier, text = self._waiting[0]
            self._run = asyncio.create_task(self._ask_all(identifier, text))
            try:
                shadow = await self._run
            except asyncio.CancelledError:
                if self._task is None or asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    self._run.cancel()
                    raise
                continue
            except FetchwiseError as error:
                logger.info("a shadow run failed: %s", error)
                self._on_end("lost")
            else:
                self._budget.spend(shadow.tokens)
                # A reader that was swapped in mid-run answered one part of it and not the other.
                if shadow.identity == self._identity():
                    self._on_done(shadow)
                    self._on_end("completed")
                else:
                    self._on_end("lost")
            finally:
                self._run = None
            self._waiting.popleft()

    async def _ask_all(self, identifier: str, text: str) -> FullRun:
        identity = self._identity()
        if identity is None:
            raise UpstreamUnavailable("reader", "it has not been identified, so nobody could tell what answered")
        _, outcomes = await full_run(
            text,
            identity.ks,
            reader=self._reader,
            embedder=self._embedder,
            retriever=self._retriever,
            identity=identity,
            clock=self._clock,
        )
        return FullRun(identifier, identity, outcomes)
