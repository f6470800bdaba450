"""Headers of every reply: nothing is sniffed, nothing that was answered is kept on the way, and who may call."""

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NO_STORE = (b"cache-control", b"no-store")
_NO_SNIFF = (b"x-content-type-options", b"nosniff")
# What replies of the OpenAI API tell about a decision.
_DECISION = tuple(f"x-fetchwise-{what}" for what in ("id", "action", "k", "reason", "confidence"))
# What OpenAI's client for JavaScript says about itself with every request: without leave, a browser sends none.
_OF_OPENAI_CLIENTS = tuple(
    f"x-stainless-{what}"
    for what in (
        *("lang", "package-version", "os", "arch", "runtime", "runtime-version"),
        *("retry-count", "timeout", "helper-method", "poll-helper", "custom-poll-interval"),
    )
)


class SafeHeaders:
    """Adds what a reply does not say itself: pages and their files have headers of their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                said = {name.lower() for name, _ in headers}
                added = [one for one in (_NO_STORE, _NO_SNIFF) if one[0] not in said]
                message["headers"] = [*headers, *added]
            await send(message)

        await self._app(scope, receive, safe)


def let_in(app: FastAPI, origins: Sequence[str]) -> None:
    """Let pages of these origins call the gateway; without any, browsers keep all others out."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key", "x-request-id", *_OF_OPENAI_CLIENTS],
            expose_headers=["retry-after", "x-request-id", *_DECISION],
        )
