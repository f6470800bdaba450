"""`/v1/embeddings`: the gateway's embedder."""

import asyncio
import base64
import struct
from typing import Any

import httpx
import pytest

from app.errors import UpstreamTimeout
from tests.fakes.gateway import FakeGateway

from .conftest import Open


async def embed(gateway: FakeGateway, **body: Any) -> httpx.Response:
    """The reply to a request."""
    return await gateway.client.post("/v1/embeddings", json={"model": "fetchwise", "input": "Paris"} | body)


async def test_vectors_of_texts(gateway: FakeGateway) -> None:
    """One text or several, in order, as numbers or in base64."""
    several = (await embed(gateway, input=["Paris", "Rome"])).json()
    assert [one["index"] for one in several["data"]] == [0, 1]
    first = (await embed(gateway)).json()["data"][0]["embedding"]
    assert first == several["data"][0]["embedding"] == list((await gateway.embedder.embed_passages(["Paris"]))[0])
    packed = (await embed(gateway, encoding_format="base64")).json()["data"][0]["embedding"]
    unpacked = struct.unpack(f"<{len(first)}f", base64.b64decode(packed))
    assert unpacked == pytest.approx(first, abs=1e-6)
    assert several["model"] == gateway.embedder.name


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"input": [[1, 2, 3]]}, 400, "not tokens"),
        ({"input": [1, 2]}, 400, "not tokens"),
        ({"input": []}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"dimensions": 7}, 400, "dimensions"),
        ({"model": "text-embedding-3-small"}, 404, "'fetchwise'"),
    ],
)
async def test_wrong_requests(gateway: FakeGateway, body: dict[str, Any], status: int, says: str) -> None:
    """Each is refused with the reason."""
    reply = await embed(gateway, **body)
    assert reply.status_code == status
    assert says in reply.json()["error"]["message"]


async def test_the_limits_of_questions_apply(open_gateway: Open) -> None:
    """It needs a permit, and a failure of the embedder is that of an upstream."""
    async with open_gateway(artifact={}, max_in_flight=1, queue=0) as gateway:
        async with gateway.busy():
            assert (await embed(gateway)).status_code == 429
        gateway.embedder.fail_with = UpstreamTimeout("embedder", "too slow")
        assert (await embed(gateway)).json()["error"]["code"] == "upstream_timeout"


async def test_too_many_texts_for_the_time(open_gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline of the server ends the work."""
    async with open_gateway(artifact={}, request_timeout_s=0.05) as gateway:
        monkeypatch.setattr(gateway.embedder, "embed_passages", lambda _: asyncio.Event().wait())
        reply = await embed(gateway)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "deadline_passed")
