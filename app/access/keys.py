"""The keys that callers present: what each allows, the document that keeps them, and which are valid now.

Only the SHA-256 of a secret is stored. A document with any error is refused as a whole: a key with a misspelt filter
must not read more.
"""

import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from app.errors import ConfigurationError, DataError, StorageError, StorageUnavailable
from app.ports import Documents, update
from app.threads import in_storage_thread

logger = logging.getLogger(__name__)

PREFIX = "fw"
_NO_DIGEST = "0" * 64
_MARK = b"This gateway has keys. Delete this file and the keys to serve without keys.\n"

_Value = StrictBool | StrictInt | StrictStr
_Name = Annotated[str, Field(min_length=1, max_length=64)]


class Scope(StrEnum):
    """What a key is for; each covers routes that the others do not."""

    ANSWER = "answer"
    FEEDBACK = "feedback"
    OPERATE = "operate"


class Key(BaseModel):
    """What a key allows. No field has a default: a field that is left out by mistake must not widen the key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Public: names the key in the log.
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    name: Annotated[str, Field(max_length=128)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = Field(repr=False)
    scopes: list[Scope]
    # Empty: every collection.
    collections: list[_Name]
    # A passage must have these fields with exactly these values to be read with this key.
    filter: dict[_Name, _Value]
    # None: no limit of its own.
    per_minute: Annotated[StrictInt, Field(ge=1)] | None
    max_concurrent: Annotated[StrictInt, Field(ge=1)] | None
    created: datetime
    revoked: datetime | None


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1]
    keys: list[Key]


def parts(presented: str) -> tuple[str, str]:
    """The public id and the secret of what was presented; empty if it is not a key."""
    prefix, _, rest = presented.partition("_")
    identifier, _, secret = rest.partition("_")
    return (identifier, secret) if prefix == PREFIX else ("", "")


def digest(secret: str) -> str:
    """What is kept of a secret. It has 256 random bits, so that a fast hash is as good as a slow one."""
    return hashlib.sha256(secret.encode()).hexdigest()


def matching(keys: Mapping[str, Key], presented: str) -> Key | None:
    """The presented key, if it is valid; checking an unknown id takes as long as checking a wrong secret."""
    identifier, secret = parts(presented)
    key = keys.get(identifier)
    same = hmac.compare_digest(digest(secret), _NO_DIGEST if key is None else key.sha256)
    return key if same and key is not None and key.revoked is None else None


class KeyFile:
    """Reads and changes the document; revoked keys stay in it, so that their ids in the log keep their meaning."""

    def __init__(self, documents: Documents, name: str = "keys.json") -> None:
        self._documents = documents
        self._name = name
        self._marker = f"{name}.in-use"

    @property
    def where(self) -> str:
        """Where the keys are, for messages."""
        return self._documents.where(self._name)

    def content(self) -> bytes | None:
        """The document's bytes; None if there never was one. DataError if it is gone: without it all would be open."""
        found = self._documents.read(self._name)
        if found is None and self._documents.read(self._marker) is not None:
            raise DataError(
                f"{self.where} is gone, and there were keys in it: restore it, or run `fetchwise keys create NAME`; "
                f"to serve without keys, delete {self._documents.where(self._marker)} too"
            )
        return found.content if found else None

    def mark(self) -> None:
        """Remember that there are keys, beside them. Where that is not possible, a loss will not be noticed."""
        with suppress(StorageError):
            if self._documents.read(self._marker) is None:
                self._documents.write(self._marker, _MARK, expected=None)

    def read(self) -> list[Key] | None:
        """Every key, oldest first; None if there is no document."""
        content = self.content()
        return None if content is None else self.parsed(content)

    def parsed(self, content: bytes) -> list[Key]:
        """The keys in these bytes; DataError if any of them is invalid."""
        try:
            stored = _Stored.model_validate_json(content).keys
            # pydantic would take the last of them, and a person who reads the file perhaps the first.
            json.loads(content, object_pairs_hook=_without_duplicates)
        except ValidationError as error:
            raise DataError(f"{self.where} is not a file of keys: {_first(error)}") from None
        except DataError as error:
            raise DataError(f"{self.where} is not a file of keys: {error}") from None
        if len({one.id for one in stored}) < len(stored):
            raise DataError(f"{self.where} is not a file of keys: an id comes twice")
        return stored

    def create(self, name: str, **allows: Any) -> tuple[Key, str]:  # noqa: ANN401 the fields of a Key
        """Add a key; the second is what its owner presents, and is kept nowhere."""
        identifier, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        try:
            made = Key(id=identifier, name=name, sha256=digest(secret), created=_now(), revoked=None, **allows)
        except ValidationError as error:
            raise DataError(_first(error)) from None
        self._update(lambda keys: [*keys, made])
        return made, f"{PREFIX}_{identifier}_{secret}"

    def revoke(self, identifier: str) -> Key:
        """Revoke a key for good; revoking it again changes nothing."""
        now = _now()

        def revoked(keys: list[Key]) -> list[Key]:
            known = self.named(identifier, keys)
            after = known.model_copy(update={"revoked": known.revoked or now})
            return [after if one.id == known.id else one for one in keys]

        return self.named(identifier, self._update(revoked))

    def named(self, identifier: str, keys: list[Key]) -> Key:
        """The key with this id, which may also be given as the whole key."""
        public = parts(identifier)[0] or identifier
        found = next((one for one in keys if one.id == public), None)
        if found is None:
            # Without the given text: it may be a whole key with its secret.
            raise DataError(f"no such key in {self.where}: `fetchwise keys list` shows the ids")
        return found

    def _update(self, change: Callable[[list[Key]], list[Key]]) -> list[Key]:
        """Change the keys as they are stored at that moment: no change of another writer is lost."""
        keys: list[Key] = []

        def changed(content: bytes | None) -> bytes:
            nonlocal keys
            keys = change([] if content is None else self.parsed(content))
            return _Stored(version=1, keys=keys).model_dump_json(indent=1).encode() + b"\n"

        update(self._documents, self._name, changed)
        self.mark()
        return keys


def _without_duplicates(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(fields)
    if len(found) < len(fields):
        names = [name for name, _ in fields]
        raise DataError(
            f"the field {next(name for name in names if names.count(name) > 1)!r} comes twice in one object"
        )
    return found


def _first(error: ValidationError) -> str:
    """The place and the message of the first error, without the invalid value."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class KeyStore:
    """The valid keys. Once keys are on they stay on: if the document is lost or damaged, the last valid keys apply.

    They are on if the document exists, or if they are `required`: then every request needs a key.
    """

    def __init__(self, file: KeyFile, *, required: bool = False) -> None:
        self._file = file
        self._content: bytes | None = None
        self._keys: Mapping[str, Key] = {}
        self._on = required
        # Why they could not be read since the start; empty once they were.
        self._unread = ""

    @property
    def on(self) -> bool:
        """Whether requests need a key."""
        return self._on

    @property
    def revision(self) -> str:
        """What the keys in use have in common with those of another gateway; `none` without keys."""
        return hashlib.sha256(self._content).hexdigest()[:12] if self._content else "none"

    def find(self, presented: str) -> Key | None:
        """The presented key, if it is valid: a lookup, one SHA-256 and one comparison.

        StorageUnavailable until the keys have been read: nobody is let in, and nobody is told that a key is wrong.
        """
        if self._unread:
            raise StorageUnavailable("the keys cannot be read yet: try again in a few seconds")
        return matching(self._keys, presented)

    async def ping(self) -> None:
        """Return if the keys have been read since the start; StorageUnavailable if not."""
        if self._unread:
            raise StorageUnavailable(self._unread)

    async def open(self) -> None:
        """Read the keys for the first time; ConfigurationError if the document exists but cannot be used.

        A database that does not answer is no error: `refresh` reads them later.
        """
        try:
            await self.refresh()
        except StorageUnavailable as error:
            self._unread = str(error)
        except (DataError, StorageError) as error:
            raise ConfigurationError(str(error)) from error
        if not self._on:
            logger.info("no keys: anyone who reaches this address can ask and see everything")

    async def refresh(self) -> None:
        """Load a changed document. DataError if it cannot be used: the keys read before stay valid."""
        await in_storage_thread(self._reload)

    def _reload(self) -> None:
        try:
            content = self._file.content()
            if content == self._content:
                self._unread = ""
                return
            keys = self._parsed(content)
        except (DataError, StorageError) as error:
            self._unread = self._unread and str(error)
            # There is, or was, a document, so keys are wanted.
            self._on = True
            if self._content is None:
                raise
            raise DataError(f"{error}; the keys read before stay valid") from error
        # The keys first, in one assignment: a request sees the old ones or the new ones.
        self._keys, self._content, self._on = keys, content, True
        self._unread = ""
        valid = sum(key.revoked is None for key in keys.values())
        logger.info("keys: %d valid", valid)
        if valid == 0:
            logger.warning("no key is valid, so every request is refused: `fetchwise keys create NAME`")
        # Last: it may wait for a database, and the keys are in use without it.
        self._file.mark()

    def _parsed(self, content: bytes | None) -> dict[str, Key]:
        if content is None:
            raise DataError(f"{self._file.where} is gone")
        return {one.id: one for one in self._file.parsed(content)}
