"""Watches the calibrator folder and the running system, and says what may decide: whole artifacts or none."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from app.adapters.artifact_store import ArtifactStore
from app.decision.artifact import Artifact, Identity, mismatches
from app.decision.policy import Gate, Prices
from app.errors import ArtifactError, FetchwiseError
from app.ports import Embedder, Reader

logger = logging.getLogger(__name__)

POLL_S = 1.0
# A model swapped behind a URL is noticed after this many polls.
IDENTIFY_EVERY = 30


@dataclass(frozen=True, slots=True)
class Standing:
    """What `/readyz`, the log and a metric say about the calibrator; `problem` is empty where it serves."""

    version: str | None
    certified: bool
    # Whether it was fitted on what runs: else it decides nothing.
    matches: bool
    problem: str


class ArtifactGatekeeper:
    """Serves the artifact that CURRENT names, if it matches the running identity; keeps the old one if it is bad."""

    def __init__(
        self,
        store: ArtifactStore,
        reader: Reader,
        embedder: Embedder,
        *,
        collection: str,
        max_tokens: int,
        ks: tuple[int, ...],
        allow_uncertified: bool,
        prices: Prices,
        on_change: Callable[[Standing], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._reader = reader
        self._embedder = embedder
        self._collection = collection
        self._max_tokens = max_tokens
        self._ks = ks
        self._allow_uncertified = allow_uncertified
        self._prices = prices
        self._artifact: Artifact | None = None
        self._refusal = ""
        self._running: Identity | None = None
        self._unidentified = "the reader has not been identified yet"
        self._task: asyncio.Task[None] | None = None
        self._on_change = on_change
        self._said: Standing | None = None

    async def start(self) -> None:
        """Look once, then keep watching."""
        await self.refresh(identify=True)
        self._task = asyncio.create_task(self._watch(), name="watch calibrators")

    async def close(self) -> None:
        """Stop watching; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def gate(self, *, collection: str, max_tokens: int) -> Gate:
        """The gate for one question: open only if the artifact was fitted on exactly what would answer it."""
        artifact, running = self._artifact, self._running
        matching = None
        if artifact is not None and artifact.identity is not None and running is not None:
            asked = replace(running, collection=collection, max_tokens=max_tokens)
            matching = artifact if artifact.identity == asked else None
        return Gate(matching, allow_uncertified=self._allow_uncertified, prices=self._prices)

    def standing(self) -> Standing:
        """Why questions are, or are not, decided by a calibrator."""
        artifact = self._artifact
        if artifact is None:
            problem = self._refusal or f"no calibrator in {self._store.folder}: every question reads five passages"
            return Standing(None, certified=False, matches=False, problem=problem)
        fit = artifact.policies.get("graded")
        certified = fit is not None and fit.certificate is not None
        mismatch = self._mismatch(artifact)
        if mismatch:
            problem = f"{mismatch}; {self._refusal}" if self._refusal else mismatch
            return Standing(artifact.version, certified=False, matches=False, problem=problem)
        problem = self._refusal
        if not certified and not self._allow_uncertified:
            problem = problem or f"{artifact.version} carries no certificate: its fallback action serves"
        return Standing(artifact.version, certified, matches=True, problem=problem)

    def _mismatch(self, artifact: Artifact) -> str:
        if self._running is None:
            return self._unidentified
        if artifact.identity is None:
            return f"{artifact.version} was fitted on a table without an identity"
        differing = mismatches(artifact.identity, self._running)
        return f"{artifact.version} does not match what runs: {'; '.join(differing)}" if differing else ""

    async def refresh(self, *, identify: bool) -> None:
        """Take up a new CURRENT, and a new identity where asked to; nothing that fails here fails a request."""
        if identify or self._running is None:
            await self._identify()
        await asyncio.to_thread(self._reload)
        standing = self.standing()
        if standing != self._said:
            self._said = standing
            self._on_change(standing)
            if standing.problem:
                logger.warning("calibrator: %s", standing.problem)
            else:
                logger.info("calibrator: serving %s", standing.version)

    async def _identify(self) -> None:
        try:
            reader = await self._reader.identify()
        except FetchwiseError as error:
            # The last known identity stands: a reader that is down now answers nothing meanwhile.
            self._unidentified = f"the reader could not be identified: {error}"
            return
        self._running = reader.within(
            embedder=self._embedder.name, collection=self._collection, max_tokens=self._max_tokens, ks=self._ks
        )

    def _reload(self) -> None:
        try:
            version = self._store.current()
            if version is None or (self._artifact is not None and version == self._artifact.version):
                self._refusal = ""
                return
            # One assignment: a request sees the old artifact or the new one. A refused one is tried again at the
            # next poll: it may only have been copied after CURRENT, or be restored in place.
            self._artifact = self._store.load(version)
            self._refusal = ""
        except ArtifactError as error:
            serving = "the one before keeps serving" if self._artifact else "every question reads five passages"
            self._refusal = f"refused a calibrator, {serving}: {error}"

    async def _watch(self) -> None:
        polls = 0
        while True:
            await asyncio.sleep(POLL_S)
            polls += 1
            try:
                await self.refresh(identify=polls % IDENTIFY_EVERY == 0)
            except Exception:
                logger.exception("looking for a new calibrator failed; trying again")
