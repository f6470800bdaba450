"""What a key allows: scopes, collections, the passages it may read, and how often. Pure: the clock is passed in."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.errors import Denial, Denied

PREFIX = "fw"
# A bucket holds a minute's worth: so much can come at once after a quiet minute.
_BUCKET_S = 60.0
# Sums of floating-point seconds are off by less than this, and a wait of this length is none.
_TICK_S = 1e-6
_NOBODY = bytes(32)

Where = Mapping[str, str | int | bool]


class Scope(StrEnum):
    """What a key is for; each covers routes that the others do not."""

    ANSWER = "answer"
    FEEDBACK = "feedback"
    OPERATE = "operate"


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is kept: its public id, the SHA-256 of its secret, and what it allows."""

    id: str
    digest: bytes = field(repr=False)
    scopes: frozenset[Scope]
    # Empty: every collection.
    collections: tuple[str, ...] = ()
    # A passage must have these fields with exactly these values to be read with this key.
    where: Where = field(default_factory=dict)
    # None: as many as the gateway takes.
    per_minute: int | None = None
    at_once: int | None = None
    revoked: bool = False


def token(identifier: str, secret: str) -> str:
    """What the owner of a key presents."""
    return f"{PREFIX}_{identifier}_{secret}"


def parts(presented: str) -> tuple[str, str]:
    """The public id and the secret of what was presented; empty where it is no key at all."""
    prefix, _, rest = presented.partition("_")
    identifier, _, secret = rest.partition("_")
    return (identifier, secret) if prefix == PREFIX else ("", "")


def digest(secret: str) -> bytes:
    """What is kept of a secret. It has 256 random bits, so that a fast hash is as good as a slow one."""
    return hashlib.sha256(secret.encode()).digest()


def matching(keys: Mapping[str, Key], presented: str) -> Key | None:
    """The key that was presented, where it is in force; an unknown id takes as long as a wrong secret."""
    identifier, secret = parts(presented)
    key = keys.get(identifier)
    same = hmac.compare_digest(digest(secret), _NOBODY if key is None else key.digest)
    return key if same and key is not None and not key.revoked else None


def collection_for(key: Key, asked: str | None, default: str) -> str:
    """Where to search. Who names no collection gets the default, or the key's first where that is not among its own."""
    listed = key.collections
    if asked is None:
        return default if not listed or default in listed else listed[0]
    if listed and asked not in listed:
        # The same words whether or not it exists: that is not this key's to know.
        raise Denied(f"collection: this key may not search {asked!r}", why=Denial.COLLECTION)
    return asked


def narrowed(forced: Where, asked: Where | None) -> Where | None:
    """The filter that is searched with: everything that was asked for, and everything that the key insists on."""
    for name, value in (asked or {}).items():
        # True equals 1 in Python, and must not in a filter.
        if name in forced and (type(value), value) != (type(forced[name]), forced[name]):
            raise Denied(
                f"filter.{name}: this key reads the passages of one {name} only, and not of that one: leave it out",
                why=Denial.FILTER,
            )
    return {**(asked or {}), **forced} or None


def take(full_at: float, now: float, per_minute: int) -> tuple[float, float]:
    """Take one from a token bucket, of which only the time when it will be full again is remembered.

    Returns that time anew, and how many seconds to wait instead: 0 where one was taken.
    """
    after = max(full_at, now) + _BUCKET_S / per_minute
    wait = after - now - _BUCKET_S
    return (full_at, wait) if wait > _TICK_S else (after, 0.0)
