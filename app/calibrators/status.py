"""Watches the calibrator folder and the running system, and decides which artifact may serve."""

import logging
from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from app.calibrators.store import ArtifactStore
from app.core.artifact import Artifact, CalibratorStatus, Identity, mismatches
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.economics.breakeven import passages
from app.errors import ArtifactError, DataError, FetchwiseError, StorageError
from app.ports import Documents, Embedder, Reader, update
from app.threads import in_storage_thread

logger = logging.getLogger(__name__)

# How many earlier versions to try if the one that CURRENT names may not serve.
_STEPS_BACK = 3
_REVOKED = "revoked.json"
_REASONS = TypeAdapter(dict[str, str])


class Revocations:
    """The revoked versions, with reasons. `documents` shares them between gateways and keeps them over restarts."""

    def __init__(self, documents: Documents | None = None) -> None:
        self._documents = documents
        self._why: dict[str, str] = {}
        # None until the first try to read the document; then whether it could be read since the start.
        self._read: bool | None = None

    def why(self, version: str) -> str | None:
        """Why this version is revoked; None if it is not. Until the document can be read, every version may be."""
        return self._why.get(version) or ("the revocations cannot be read yet" if self._read is False else None)

    def refresh(self) -> None:
        """Read what other gateways revoked; DataError if the document is invalid. Blocks."""
        if self._documents is None:
            return
        try:
            found = self._documents.read(_REVOKED)
        except StorageError:
            self._read = self._read or False
            raise
        self._read = True
        if found is None:
            return
        try:
            self._why = _REASONS.validate_json(found.content) | self._why
        except ValidationError as error:
            where = self._documents.where(_REVOKED)
            raise DataError(f"{where} is not a table of revocations, the next one replaces it: {error}") from error

    def add(self, version: str, why: str) -> None:
        """Revoke a version, even if that cannot be stored. Blocks."""
        self._why = self._why | {version: why}
        if self._documents is None:
            return
        try:
            update(self._documents, _REVOKED, self._merged)
        except StorageError as error:
            logger.warning("%s: after a restart, %s may no longer be revoked", error, version)

    def _merged(self, stored: bytes | None) -> bytes:
        try:
            self._why = (_REASONS.validate_json(stored) if stored else {}) | self._why
        except ValidationError:
            logger.warning("the stored revocations could not be read and are replaced")
        return _REASONS.dump_json(self._why, indent=1) + b"\n"


class LiveCalibrator:
    """Serves the artifact that CURRENT names. An invalid or mismatching one does not replace one that matches."""

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
        revocations: Revocations | None = None,
    ) -> None:
        self.store = store
        self._reader = reader
        self._embedder = embedder
        self._collection = collection
        self._max_tokens = max_tokens
        self._ks = ks
        self._ungated = f"every question reads {passages(ks[-1])}"
        self._allow_uncertified = allow_uncertified
        self._revocations = revocations or Revocations()
        self._artifact: Artifact | None = None
        # By digest: of the artifact that serves, and of the one before, which a question may still use.
        self._stats: dict[str | None, CorpusStats] = {None: NO_STATS}
        self._refusal = ""
        self._running: Identity | None = None
        self._compared: tuple[Identity | None, Identity | None, bool] = (None, None, False)
        self._unidentified = "the reader has not been identified yet"
        self._logged: CalibratorStatus | None = None

    def matching(self, *, collection: str, max_tokens: int) -> Artifact | None:
        """The served artifact, if it was fitted on exactly the system that answers this question."""
        artifact = self._artifact
        if artifact is None or artifact.identity is None or not self._fits(artifact.identity):
            return None
        fitted = artifact.identity
        return artifact if (fitted.collection, fitted.max_tokens) == (collection, max_tokens) else None

    def _fits(self, fitted: Identity) -> bool:
        """Whether the running system matches, apart from what a question may choose; compared once."""
        running = self._running
        if running is None:
            return False
        if self._compared[0] is not fitted or self._compared[1] is not running:
            alike = replace(running, collection=fitted.collection, max_tokens=fitted.max_tokens) == fitted
            self._compared = (fitted, running, alike)
        return self._compared[2]

    @property
    def running(self) -> Identity | None:
        """The identity of the running system; None until the reader has been identified."""
        return self._running

    @property
    def serving(self) -> Artifact | None:
        """The loaded artifact, whether or not it matches the running system."""
        return self._artifact

    @property
    def stats(self) -> CorpusStats:
        """The corpus statistics of the loaded artifact."""
        return NO_STATS if self._artifact is None else self.stats_of(self._artifact)

    def stats_of(self, artifact: Artifact) -> CorpusStats:
        """The corpus statistics of an artifact that `matching` or `serving` returned."""
        return self._stats[artifact.stats]

    def mismatch(self, artifact: Artifact) -> str:
        """How an artifact differs from the running system; empty if it matches."""
        if self._running is None:
            return self._unidentified
        if artifact.identity is None:
            return f"{artifact.version} was fitted on a table without an identity"
        differing = mismatches(artifact.identity, self._running)
        return f"{artifact.version} does not match the running system: {'; '.join(differing)}" if differing else ""

    def problem(self, artifact: Artifact) -> str:
        """Why a valid artifact may not decide here; empty if it may."""
        revoked = self._revocations.why(artifact.version)
        return f"revoked: {revoked}" if revoked else self.mismatch(artifact)

    def revoked(self, version: str) -> str | None:
        """Why a version is revoked; None if it is not."""
        return self._revocations.why(version)

    async def revoke(self, version: str, why: str) -> None:
        """Revoke a version: its thresholds no longer decide, its fallback k is read until another version serves."""
        if self._revocations.why(version) is None:
            await in_storage_thread(self._revocations.add, version, why)
            self._log_changes()

    def status(self) -> CalibratorStatus:
        """Whether a calibrator decides, and if not, why."""
        artifact = self._artifact
        if artifact is None:
            problem = self._refusal or f"no calibrator in {self.store.where}: {self._ungated}"
            return CalibratorStatus(None, certified=False, matches=False, problem=problem, fallback_k=self._ks[-1])
        certified = artifact.certified
        mismatch, revoked = self.mismatch(artifact), self._revocations.why(artifact.version)
        problem = mismatch
        if not mismatch and revoked is not None:
            problem = f"{artifact.version} is revoked, its fallback k is read until another version serves: {revoked}"
        elif not problem and not self._refusal and not certified and not self._allow_uncertified:
            problem = f"{artifact.version} has no certificate: its fallback k is read"
        return CalibratorStatus(
            artifact.version,
            certified=certified and not mismatch and revoked is None,
            matches=not mismatch,
            problem="; ".join(said for said in (problem, self._refusal) if said),
            fallback_k=self._ks[-1] if mismatch else artifact.fallback_k,
            revoked=not mismatch and revoked is not None,
        )

    async def refresh(self) -> None:
        """Load a new CURRENT and new revocations; identify the reader if that has not succeeded yet."""
        if self._running is None:
            await self.identify()
        await in_storage_thread(self._reload)
        try:
            await in_storage_thread(self._revocations.refresh)
        finally:
            self._log_changes()

    def _log_changes(self) -> None:
        status = self.status()
        if status != self._logged:
            self._logged = status
            if status.problem:
                logger.warning("calibrator: %s", status.problem)
            else:
                logger.info("calibrator: serving %s", status.version)

    async def identify(self) -> None:
        """Ask the reader which model it serves, so that a model swapped behind its URL is noticed."""
        try:
            reader = await self._reader.identify()
        except FetchwiseError as error:
            # Keep the last known identity: a reader that is down answers no questions meanwhile.
            self._unidentified = f"the reader could not be identified: {error}"
            return
        self._running = replace(
            reader,
            embedder=self._embedder.name,
            collection=self._collection,
            max_tokens=self._max_tokens,
            ks=self._ks,
        )

    def _reload(self) -> None:
        held = self._artifact
        try:
            version = self.store.current()
            if version is None or (held is not None and version == held.version):
                self._refusal = ""
                return
            # Try again at every poll: a rejected file may be copied later than CURRENT, or be repaired, and the running
            # system may change to match it.
            named = self._load(version)
            problem = self.mismatch(named)
        except ArtifactError as error:
            named, problem = None, str(error)
        if problem and held is None:
            held = self._one_served_before()
        # One assignment: a request sees the old artifact or the new one.
        if named is not None and not (problem and held is not None and not self.mismatch(held)):
            self._artifact, self._refusal = named, ""
            return
        self._artifact = held
        serving = "the previous one keeps serving" if held else self._ungated
        self._refusal = f"rejected a calibrator, {serving}: {problem}"

    def _load(self, version: str) -> Artifact:
        """Load an artifact together with its statistics, of which the served ones are kept."""
        artifact, held = self.store.load(version), self._artifact
        if artifact.stats not in self._stats:
            kept = {digest: self._stats[digest] for digest in (None, held.stats if held else None)}
            self._stats = kept | {artifact.stats: self.store.load_stats(artifact)}
        return artifact

    def _one_served_before(self) -> Artifact | None:
        """Load what a longer-running process would still serve, so that all workers serve the same."""
        try:
            before = self.store.served_before()[:_STEPS_BACK]
        except ArtifactError as error:
            logger.debug("calibrator: the history cannot be used: %s", error)
            return None
        for version in before:
            try:
                artifact = self._load(version)
            except ArtifactError as error:
                # The status reports the file that CURRENT names; this is only a replacement.
                logger.debug("calibrator: %s cannot replace it: %s", version, error)
                continue
            if not self.mismatch(artifact):
                return artifact
        return None
