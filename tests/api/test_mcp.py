"""`/mcp`: the Model Context Protocol, under the keys and limits of every route."""

from typing import Any

import httpx

from app.errors import UpstreamUnavailable
from tests.fakes.gateway import ASKED, FakeGateway
from tests.fakes.keys import bearer, make_key

from .conftest import Open
from .keyed import Keyed
from .test_openai import CONFIDENT, HOPELESS

ACCEPT = {"accept": "application/json, text/event-stream"}
# Of a session, and of requests that stand alone.
OLDER, NEWER = "2025-06-18", "2026-07-28"


async def post(gateway: FakeGateway, method: str, params: Any = None, **headers: str) -> httpx.Response:
    """The reply to a message."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    return await gateway.client.post("/mcp", json=body, headers=ACCEPT | headers)


async def call(gateway: FakeGateway, tool: str, key: str | None = None, **arguments: Any) -> dict[str, Any]:
    """The result of a tool."""
    headers = bearer(key) if key else {}
    reply = await post(gateway, "tools/call", {"name": tool, "arguments": arguments}, **headers)
    assert reply.status_code == 200, reply.text
    return dict(reply.json()["result"])


async def test_a_session_is_not_needed(gateway: FakeGateway) -> None:
    """A client may begin one, but gets no id, and every request is answered alone."""
    hello = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    begun = await post(gateway, "initialize", hello)
    assert begun.json()["result"]["protocolVersion"] == OLDER
    assert begun.json()["result"]["serverInfo"]["name"] == "fetchwise"
    assert "mcp-session-id" not in begun.headers
    listed = await post(gateway, "tools/list", **{"mcp-protocol-version": OLDER})
    tools = {tool["name"]: tool["inputSchema"] for tool in listed.json()["result"]["tools"]}
    assert list(tools) == ["ask", "search"]
    assert "stream" not in tools["ask"]["properties"]
    assert (tools["ask"]["required"], tools["search"]["required"]) == (["question"], ["query"])
    assert (await gateway.client.get("/mcp", headers=ACCEPT)).status_code == 405


async def test_ask_gives_the_receipt(gateway: FakeGateway) -> None:
    """The text is the answer with its sources, or why there is none; the data is the receipt."""
    gateway.reader.says(ASKED, "It is Paris.", sure=CONFIDENT)
    result = await call(gateway, "ask", question=ASKED, retrieval="required")
    assert result["isError"] is False
    text = result["content"][0]["text"]
    assert text.startswith("It is Paris.\n[1] France")
    assert result["structuredContent"]["citations"][0]["title"] == "France"
    gateway.reader.says(ASKED, "It is Paris.", sure=HOPELESS)
    result = await call(gateway, "ask", question=ASKED)
    assert result["content"][0]["text"].startswith("I do not know")
    assert result["structuredContent"]["abstained"] is True


async def test_search_gives_passages(gateway: FakeGateway) -> None:
    """Passages with their sources, best first, and none if nothing matches; nothing is read."""
    result = await call(gateway, "search", query="capital of Italy", limit=2)
    assert result["structuredContent"]["passages"][0]["title"] == "Italy"
    assert len(result["structuredContent"]["passages"]) == 2
    assert "The capital of Italy is Italville." in result["content"][0]["text"]
    nothing = await call(gateway, "search", query="capital of Italy", filter={"lang": "xx"})
    assert (nothing["isError"], nothing["structuredContent"]) == (False, {"passages": []})
    assert gateway.reader.calls == 0


async def test_errors_are_results_of_the_tool(gateway: FakeGateway) -> None:
    """The agent reads what was wrong, in the words of every route; it is counted as there."""
    for tool, arguments, says in (
        ("ask", {"question": " "}, "empty"),
        ("ask", {"question": "?" * 999}, "limit"),
        ("ask", {"question": ASKED, "colour": "red"}, "colour"),
        ("search", {}, "query"),
        ("search", {"query": "x", "limit": 1000}, "limit"),
        ("search", {"query": "?" * 999}, "longer than"),
        ("search", {"query": "x", "collection": "none"}, "none"),
        ("delete", {}, "ask, search"),
    ):
        result = await call(gateway, tool, **arguments)
        assert result["isError"] is True
        assert says in result["content"][0]["text"]
    gateway.vectors.fail_with = UpstreamUnavailable("vectors", "down")
    result = await call(gateway, "search", query="x")
    assert result["structuredContent"]["error"]["type"] == "upstream_unavailable"
    assert await gateway.metric("upstream_errors_total", upstream="vectors", kind="unavailable") == 1


async def test_keys_and_tenants(keyed: Keyed) -> None:
    """The key's scope, limit, collections and filter hold, for both tools."""
    assert (await post(keyed.gateway, "tools/list")).status_code == 401
    assert (await post(keyed.gateway, "tools/list", **bearer(keyed.operator))).status_code == 403
    _, tenant = make_key(keyed.path, "tenant", filter={"number": 2}, collections=["demo"])
    _, slow = make_key(keyed.path, "slow", per_minute=1)
    await keyed.known(tenant, slow)
    found = await call(keyed.gateway, "search", tenant, query="capital of France")
    assert [one["title"] for one in found["structuredContent"]["passages"]] == ["Italy"]
    for tool, text in (("ask", "question"), ("search", "query")):
        refused = await call(keyed.gateway, tool, tenant, **{text: "What?", "collection": "other"})
        assert "may not search 'other'" in refused["content"][0]["text"]
    await post(keyed.gateway, "tools/list", **bearer(slow))
    limited = await post(keyed.gateway, "tools/list", **bearer(slow))
    assert limited.status_code == 429
    assert int(limited.headers["retry-after"]) >= 1
    assert "requests per minute" in limited.json()["error"]["message"]
    assert limited.json()["jsonrpc"] == "2.0"


async def test_other_sites_and_too_many_questions(open_gateway: Open) -> None:
    """Pages of another site may not call, bodies are limited, and a question needs a permit."""
    async with open_gateway(artifact={}, max_in_flight=1, queue=0, max_body_bytes=2000) as gateway:
        assert (await post(gateway, "tools/list", origin="https://evil.example")).status_code == 403
        assert (await post(gateway, "tools/list", host="evil.example")).status_code == 403
        assert (await post(gateway, "tools/list", {"x": "y" * 3000})).status_code == 413
        async with gateway.busy():
            for tool, text in (("ask", "question"), ("search", "query")):
                refused = await call(gateway, tool, **{text: "What?"})
                assert refused["structuredContent"]["error"]["type"] == "overloaded"


async def test_ask_shows_the_full_answer(gateway: FakeGateway) -> None:
    """The text is the answer of the receipt."""
    result = await call(gateway, "ask", question=ASKED, style="full", policy="always")
    assert result["structuredContent"]["style"] == "full"
    assert result["content"][0]["text"].startswith(result["structuredContent"]["answer"])
