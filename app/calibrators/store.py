"""Calibrator artifacts on disk: `<folder>/<version>.json`, immutable, and CURRENT, one line naming the served one.

HISTORY beside it has a line for every change of CURRENT, and is only ever added to: it knows the way back.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import TypeAdapter, ValidationError

from app.core.artifact import SCHEMA, Artifact, checksum
from app.errors import ArtifactChecksumError, ArtifactError, ArtifactSchemaError
from app.processes import replace_file

_ARTIFACT = TypeAdapter(Artifact)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
By = Literal["refit", "promote", "rollback"]


@dataclass(frozen=True, slots=True)
class Change:
    """One line of HISTORY: from when on which version was CURRENT, what was before, and which command did it."""

    at: str
    version: str
    before: str | None
    by: By


_CHANGE = TypeAdapter(Change)


class ArtifactStore:
    """One folder of artifacts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def current(self) -> str | None:
        """The version that CURRENT names, or None where nothing was ever published."""
        try:
            version = (self.folder / "CURRENT").read_bytes().decode(errors="replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ArtifactError(f"{self.folder / 'CURRENT'} cannot be read: {error.strerror}") from error
        if not _VERSION.fullmatch(version):
            raise ArtifactSchemaError(f"{self.folder / 'CURRENT'} does not name a version: {version[:100]!r}")
        return version

    def versions(self) -> list[str]:
        """Every published version, oldest first by name."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def load(self, version: str) -> Artifact:
        """Read and verify one artifact; whatever is wrong with it is an ArtifactError that says so."""
        path = self._path(version)
        try:
            raw = path.read_bytes()
        except FileNotFoundError as error:
            raise ArtifactError(f"{path} does not exist: is CURRENT naming a deleted version?") from error
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
        artifact = parse(raw, name=str(path))
        if artifact.version != version:
            raise ArtifactSchemaError(f"{path} holds version {artifact.version!r}: files must not be renamed")
        return artifact

    def survey(self, most: int) -> list[tuple[str, Artifact | ArtifactError]]:
        """The newest versions by name, newest first: each one's artifact, or why it cannot be served."""
        found: list[tuple[str, Artifact | ArtifactError]] = []
        for version in self.versions()[: -most - 1 : -1]:
            try:
                found.append((version, self.load(version)))
            except ArtifactError as error:
                found.append((version, error))
        return found

    def publish(self, artifact: Artifact) -> Path:
        """Write the artifact's file, all or nothing; the same version twice changes nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(artifact.version)
        if not path.exists():
            replace_file(path, serialise(artifact))
        return path

    def promote(self, version: str, *, by: By = "promote") -> None:
        """Make CURRENT name this version, once the file is known to be good; where it does already, nothing changes."""
        self.load(version)
        with self._changing() as history:
            self._change(version, by, history)

    def rollback(self) -> str:
        """Make CURRENT name the version that was served before; done again, the one before that."""
        if not self.folder.is_dir():
            raise ArtifactError(f"{self.folder} does not exist: nothing was ever served from it")
        with self._changing() as history:
            before = self.served_before()
            if not before:
                raise ArtifactError(f"{self.folder / 'HISTORY'} knows of nothing served before: promote a version")
            self.load(before[0])
            self._change(before[0], "rollback", history)
            return before[0]

    def history(self) -> list[Change]:
        """Every change of CURRENT, oldest first. A line that does not parse, torn by a crash, is passed over."""
        try:
            lines = (self.folder / "HISTORY").read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ArtifactError(f"{self.folder / 'HISTORY'} cannot be read: {error.strerror}") from error
        return [change for change in map(_change, lines) if change is not None]

    def served_before(self) -> list[str]:
        """The versions that rolling back leads to, nearest first."""
        served: list[str] = []
        for change in self.history():
            # CURRENT may have been written by hand, or before there was a history.
            if change.before is not None and served[-1:] != [change.before]:
                served.append(change.before)
            if change.by == "rollback" and change.version in served:
                while served[-1] != change.version:
                    served.pop()
            elif served[-1:] != [change.version]:
                served.append(change.version)
        try:
            current = self.current()
        except ArtifactError:
            # Named wrongly by hand: what was named last by a command is the way back.
            current = None
        if served[-1:] == [current]:
            served.pop()
        return served[::-1]

    def _change(self, version: str, by: By, history: BinaryIO) -> None:
        try:
            before = self.current()
        except ArtifactError:
            # What is being mended, and nothing to go back to.
            before = None
        if before == version:
            return
        replace_file(self.folder / "CURRENT", f"{version}\n".encode())
        change = Change(datetime.now(UTC).isoformat(timespec="seconds"), version, before, by)
        # One write a line, begun on a line of its own whatever a crash left behind.
        torn = history.tell() > 0 and not (self.folder / "HISTORY").read_bytes().endswith(b"\n")
        history.write(b"\n" * torn + json.dumps(asdict(change)).encode() + b"\n")
        history.flush()
        os.fsync(history.fileno())

    @contextmanager
    def _changing(self) -> Iterator[BinaryIO]:
        """Hold HISTORY, so that two commands change CURRENT one after the other."""
        path = self.folder / "HISTORY"
        try:
            history = path.open("ab")
        except OSError as error:
            raise ArtifactError(f"{path} cannot be written: {error.strerror}") from error
        with history:
            fcntl.flock(history, fcntl.LOCK_EX)
            history.seek(0, os.SEEK_END)
            yield history

    def _path(self, version: str) -> Path:
        # What CURRENT may not name is not stored either, and a version never leaves the folder.
        if not _VERSION.fullmatch(version):
            raise ArtifactSchemaError(f"{version[:100]!r} is not a version: letters, digits, dots, dashes, underscores")
        return self.folder / f"{version}.json"


def _change(line: bytes) -> Change | None:
    try:
        return _CHANGE.validate_json(line, strict=True)
    except ValidationError:
        return None


def serialise(artifact: Artifact) -> bytes:
    """The artifact as a person would want to read it, its checksum first."""
    body = {"checksum": checksum(artifact), **asdict(artifact)}
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def parse(raw: bytes, *, name: str) -> Artifact:
    """The reverse of `serialise`; refuses another schema version, a wrong shape, and bytes that were changed."""
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
        # A bad calibrator fails as each of the other kinds too: what its own constructor says comes first.
        first = min(error.errors(), key=lambda each: each["type"] != "value_error")
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactSchemaError(f"{name} is not a valid artifact: {where}: {first['msg']}") from error
    except ValueError as error:
        raise ArtifactSchemaError(f"{name} holds NaN or an infinity, which Python reads and JSON forbids") from error
    if checksum(artifact) != expected:
        raise ArtifactChecksumError(f"{name} was changed after it was published: restore it or refit")
    return artifact
