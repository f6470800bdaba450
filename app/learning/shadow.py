"""Shadow runs: an idle gateway answers some questions again at every k, so that a refit sees all outcomes.

A drawn question waits until the gateway is idle. A new question cancels the run, which starts again later. So the
sample of questions is random, unless the queue overflows.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable

from app.answer.full_run import full_run
from app.core.artifact import Identity
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.core.policy import Retrieval
from app.core.question import Question
from app.core.record import DecisionRecord, FullRun
from app.errors import FetchwiseError, UpstreamUnavailable
from app.learning.sampling import Budget
from app.ports import Embedder, Reader, Retriever

logger = logging.getLogger(__name__)

WAITING = 64
IDLE_S = 0.25
# Turns of a conversation with a question that stands alone.
_ALONE = ("as_asked", "rewritten")


class ShadowRunner:
    """Draws questions, and runs them one at a time while the gateway is idle."""

    def __init__(
        self,
        share: float,
        budget: Budget,
        *,
        reader: Reader,
        embedder: Embedder,
        retriever: Retriever,
        identity: Callable[[], Identity | None],
        stats: Callable[[], CorpusStats] = lambda: NO_STATS,
        on_done: Callable[[FullRun], None],
        on_end: Callable[[str], None] = lambda _: None,
        rng: random.Random | None = None,
    ) -> None:
        self._share = share
        self._budget = budget
        self._reader = reader
        self._embedder = embedder
        self._retriever = retriever
        self._identity = identity
        self._stats = stats
        self._on_done = on_done
        self._on_end = on_end
        self._rng = rng or random.Random()  # noqa: S311 - drawing samples, not secrets
        self._waiting: deque[tuple[str, str]] = deque()
        self._wanted = asyncio.Event()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._run: asyncio.Task[FullRun] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start waiting for idle moments."""
        if self._share > 0.0:
            self._task = asyncio.create_task(self._work(), name="shadow runs")

    async def close(self) -> None:
        """Stop, and drop what is queued; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def began(self) -> None:
        """A question arrived: cancel the current run."""
        self._in_flight += 1
        self._idle.clear()
        if self._run is not None:
            self._run.cancel()

    def ended(self) -> None:
        """A question was answered."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()

    def draws(self, question: Question) -> bool:
        """Draw at random whether to run a question; only questions that an outcome table could contain."""
        ask = question.options
        found = question.standalone.how if question.standalone else "as_asked"
        full = question.writing is not None and question.writing.kind == "full"
        if self._task is None or full or ask.retrieval is not Retrieval.AUTO or ask.filtered or found not in _ALONE:
            return False
        identity = self._identity()
        if identity is None:
            return False
        if (question.collection, question.max_tokens) != (identity.collection, identity.max_tokens):
            return False
        return self._rng.random() < self._share and self._budget.left

    def observe(self, record: DecisionRecord) -> None:
        """Queue an answered question if it was drawn."""
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
            # A short pause between two questions of one client is not idle time.
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
                # If the reader changed during the run, the answers are from two systems.
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
            raise UpstreamUnavailable("reader", "it has not been identified yet")
        answers = await full_run(
            text,
            identity.ks,
            reader=self._reader,
            embedder=self._embedder,
            retriever=self._retriever,
            identity=identity,
            clock=time.perf_counter,
            stats=self._stats(),
        )
        return FullRun(identifier, identity, answers.outcomes, answers.evidence)
