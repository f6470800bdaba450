"""Calibrator artifacts as documents: `<version>.json`, immutable, and CURRENT, whose first line names the served one.

CURRENT has a line for every change, newest first: `<version> <time> <command>`. So the served version and the history
change in one write. A line with a version alone was written by hand. Several versions share the corpus statistics that
they name: `stats-<digest>.json`, immutable as well.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, cast

from pydantic import TypeAdapter, ValidationError

from app.core.artifact import SCHEMA, Artifact, checksum
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.errors import ArtifactChecksumError, ArtifactError, ArtifactSchemaError, DocumentConflict, StorageError
from app.ports import update
from app.storage.documents import open_documents

_ARTIFACT = TypeAdapter(Artifact)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LINE = re.compile(rf"({_VERSION.pattern})(?: (\S+) (refit|promote|rollback))?")
_STATS = re.compile(r"stats-[0-9a-f]{16}\.json")
_CURRENT = "CURRENT"
By = Literal["refit", "promote", "rollback", "hand"]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of CURRENT: when, to which version, from which, and by which command."""

    at: str
    version: str
    before: str | None
    by: By


class ArtifactStore:
    """The artifacts in one folder, or in the database with this URL."""

    def __init__(self, where: str | Path) -> None:
        self._documents = open_documents(where, "calibrators", setting="FETCHWISE_CALIBRATORS")

    @property
    def where(self) -> str:
        """The folder or the database, for messages."""
        return self._documents.where("")

    def current(self) -> str | None:
        """The version that CURRENT names, or None if nothing was published."""
        content = self._read(_CURRENT)
        if content is None:
            return None
        version = _named(content)
        if version is None:
            where = self._documents.where(_CURRENT)
            raise ArtifactSchemaError(f"{where} does not name a version: {content.decode(errors='replace')[:100]!r}")
        return version

    def versions(self) -> list[str]:
        """Every published version, oldest first by name."""
        return _versions(self._names())

    def load(self, version: str) -> Artifact:
        """Read and verify one artifact; ArtifactError if anything is wrong with it."""
        name = _name(version)
        content, where = self._read(name), self._documents.where(name)
        if content is None:
            raise ArtifactError(f"{where} does not exist: it was deleted, or never published here")
        artifact = parse(content, name=where)
        if artifact.version != version:
            raise ArtifactSchemaError(f"{where} holds version {artifact.version!r}: files must not be renamed")
        return artifact

    def load_stats(self, artifact: Artifact) -> CorpusStats:
        """The corpus statistics that an artifact names; ArtifactError if they are missing or were changed."""
        if artifact.stats is None:
            return NO_STATS
        name = _stats_name(artifact.stats)
        content, where = self._read(name), self._documents.where(name)
        if content is None:
            raise ArtifactError(_without_stats(artifact, where))
        stats = CorpusStats.from_bytes(content)
        if stats.digest != artifact.stats:
            raise ArtifactChecksumError(f"{where} was changed after it was published: restore it or refit")
        return stats

    def newest(self, most: int) -> list[tuple[str, Artifact | ArtifactError]]:
        """The newest versions by name, newest first: each one's artifact, or why it cannot be served."""
        found: list[tuple[str, Artifact | ArtifactError]] = []
        names = self._names()
        for version in _versions(names)[: -most - 1 : -1]:
            try:
                artifact = self.load(version)
                # Only whether they are there: reading the statistics of every version would take long.
                if artifact.stats is not None and (stats := _stats_name(artifact.stats)) not in names:
                    raise ArtifactError(_without_stats(artifact, self._documents.where(stats)))  # noqa: TRY301
                found.append((version, artifact))
            except ArtifactError as error:
                found.append((version, error))
        return found

    def publish(self, artifact: Artifact, stats: CorpusStats = NO_STATS) -> str:
        """Store the artifact and return where it is; the same version twice changes nothing.

        `stats` are the corpus statistics that it names. They are written first, so that no artifact lacks them.
        """
        name = _name(artifact.version)
        if artifact.stats is not None:
            if stats.digest != artifact.stats:
                raise ArtifactError(f"{artifact.version} names the corpus statistics {artifact.stats}, not these")
            self._write(_stats_name(artifact.stats), stats.to_bytes())
        self._write(name, serialise(artifact))
        return self._documents.where(name)

    def refit_number(self, digest: str) -> int:
        """The number of a refit with this digest of its labels and options: that of the same one, or the next.

        Every published version counts, promoted or not. One that cannot be read counts as a refit.
        """
        versions, numbers = self.versions(), [0]
        for version in versions:
            with suppress(ValueError, TypeError, KeyError):
                window = json.loads(self._read(_name(version)) or b"")["data_window"]
                if window["digest"] == digest:
                    return int(window["refit"])
                numbers.append(int(window["refit"]))
        return max(len(versions), *numbers) + 1

    def promote(self, version: str, *, by: By = "promote") -> None:
        """Make CURRENT name this version, after checking its files; no change if it does already."""
        self.load_stats(self.load(version))
        self._change(lambda _: version, by)

    def rollback(self) -> str:
        """Make CURRENT name the version that was served before; done again, the one before that."""

        def back(content: bytes) -> str:
            before = _served_before(content)
            if not before:
                where = self._documents.where(_CURRENT)
                raise ArtifactError(f"{where} has no earlier version: promote one")
            self.load_stats(self.load(before[0]))
            return before[0]

        return self._change(back, "rollback")

    def history(self) -> list[Change]:
        """Every change of CURRENT, oldest first. A line that does not parse is ignored."""
        return _history(self._read(_CURRENT) or b"")

    def served_before(self) -> list[str]:
        """The versions that rolling back leads to, nearest first."""
        return _served_before(self._read(_CURRENT) or b"")

    def _names(self) -> list[str]:
        with _translated():
            return self._documents.names()

    def _write(self, name: str, content: bytes) -> None:
        # A conflict means that it was published before, and such a file never changes.
        with _translated(), suppress(DocumentConflict):
            self._documents.write(name, content, expected=None)

    def _read(self, name: str) -> bytes | None:
        with _translated():
            found = self._documents.read(name)
        return found.content if found else None

    def _change(self, choose: Callable[[bytes], str], by: By) -> str:
        """Make CURRENT name the version that `choose` takes from its content."""
        version = ""

        def changed(content: bytes | None) -> bytes | None:
            nonlocal version
            version, named = choose(content or b""), _named(content or b"")
            if named == version:
                return None
            at = datetime.now(UTC).isoformat(timespec="seconds")
            # An invalid first line is replaced by this change.
            kept = _lines(content or b"")[named is None :]
            return "".join(f"{line}\n" for line in (f"{version} {at} {by}", *kept)).encode()

        with _translated():
            update(self._documents, _CURRENT, changed)
        return version


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise ArtifactError(str(error)) from error


def _name(version: str) -> str:
    # A name that CURRENT may not contain is not stored.
    if not _VERSION.fullmatch(version):
        raise ArtifactSchemaError(f"{version[:100]!r} is not a version: letters, digits, dots, dashes, underscores")
    return f"{version}.json"


def _versions(names: list[str]) -> list[str]:
    return [name.removesuffix(".json") for name in names if name.endswith(".json") and not _STATS.fullmatch(name)]


def _stats_name(digest: str) -> str:
    name = f"stats-{digest}.json"
    if not _STATS.fullmatch(name):
        raise ArtifactSchemaError(f"{digest[:100]!r} is not a digest of corpus statistics: 16 hex digits")
    return name


def _without_stats(artifact: Artifact, where: str) -> str:
    return f"{where} does not exist: copy the corpus statistics that {artifact.version} names beside it, or refit"


def _lines(content: bytes) -> list[str]:
    return [line.strip() for line in content.decode(errors="replace").splitlines()]


def _named(content: bytes) -> str | None:
    line = _LINE.fullmatch(next(iter(_lines(content)), ""))
    return line[1] if line else None


def _history(content: bytes) -> list[Change]:
    changes: list[Change] = []
    for line in filter(None, map(_LINE.fullmatch, reversed(_lines(content)))):
        before = changes[-1].version if changes else None
        changes.append(Change(line[2] or "", line[1], before, cast("By", line[3] or "hand")))
    return changes


def _served_before(content: bytes) -> list[str]:
    served: list[str] = []
    for change in _history(content):
        if change.by == "rollback" and change.version in served:
            while served[-1] != change.version:
                served.pop()
        elif served[-1:] != [change.version]:
            served.append(change.version)
    # If the first line is invalid, go back to the version that was named last.
    return served[::-1] if _named(content) is None else served[-2::-1]


def serialise(artifact: Artifact) -> bytes:
    """The artifact as indented JSON, the checksum first."""
    body = {"checksum": checksum(artifact), **asdict(artifact)}
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def parse(raw: bytes, *, name: str) -> Artifact:
    """The reverse of `serialise`; rejects another schema version, a wrong shape, and changed bytes."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ArtifactSchemaError(f"{name} is not JSON: {error}") from error
    if not isinstance(body, dict) or "checksum" not in body:
        raise ArtifactSchemaError(f"{name} is not a calibrator artifact: it has no checksum")
    if body.get("schema") != SCHEMA:
        raise ArtifactSchemaError(f"{name} has schema {body.get('schema')!r}, this gateway reads {SCHEMA}: refit it")
    expected = body.pop("checksum")
    try:
        artifact = _ARTIFACT.validate_json(json.dumps(body, allow_nan=False), strict=True, extra="forbid")
    except ValidationError as error:
        # An invalid calibrator fails as every kind; the error of its own kind comes first.
        first = min(error.errors(), key=lambda each: each["type"] != "value_error")
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactSchemaError(f"{name} is not a valid artifact: {where}: {first['msg']}") from error
    except ValueError as error:
        raise ArtifactSchemaError(f"{name} holds NaN or an infinity, which Python reads and JSON forbids") from error
    if checksum(artifact) != expected:
        raise ArtifactChecksumError(f"{name} was changed after it was published: restore it or refit")
    return artifact
