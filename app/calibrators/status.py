"""Watches the calibrator folder and the running system, and says what may decide: whole artifacts or none."""

import asyncio
import logging
from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from app.calibrators.store import ArtifactStore
from app.core.artifact import Artifact, CalibratorStatus, Identity, mismatches
from app.economics.breakeven import passages
from app.errors import ArtifactError, DataError, DocumentError, FetchwiseError
from app.ports import Documents, Embedder, Reader, update

logger = logging.getLogger(__name__)

# How far back to look for an artifact that matches, where the one that CURRENT names may not serve.
_STEPS_BACK = 3
_REVOKED = "revoked.json"
_REASONS = TypeAdapter(dict[str, str])


class Revocations:
    """Which versions are revoked, and why; with `documents`, every gateway that shares them knows, and each restart."""

    def __init__(self, documents: Documents | None = None) -> None:
        self._documents = documents
        self._why: dict[str, str] = {}

    def why(self, version: str) -> str | None:
        """Why this version is revoked; None where it is not."""
        return self._why.get(version)

    def refresh(self) -> None:
        """Take up what others revoked; DataError where the document cannot be used. Blocks."""
        found = self._documents.read(_REVOKED) if self._documents else None
        if self._documents is None or found is None:
            return
        try:
            self._why = _REASONS.validate_json(found.content) | self._why
        except ValidationError as error:
            where = self._documents.where(_REVOKED)
            raise DataError(f"{where} is not a table of revocations, the next one replaces it: {error}") from error

    def add(self, version: str, why: str) -> None:
        """Revoke a version, also where that cannot be stored. Blocks."""
        self._why = self._why | {version: why}
        if self._documents is None:
            return
        try:
            update(self._documents, _REVOKED, self._merged)
        except DocumentError as error:
            logger.warning("%s: a restart may forget that %s is revoked", error, version)

    def _merged(self, stored: bytes | None) -> bytes:
        try:
            self._why = (_REASONS.validate_json(stored) if stored else {}) | self._why
        except ValidationError:
            logger.warning("the stored revocations could not be read, and are replaced")
        return _REASONS.dump_json(self._why, indent=1) + b"\n"


class LiveCalibrator:
    """Serves the artifact that CURRENT names; one that is bad, or does not match what runs, replaces none that does."""

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
        self._store = store
        self._reader = reader
        self._embedder = embedder
        self._collection = collection
        self._max_tokens = max_tokens
        self._ks = ks
        self._ungated = f"every question reads {passages(ks[-1])}"
        self._allow_uncertified = allow_uncertified
        self._revocations = revocations or Revocations()
        self._artifact: Artifact | None = None
        self._refusal = ""
        self._running: Identity | None = None
        self._compared: tuple[Identity | None, Identity | None, bool] = (None, None, False)
        self._unidentified = "the reader has not been identified yet"
        self._logged: CalibratorStatus | None = None

    def matching(self, *, collection: str, max_tokens: int) -> Artifact | None:
        """The artifact in force, if it was fitted on exactly what would answer this question."""
        artifact = self._artifact
        if artifact is None or artifact.identity is None or not self._fits(artifact.identity):
            return None
        fitted = artifact.identity
        return artifact if (fitted.collection, fitted.max_tokens) == (collection, max_tokens) else None

    def _fits(self, fitted: Identity) -> bool:
        """Whether what runs is what was fitted on, but for what a question may choose; compared once."""
        running = self._running
        if running is None:
            return False
        if self._compared[0] is not fitted or self._compared[1] is not running:
            alike = replace(running, collection=fitted.collection, max_tokens=fitted.max_tokens) == fitted
            self._compared = (fitted, running, alike)
        return self._compared[2]

    @property
    def running(self) -> Identity | None:
        """What runs, as it was last seen; None where the reader has not said yet."""
        return self._running

    @property
    def serving(self) -> Artifact | None:
        """The artifact in force, whether or not it matches what runs."""
        return self._artifact

    def mismatch(self, artifact: Artifact) -> str:
        """How an artifact differs from what runs; empty where it matches."""
        if self._running is None:
            return self._unidentified
        if artifact.identity is None:
            return f"{artifact.version} was fitted on a table without an identity"
        differing = mismatches(artifact.identity, self._running)
        return f"{artifact.version} does not match what runs: {'; '.join(differing)}" if differing else ""

    def problem(self, artifact: Artifact) -> str:
        """Why an artifact that loads may not decide here; empty where it may."""
        revoked = self._revocations.why(artifact.version)
        return f"revoked: {revoked}" if revoked else self.mismatch(artifact)

    def revoked(self, version: str) -> str | None:
        """Why a version is revoked; None where it is not."""
        return self._revocations.why(version)

    async def revoke(self, version: str, why: str) -> None:
        """Let no threshold of this version decide any more: its fallback action serves until another is in force."""
        if self._revocations.why(version) is None:
            await asyncio.to_thread(self._revocations.add, version, why)
            self._log_changes()

    def status(self) -> CalibratorStatus:
        """Why questions are, or are not, decided by a calibrator."""
        artifact = self._artifact
        if artifact is None:
            problem = self._refusal or f"no calibrator in {self._store.where}: {self._ungated}"
            return CalibratorStatus(None, certified=False, matches=False, problem=problem, fallback_k=self._ks[-1])
        certified = artifact.certified
        mismatch, revoked = self.mismatch(artifact), self._revocations.why(artifact.version)
        problem = mismatch
        if not mismatch and revoked is not None:
            problem = f"{artifact.version} is revoked, its fallback action serves until another is in force: {revoked}"
        elif not problem and not self._refusal and not certified and not self._allow_uncertified:
            problem = f"{artifact.version} carries no certificate: its fallback action serves"
        return CalibratorStatus(
            artifact.version,
            certified=certified and not mismatch and revoked is None,
            matches=not mismatch,
            problem="; ".join(said for said in (problem, self._refusal) if said),
            fallback_k=self._ks[-1] if mismatch else artifact.fallback_k,
            revoked=not mismatch and revoked is not None,
        )

    async def refresh(self) -> None:
        """Take up a new CURRENT and new revocations; a reader that has never been identified is asked again."""
        if self._running is None:
            await self.identify()
        await asyncio.to_thread(self._reload)
        try:
            await asyncio.to_thread(self._revocations.refresh)
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
            # The last known identity stands: a reader that is down now answers nothing meanwhile.
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
            version = self._store.current()
            if version is None or (held is not None and version == held.version):
                self._refusal = ""
                return
            # Tried again at every poll: a refused file may only have been copied after CURRENT, or be restored in
            # place, and what runs may become what it was fitted on.
            named = self._store.load(version)
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
        serving = "the one before keeps serving" if held else self._ungated
        self._refusal = f"refused a calibrator, {serving}: {problem}"

    def _one_served_before(self) -> Artifact | None:
        """What a process that did not start just now would still hold: all workers serve the same."""
        try:
            before = self._store.served_before()[:_STEPS_BACK]
        except ArtifactError as error:
            logger.debug("calibrator: the history is of no use: %s", error)
            return None
        for version in before:
            try:
                artifact = self._store.load(version)
            except ArtifactError as error:
                # The status reports the file that CURRENT names; this one nobody asked for.
                logger.debug("calibrator: %s cannot stand in: %s", version, error)
                continue
            if not self.mismatch(artifact):
                return artifact
        return None
