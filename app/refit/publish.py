"""Putting an artifact where the gateway finds it: whole or not at all, and served only if it is not worse.

`DIR/<version>.json` is immutable; `DIR/CURRENT` names the version that is served. Both appear by rename.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from app.decision.artifact import Artifact, canonical_bytes, checksum, mismatches
from app.errors import ArtifactChecksumError, ArtifactError, ArtifactSchemaError, DataError
from app.refit.holdout import served_accuracy
from app.refit.split import Test

CURRENT = "CURRENT"


@dataclass(frozen=True, slots=True)
class Published:
    """Where an artifact went, and whether it is served now, or why not."""

    path: Path
    current: bool
    why: str


def publish(
    artifact: Artifact,
    directory: Path,
    *,
    test: Test,
    epsilon: float,
    force: bool = False,
    load: Callable[[Path], Artifact] | None = None,
) -> Published:
    """Write the artifact, and make it CURRENT unless it is worse than the one that is served.

    Worse is: uncertified where that one is certified; or less accurate by more than epsilon on the new test split,
    each as the gateway would serve it. A group's split never changes, so the old one has not learned from it either.
    An artifact for another identity replaces nothing and is refused, and one without identity never becomes
    CURRENT, for the gateway could not serve it. `force` overrules all but the last.
    """
    served, unreadable = _served(directory, load or read)
    if served is not None and artifact.identity is not None and served.identity is not None and not force:
        differing = mismatches(served.identity, artifact.identity)
        if differing:
            raise DataError(
                f"{artifact.window.source or 'the table'}:1: collected with another system than {directory} serves "
                f"({'; '.join(differing)}): publish to another directory, or --force; nothing was published"
            )
    why_not = None if force or served is None else _worse(artifact, served, test, epsilon)
    if artifact.identity is None:
        why_not = "the table has no identity line, so nothing that runs can match it"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{artifact.version}.json"
    _write(path, to_bytes(artifact))
    if why_not is not None:
        return Published(path, current=False, why=why_not)
    _write(directory / CURRENT, f"{artifact.version}\n".encode())
    return Published(path, current=True, why=unreadable or ("forced" if force else "not worse than what was served"))


def to_bytes(artifact: Artifact) -> bytes:
    """The file of an artifact: its fields, and the checksum of their canonical bytes."""
    body = json.loads(canonical_bytes(artifact))
    return json.dumps({"checksum": checksum(artifact), **body}, indent=1, ensure_ascii=False).encode() + b"\n"


def read(path: Path) -> Artifact:
    """Read a published file back, verifying its checksum."""
    try:
        body = json.loads(path.read_bytes())
        stated = body.pop("checksum")
        artifact = TypeAdapter(Artifact).validate_python(body)
    except (OSError, ValueError, KeyError, AttributeError, ValidationError) as error:
        raise ArtifactSchemaError(f"{path}: not a calibrator artifact ({error})") from error
    if checksum(artifact) != stated:
        raise ArtifactChecksumError(f"{path}: its bytes are not those that were published")
    return artifact


def _served(directory: Path, load: Callable[[Path], Artifact]) -> tuple[Artifact | None, str]:
    try:
        version = (directory / CURRENT).read_text().strip()
    except FileNotFoundError:
        return None, "nothing was served before"
    try:
        return load(directory / f"{version}.json"), ""
    except ArtifactError as error:
        return None, f"what was served could not be read ({error})"


def _worse(new: Artifact, old: Artifact, test: Test, epsilon: float) -> str | None:
    if _certified(old) and not _certified(new):
        return f"{old.version} is certified and this one is not"
    before, after = served_accuracy(old, test), served_accuracy(new, test)
    if after < before - epsilon:
        return f"on the test split {old.version} is right {before:.3f} of the time and this one {after:.3f}"
    return None


def _certified(artifact: Artifact) -> bool:
    fit = artifact.policies.get("graded")
    return fit is not None and fit.certificate is not None


def _write(path: Path, content: bytes) -> None:
    """Write by temporary file, fsync and rename: a reader sees the old content or the new, never a part."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp gives the owner alone a right to read, and the gateway may run as somebody else.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
