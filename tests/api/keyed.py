"""A gateway with keys, for the tests of what they allow."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.access.keys import Key, Scope
from app.errors import Denial
from tests.fakes.gateway import FakeGateway
from tests.fakes.keys import bearer, make_key
from tests.waiting import until

ASKED = {"question": "What is the capital of France?"}
CHATTED = {"model": "fetchwise", "messages": [{"role": "user", "content": ASKED["question"]}]}
BODIES: dict[str, Any] = {
    "/answer": ASKED,
    "/v1/chat/completions": CHATTED,
    "/v1/responses": {"model": "fetchwise", "input": ASKED["question"]},
    "/v1/embeddings": {"model": "fetchwise", "input": ASKED["question"]},
    "/mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask", "arguments": ASKED}},
    "/feedback": {"id": "a" * 24, "correct": True},
}
# What each route wants; None: nothing.
NEEDS: dict[tuple[str, str], Scope | None] = {
    ("POST", "/answer"): Scope.ANSWER,
    ("POST", "/v1/chat/completions"): Scope.ANSWER,
    ("POST", "/v1/responses"): Scope.ANSWER,
    ("POST", "/v1/embeddings"): Scope.ANSWER,
    ("POST", "/mcp"): Scope.ANSWER,
    ("GET", "/v1/models"): Scope.ANSWER,
    ("GET", "/v1/models/fetchwise"): Scope.ANSWER,
    ("POST", "/feedback"): Scope.FEEDBACK,
    ("GET", "/metrics"): Scope.OPERATE,
    ("GET", "/metrics/"): Scope.OPERATE,
    ("GET", "/breakeven"): Scope.OPERATE,
    ("GET", "/calibrators"): Scope.OPERATE,
    ("GET", "/audit"): Scope.OPERATE,
    ("GET", "/dashboard"): Scope.OPERATE,
    ("GET", "/dashboard/data"): Scope.OPERATE,
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
    ("GET", "/"): None,
    ("GET", "/docs"): None,
    ("GET", "/static/ask.js"): None,
    ("GET", "/openapi.json"): None,
}


def as_asked(path: str) -> str:
    """The path of a route with a value for its parameter."""
    return path.replace("{name}", "ask.js").replace("{model}", "fetchwise")


@dataclass(frozen=True)
class Keyed:
    """A gateway, the file with its keys, and the operator's key."""

    gateway: FakeGateway
    path: Path
    operator: str = ""

    def make(self, *scopes: Scope, **chosen: Any) -> tuple[Key, str]:
        """Create a key, by default with the scopes `answer` and `feedback`."""
        return make_key(self.path, **(chosen | ({"scopes": list(scopes)} if scopes else {})))

    async def known(self, *presented: str) -> None:
        """Wait until the gateway has read these keys."""
        keys = self.gateway.app.state.gateway.guard.keys
        await until(lambda: all(keys.find(one) for one in presented))

    async def send(self, method: str, path: str, presented: str | None = None, **more: Any) -> httpx.Response:
        """One request; a POST has a body that is valid."""
        headers = more.pop("headers", {}) | (bearer(presented) if presented else {})
        body = {"json": BODIES[path] | more.pop("json", {})} if method == "POST" else {}
        return await self.gateway.client.request(method, path, headers=headers, **body, **more)

    async def ask(self, presented: str, **more: Any) -> httpx.Response:
        """One question."""
        return await self.send("POST", "/answer", presented, json=more)

    async def denied(self) -> dict[str, float]:
        """The values of the metric, by reason."""
        lines = (await self.send("GET", "/metrics", self.operator)).text.splitlines()
        counted = dict(line.rsplit(" ", 1) for line in lines if line.startswith("fetchwise_denied_total{"))
        return {why.value: float(counted[f'fetchwise_denied_total{{reason="{why.value}"}}']) for why in Denial}


def basic(password: str, user: str = "me") -> dict[str, str]:
    """The HTTP Basic header with this password."""
    return {"authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
