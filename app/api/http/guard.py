"""Finds the key of a request, and enforces the scopes and limits of the key.

    no key, or an unknown one: 401 ─► without the scope: 403 ─► too often: 429 ─► collection, filter: 403

Until the keys have been read, every key is a 503.

If no keys are configured, everyone may do everything.
"""

import base64
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase

from app.access.keys import Key, KeyStore, Scope
from app.core.question import Filter
from app.errors import Denial, Denied, OverLimit, StorageUnavailable, Unauthorised
from app.ports import Rate, Rates

_BEARER = "Bearer"
# A browser then asks for a password, and sends it again for everything that the page loads.
_BASIC = 'Basic realm="Fetchwise: a key that may operate, as the password", charset="UTF-8"'


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks the keys of requests."""

    keys: KeyStore
    rates: Rates

    def may_operate(self, request: Request) -> bool:
        """Whether to show details on a route that needs no key."""
        if not self.keys.on:
            return True
        presented = _presented(request)
        try:
            key = self.keys.find(presented) if presented is not None else None
        except StorageUnavailable:
            return False
        return key is not None and Scope.OPERATE in key.scopes


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request; `key` is None if keys are off."""

    key: Key | None
    rate: Rate | None = None

    @property
    def id(self) -> str | None:
        """The public id of the key, for the log."""
        return None if self.key is None else self.key.id

    @property
    def may_give_feedback(self) -> bool:
        """Whether this caller may send feedback."""
        return self.key is None or Scope.FEEDBACK in self.key.scopes

    def reach(self, collection: str | None, where: Filter | None, *, default: str) -> tuple[str, Filter | None]:
        """The collection and the filter of a search: as requested, within the limits of the key."""
        if self.key is None:
            return collection or default, where
        return collection_for(self.key.collections, collection, default), narrowed(self.key.filter, where)

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """Count a question or feedback of the key while it is in progress, or refuse it."""
        if self.key is None or self.rate is None or self.key.max_concurrent is None:
            yield
            return
        if not self.rate.begin(self.key.max_concurrent):
            raise OverLimit(
                f"this key may have {self.key.max_concurrent} requests in flight, and has: wait for a response",
                why=Denial.CONCURRENCY,
            )
        try:
            yield
        finally:
            self.rate.end()


def collection_for(listed: list[str], asked: str | None, default: str) -> str:
    """The requested collection, else the default if the key allows it, else the first that the key lists."""
    if asked is None:
        return default if not listed or default in listed else listed[0]
    if listed and asked not in listed:
        # The same message whether or not it exists: this key must not find out.
        raise Denied(f"collection: this key may not search {asked!r}", why=Denial.COLLECTION)
    return asked


def narrowed(forced: Filter, asked: Filter | None) -> Filter | None:
    """The requested filter together with the filter of the key."""
    for name, value in (asked or {}).items():
        # True equals 1 in Python, but not in a filter.
        if name in forced and (type(value), value) != (type(forced[name]), forced[name]):
            raise Denied(
                f"filter.{name}: this key is limited to another {name}: remove it from the filter",
                why=Denial.FILTER,
            )
    return {**(asked or {}), **forced} or None


_ANYONE = Caller(None)


class Needs(SecurityBase):
    """A dependency: the caller, whose key must have the scope. With `browser`, the key may also be a password."""

    scheme_name = "key"

    def __init__(self, scope: Scope, *, browser: bool = False, challenge: str = _BEARER) -> None:
        self.model = HTTPBearer(
            description="A key made by `fetchwise keys create`, here or in the header `X-API-Key`. "
            "Not needed if the gateway has no keys."
        )
        self.scope = scope
        self._browser = browser
        self._challenge = challenge

    async def __call__(self, request: Request) -> Caller:
        """Return the caller, or raise an error that says what is missing."""
        guard: Guard = request.app.state.gateway.guard
        if not guard.keys.on:
            return _ANYONE
        presented = _presented(request, browser=self._browser)
        if presented is None:
            raise Unauthorised(
                "a key is needed: send it as `Authorization: Bearer fw_…` or `X-API-Key: fw_…`",
                why=Denial.NO_KEY,
                challenge=self._challenge,
            )
        key = guard.keys.find(presented)
        if key is None:
            raise Unauthorised(
                "this key is unknown or revoked: ask the operator for a new one",
                why=Denial.BAD_KEY,
                challenge=self._challenge,
            )
        if self.scope not in key.scopes:
            raise Denied(
                f"this key lacks the scope `{self.scope.value}`: ask the operator for a key with it", why=Denial.SCOPE
            )
        if key.per_minute is None and key.max_concurrent is None:
            return Caller(key)
        rate = guard.rates.of(key.id)
        if key.per_minute is not None and (wait := rate.take(key.per_minute)):
            raise OverLimit(
                f"this key may send {key.per_minute} requests per minute: try again in {wait:.1f} s",
                why=Denial.RATE,
                retry_after_s=math.ceil(wait),
            )
        return Caller(key, rate)


AnswerCaller = Annotated[Caller, Depends(Needs(Scope.ANSWER))]
FeedbackCaller = Annotated[Caller, Depends(Needs(Scope.FEEDBACK))]
OPERATOR = Depends(Needs(Scope.OPERATE))
# For a page a browser needs an HTTP Basic challenge; the data that the page loads needs none.
OPERATOR_PAGE = Depends(Needs(Scope.OPERATE, browser=True, challenge=_BASIC))
OPERATOR_PAGE_DATA = Depends(Needs(Scope.OPERATE, browser=True))


async def _may_operate(request: Request) -> bool:
    guard: Guard = request.app.state.gateway.guard
    return guard.may_operate(request)


MayOperate = Annotated[bool, Depends(_may_operate)]


def _presented(request: Request, *, browser: bool = False) -> str | None:
    """The key in the headers of a request; None if there is none."""
    alone = None
    # Raw headers: building Starlette's Headers costs more than the rest of the check.
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            scheme, _, given = value.decode("latin-1").partition(" ")
            match scheme.lower():
                case "bearer":
                    return str(given.strip())
                case "basic" if browser:
                    return _password(given)
        elif name == b"x-api-key" and alone is None:
            alone = value.decode("latin-1")
    return alone


def _password(given: str) -> str:
    """The password of HTTP Basic; empty if it cannot be read."""
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""
