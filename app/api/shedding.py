"""Refuses questions when there are too many, before anything is read, parsed or looked up for them."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import problem
from app.api.limits import TOO_BUSY, Permits, retry_after_s

_ASKING = ("/answer", "/v1/chat/completions")


@dataclass(frozen=True, slots=True)
class _Canned:
    """A reply that was rendered once."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    async def send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": [*self.headers]})
        await send({"type": "http.response.body", "body": self.body})


class Shedding:
    """Answers 429 to a question for which there is neither a permit nor a place in line.

    The body stays unread: the server discards what still comes of it, and the connection can be used again.
    """

    def __init__(self, app: ASGIApp, *, longest_wait_s: float) -> None:
        self._app = app
        self._replies = _replies(longest_wait_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on."""
        refusal = self._replies.get(scope["path"]) if scope["type"] == "http" else None
        if refusal is not None and scope["method"] == "POST":
            permits: Permits = scope["app"].state.gateway.permits
            if permits.full:
                permits.refuse()
                await refusal.send(send)
                return
        await self._app(scope, receive, send)


def _replies(longest_wait_s: float) -> Mapping[str, _Canned]:
    """The refusal for every path on which questions are asked, each in the shape that errors have there."""
    headers = {"retry-after": str(retry_after_s(longest_wait_s))}
    replies = {path: problem(429, "overloaded", TOO_BUSY, path=path, headers=headers) for path in _ASKING}
    return {path: _Canned(one.status_code, one.raw_headers, bytes(one.body)) for path, one in replies.items()}
