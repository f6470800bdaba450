"""Calibrator artifacts on disk: `<folder>/<version>.json`, immutable, and CURRENT, one line naming the served one."""

import json
import os
import re
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from app.decision.artifact import SCHEMA, Artifact, checksum
from app.errors import ArtifactChecksumError, ArtifactError, ArtifactSchemaError

_ARTIFACT = TypeAdapter(Artifact)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


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

    def publish(self, artifact: Artifact) -> Path:
        """Write the artifact's file, all or nothing; the same version twice changes nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(artifact.version)
        if not path.exists():
            _replace(path, serialise(artifact))
        return path

    def promote(self, version: str) -> None:
        """Make CURRENT name this version, once the file is known to be good."""
        self.load(version)
        _replace(self.folder / "CURRENT", f"{version}\n".encode())

    def _path(self, version: str) -> Path:
        # What CURRENT may not name is not stored either, and a version never leaves the folder.
        if not _VERSION.fullmatch(version):
            raise ArtifactSchemaError(f"{version[:100]!r} is not a version: letters, digits, dots, dashes, underscores")
        return self.folder / f"{version}.json"


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


def _replace(path: Path, content: bytes) -> None:
    """Write beside, make durable, rename: a reader sees the old bytes or the new, never half of either."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
