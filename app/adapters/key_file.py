"""The file with the keys: what they allow and the SHA-256 of their secrets, for the gateway's eyes only.

A file that is not right in every detail is refused as a whole: a key whose filter was misspelt must not read more.
"""

import fcntl
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from app.decision.access import Key, Scope, digest, parts, token
from app.errors import DataError
from app.processes import replace_file

Value = StrictBool | StrictInt | StrictStr
Name = Annotated[str, Field(min_length=1, max_length=64)]


class StoredKey(BaseModel):
    """One key as the file has it. Nothing has a default: what is left out by mistake must not be taken for a choice."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    name: Annotated[str, Field(max_length=128)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = Field(repr=False)
    scopes: list[Scope]
    collections: list[Name]
    filter: dict[Name, Value]
    per_minute: Annotated[StrictInt, Field(ge=1)] | None
    at_once: Annotated[StrictInt, Field(ge=1)] | None
    created: datetime
    revoked: datetime | None

    def key(self) -> Key:
        """As the gateway looks it up."""
        return Key(
            id=self.id,
            digest=bytes.fromhex(self.sha256),
            scopes=frozenset(self.scopes),
            collections=tuple(self.collections),
            where=dict(self.filter),
            per_minute=self.per_minute,
            at_once=self.at_once,
            revoked=self.revoked is not None,
        )


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1]
    keys: list[StoredKey]


class KeyFile:
    """Reads and changes the file; revoked keys stay in it, so that their ids can still be told apart in the log."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def content(self) -> bytes | None:
        """The bytes of the file; None where there is none, DataError where it cannot be read."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({error.strerror})") from error

    def read(self) -> list[StoredKey]:
        """Every key, oldest first; none where there is no file."""
        content = self.content()
        return [] if content is None else self.parsed(content)

    def parsed(self, content: bytes) -> list[StoredKey]:
        """The keys in these bytes; DataError where anything about them is not as it should be."""
        try:
            stored = _Stored.model_validate_json(content).keys
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise DataError(f"{self.path} is not a file of keys: {place}: {first['msg']}") from None
        if len({one.id for one in stored}) < len(stored):
            raise DataError(f"{self.path} is not a file of keys: an id comes twice")
        return stored

    def create(
        self,
        name: str,
        *,
        scopes: list[Scope],
        collections: list[str],
        where: Mapping[str, str | int | bool],
        per_minute: int | None,
        at_once: int | None,
    ) -> tuple[StoredKey, str]:
        """Add a key; the second is what its owner presents, and is kept nowhere."""
        secret = secrets.token_urlsafe(32)
        try:
            made = StoredKey(
                id=secrets.token_hex(6),
                name=name,
                sha256=digest(secret).hex(),
                scopes=scopes,
                collections=collections,
                filter=dict(where),
                per_minute=per_minute,
                at_once=at_once,
                created=_now(),
                revoked=None,
            )
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise DataError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
        with self._changing() as keys:
            self._write([*keys, made])
        return made, token(made.id, secret)

    def revoke(self, identifier: str) -> StoredKey:
        """Put a key out of force for good; revoking it again changes nothing."""
        with self._changing() as keys:
            known = self.named(identifier, keys)
            if known.revoked is not None:
                return known
            revoked = known.model_copy(update={"revoked": _now()})
            self._write([revoked if one.id == known.id else one for one in keys])
        return revoked

    def named(self, identifier: str, keys: list[StoredKey]) -> StoredKey:
        """The key with this id, which may also be given as the whole key."""
        public = parts(identifier)[0] or identifier
        found = next((one for one in keys if one.id == public), None)
        if found is None:
            # Without what was given: it may hold a secret.
            raise DataError(f"no such key in {self.path}: `fetchwise keys list` shows the ids")
        return found

    @contextmanager
    def _changing(self) -> Iterator[list[StoredKey]]:
        """Hold others off meanwhile: of two changes at once, one would be lost, and it could be a revocation."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(f".{self.path.name}.lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield self.read()
        except OSError as error:
            raise DataError(f"{self.path} cannot be written ({error.strerror})") from error

    def _write(self, keys: list[StoredKey]) -> None:
        content = _Stored(version=1, keys=keys).model_dump_json(indent=1)
        replace_file(self.path, content.encode() + b"\n", private=True)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
