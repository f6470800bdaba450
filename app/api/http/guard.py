"""Who asks: finds the key that a request presents, and holds the request to what the key allows.

    no key, or an unknown one: 401 ─► without the scope: 403 ─► too often: 429 ─► collection, filter: 403

Without keys, whoever comes may do everything.
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
from app.errors import Denial, Denied, OverLimit, Unauthorised
from app.ports import Rate, Rates

_BEARER = "Bearer"
# A browser then asks for a password, and presents it again by itself for what the page loads.
_BASIC = 'Basic realm="Fetchwise: a key that may operate, as the password", charset="UTF-8"'


@dataclass(frozen=True, slots=True)
class Guard:
    """What the routes ask about keys; opened and closed by the application's lifespan."""

    keys: KeyStore
    rates: Rates

    def may_operate(self, request: Request) -> bool:
        """Whether more may be told on a route that is open; never refuses."""
        if not self.keys.on:
            return True
        presented = _presented(request)
        key = self.keys.find(presented) if presented is not None else None
        return key is not None and Scope.OPERATE in key.scopes


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is; `key` is None where keys are off."""

    key: Key | None
    rate: Rate | None = None

    @property
    def id(self) -> str | None:
        """The public id of the key, for the log."""
        return None if self.key is None else self.key.id

    @property
    def may_give_feedback(self) -> bool:
        """Whether feedback from this caller would be taken."""
        return self.key is None or Scope.FEEDBACK in self.key.scopes

    def reach(self, collection: str | None, where: Filter | None, *, default: str) -> tuple[str, Filter | None]:
        """Which collection to search and by which filter: what was asked for, within what the key allows."""
        if self.key is None:
            return collection or default, where
        return collection_for(self.key.collections, collection, default), narrowed(self.key.filter, where)

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """Count a question among those that the key has under way, or refuse it."""
        if self.key is None or self.rate is None or self.key.max_concurrent is None:
            yield
            return
        if not self.rate.begin(self.key.max_concurrent):
            raise OverLimit(
                f"this key may have {self.key.max_concurrent} questions under way at once, and has: wait for an answer",
                why=Denial.CONCURRENCY,
            )
        try:
            yield
        finally:
            self.rate.end()


def collection_for(listed: list[str], asked: str | None, default: str) -> str:
    """Where to search: as asked, else the default, or the first that the key lists; a key that lists none has all."""
    if asked is None:
        return default if not listed or default in listed else listed[0]
    if listed and asked not in listed:
        # The same words whether or not it exists: that is not this key's to know.
        raise Denied(f"collection: this key may not search {asked!r}", why=Denial.COLLECTION)
    return asked


def narrowed(forced: Filter, asked: Filter | None) -> Filter | None:
    """The filter that is searched with: everything that was asked for, and everything that the key insists on."""
    for name, value in (asked or {}).items():
        # True equals 1 in Python, and must not in a filter.
        if name in forced and (type(value), value) != (type(forced[name]), forced[name]):
            raise Denied(
                f"filter.{name}: this key reads the passages of one {name} only, and not of that one: leave it out",
                why=Denial.FILTER,
            )
    return {**(asked or {}), **forced} or None


_ANYONE = Caller(None)


class Needs(SecurityBase):
    """A dependency: the caller, with a key that has the scope; `browser` takes it as a password too."""

    scheme_name = "key"

    def __init__(self, scope: Scope, *, browser: bool = False, challenge: str = _BEARER) -> None:
        self.model = HTTPBearer(
            description="A key made by `fetchwise keys create`, here or in the header `X-API-Key`. "
            "Not needed where the gateway has no keys."
        )
        self.scope = scope
        self._browser = browser
        self._challenge = challenge

    async def __call__(self, request: Request) -> Caller:
        """Let the request pass, or raise what it lacks."""
        guard: Guard = request.app.state.guard
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
                "this key is not known, or has been revoked", why=Denial.BAD_KEY, challenge=self._challenge
            )
        if self.scope not in key.scopes:
            raise Denied(f"this key may not do that: it has no scope `{self.scope.value}`", why=Denial.SCOPE)
        if key.per_minute is None and key.max_concurrent is None:
            return Caller(key)
        rate = guard.rates.of(key.id)
        if key.per_minute is not None and (wait := rate.take(key.per_minute)):
            raise OverLimit(
                f"this key may send {key.per_minute} requests a minute: try again in {wait:.1f} s",
                why=Denial.RATE,
                retry_after_s=math.ceil(wait),
            )
        return Caller(key, rate)


AnswerCaller = Annotated[Caller, Depends(Needs(Scope.ANSWER))]
FeedbackCaller = Annotated[Caller, Depends(Needs(Scope.FEEDBACK))]
OPERATOR = Depends(Needs(Scope.OPERATE))
# A page, for which a browser can only be asked in its own words, and what that page loads.
OPERATOR_PAGE = Depends(Needs(Scope.OPERATE, browser=True, challenge=_BASIC))
OPERATOR_PAGE_DATA = Depends(Needs(Scope.OPERATE, browser=True))


async def _may_operate(request: Request) -> bool:
    guard: Guard = request.app.state.guard
    return guard.may_operate(request)


MayOperate = Annotated[bool, Depends(_may_operate)]


def _presented(request: Request, *, browser: bool = False) -> str | None:
    """What a request presents as its key; None where it presents nothing."""
    alone = None
    # As they came: making Starlette's headers of them costs more than the rest of the check.
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
    """The password of HTTP Basic; empty where there is none that could be read."""
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""
