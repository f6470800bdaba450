"""Clients of every kind at a steady rate: they ask, stream, disconnect, give feedback, open pages, and make errors."""

import asyncio
import json
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from bench.soak.upstream import SLOWLY, Says

PATIENCE_S = 60.0
# Less than the server's keep-alive, so no connection is used while the server closes it.
_KEEP_ALIVE_S = 2.0
_ACTIONS = {Says.K0: "k0", Says.K1: "k1", Says.K5: "k5", Says.ABSTAIN: "abstain"}
# Reasons that may lead to another action than the question calls for, while an upstream fails.
_DEGRADED = {"retrieval_failed", "degraded", "not_calibrated", "no_signal"}
_COMPLETIONS = "/v1/chat/completions"

Ask = Callable[[], Awaitable[str]]


class Clients:
    """Sends requests of randomly drawn kinds, and counts the outcomes of each kind."""

    def __init__(self, url: str, *, caller: str, operator: str, seed: int = 13) -> None:
        self.outcomes: dict[str, Counter[str]] = {}
        self.sent = 0
        self._rng = random.Random(seed)
        self._judgeable: deque[str] = deque(maxlen=500)
        self._caller = {"authorization": f"Bearer {caller}"}
        self._operator = {"authorization": f"Bearer {operator}"}
        self._session = aiohttp.ClientSession(
            url,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=PATIENCE_S),
        )
        self._kinds: list[tuple[int, str, Ask]] = [
            *((12, f"asks {said.name}", self._asking(said)) for said in Says),
            *((5, f"listens {said.name}", self._listening(said)) for said in Says),
            (6, "leaves in mid-stream", self._leaving_the_stream),
            (3, "leaves before the answer", self._leaving),
            (8, "judges", self._judging),
            (4, "sends invalid JSON", self._expecting(400, "/answer", b'{"question": ', self._caller)),
            (4, "sends a wrong field", self._expecting(422, "/answer", b'{"q": 1}', self._caller)),
            (3, "has no key", self._expecting(401, "/answer", b'{"question": "Who?"}')),
            (2, "has the wrong key", self._expecting(403, "/answer", b'{"question": "Who?"}', self._operator)),
            (1, "looks at the dashboard", self._looking("/dashboard/data")),
            (1, "looks at break-even", self._looking("/breakeven")),
            # No more decisions than the warm-up makes: the memory of an audit grows with them.
            (1, "looks at the audit", self._looking("/audit?limit=500")),
            (1, "looks at calibrators", self._looking("/calibrators")),
        ]

    async def begin(self) -> None:
        """Read what the gateway offers."""
        async with self._session.get("/openapi.json") as response:
            paths = (await response.json())["paths"]
        if _COMPLETIONS in paths:
            self._kinds += [(5, "completes", self._completing), (3, "completes by stream", self._completing_by_stream)]

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def metrics(self) -> str:
        """A scrape."""
        async with self._session.get("/metrics", headers=self._operator) as response:
            response.raise_for_status()
            return await response.text()

    async def one(self) -> None:
        """Send one request and count its outcome."""
        (drawn,) = self._rng.choices(self._kinds, [weight for weight, _, _ in self._kinds])
        _, kind, ask = drawn
        self.sent += 1
        try:
            outcome = await ask()
        except TimeoutError:
            outcome = "hung"
        except aiohttp.ClientError as error:
            outcome = f"unexpected: {type(error).__name__}"
        self.outcomes.setdefault(kind, Counter())[outcome] += 1

    def _question(self, said: Says, *more: str) -> str:
        return " ".join(["What is", said.value, *more, f"the chief town of island {self._rng.randrange(10**6)}?"])

    def _asking(self, said: Says) -> Ask:
        async def ask() -> str:
            body = {"question": self._question(said), "tags": {"kind": said.name}}
            async with self._session.post("/answer", json=body, headers=self._caller) as response:
                if response.status != 200:
                    return _refused(response.status)
                return self._report(await response.json(), said)

        return ask

    def _listening(self, said: Says) -> Ask:
        async def ask() -> str:
            # Half of them receive each token as it comes; the others only what can no longer be withheld.
            whole = said is Says.ABSTAIN or self._rng.random() < 0.5
            body = {"question": self._question(said), "stream": True, "abstain": whole}
            async with self._session.post("/answer", json=body, headers=self._caller) as response:
                if response.status != 200:
                    return _refused(response.status)
                last = (await response.read()).strip().rpartition(b"\n\n")[2]
            name, _, data = last.partition(b"\ndata: ")
            if name == b"event: error":
                return "refused in mid-stream"
            return self._report(json.loads(data), said)

        return ask

    def _report(self, receipt: dict[str, Any], said: Says) -> str:
        self._judgeable.append(receipt["id"])
        if receipt["action"] == _ACTIONS[said]:
            return "as expected"
        reason = receipt["decision"]["reason"]
        return f"degraded: {reason}" if reason in _DEGRADED else f"unexpected: {receipt['action']} {reason}"

    async def _leaving_the_stream(self) -> str:
        body = {"question": self._question(Says.K5, SLOWLY), "stream": True, "abstain": False}
        async with self._session.post("/answer", json=body, headers=self._caller) as response:
            if response.status != 200:
                return _refused(response.status)
            await response.content.readany()
            response.close()
        return "as expected"

    async def _leaving(self) -> str:
        body = {"question": self._question(Says.K1, SLOWLY)}
        try:
            async with asyncio.timeout(0.1), self._session.post("/answer", json=body, headers=self._caller) as response:
                return _refused(response.status)
        except TimeoutError:
            return "as expected"

    async def _judging(self) -> str:
        if not self._judgeable:
            return "nothing to judge yet"
        body = {"id": self._rng.choice(self._judgeable), "correct": self._rng.random() < 0.8}
        async with self._session.post("/feedback", json=body, headers=self._caller) as response:
            # 409: it was an abstention.
            return "as expected" if response.status in {200, 409} else _refused(response.status)

    async def _completing(self) -> str:
        async with self._session.post(_COMPLETIONS, json=self._completion(), headers=self._caller) as response:
            return "as expected" if response.status == 200 else _refused(response.status)

    async def _completing_by_stream(self) -> str:
        body = self._completion() | {"stream": True}
        async with self._session.post(_COMPLETIONS, json=body, headers=self._caller) as response:
            if response.status != 200:
                return _refused(response.status)
            done = (await response.read()).endswith(b"data: [DONE]\n\n")
        return "as expected" if done else "refused in mid-stream"

    def _completion(self) -> dict[str, Any]:
        content = self._question(self._rng.choice([Says.K0, Says.K1, Says.K5]))
        return {"model": "fetchwise", "messages": [{"role": "user", "content": content}]}

    def _expecting(self, status: int, path: str, body: bytes, presented: dict[str, str] | None = None) -> Ask:
        headers = {"content-type": "application/json"} | (presented or {})

        async def ask() -> str:
            async with self._session.post(path, headers=headers, data=body) as response:
                return "as expected" if response.status == status else _refused(response.status)

        return ask

    def _looking(self, path: str) -> Ask:
        async def ask() -> str:
            async with self._session.get(path, headers=self._operator) as response:
                return "as expected" if response.status == 200 else _refused(response.status)

        return ask


def _refused(status: int) -> str:
    """Overload and a failed upstream are expected; nothing else is."""
    return f"refused: {status}" if status in {429, 503} else f"unexpected: {status}"
