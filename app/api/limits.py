"""Bounds on what is taken on: permits for questions, and a limit on the size of a body."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import problem
from app.errors import Overloaded


class Permits:
    """As many questions at once as there are permits; the next one is refused, not queued."""

    def __init__(
        self,
        count: int,
        *,
        on_began: Callable[[], None],
        on_ended: Callable[[], None],
        on_shed: Callable[[], None],
    ) -> None:
        self._free = count
        self._on_began = on_began
        self._on_ended = on_ended
        self._on_shed = on_shed

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a permit, or raise Overloaded at once."""
        if self._free == 0:
            self._on_shed()
            raise Overloaded("the gateway is working on as many questions as it may: try again in a second")
        self._free -= 1
        self._on_began()
        try:
            yield
        finally:
            self._free += 1
            self._on_ended()


class BodyLimit:
    """Answers 413 to a body over the limit: by its declared length, or as soon as that much has come in."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting what it receives."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_large = f"the body is larger than {self._max_bytes} bytes"
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await problem(413, "body_too_large", too_large)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                # Of this kind, because parsers of the body take any other for a mistake in it.
                raise HTTPException(413, too_large)
            return message

        await self._app(scope, counted, send)
