"""The `mcp` client, over streamable HTTP, with the newest protocol and with an older one."""

import asyncio
from typing import Any

import httpx2
from mcp import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client
from scenarios import QUESTION, UNSURE, abstains, raises, report, says_something


def transport(gateway: Any, key: str | None = None) -> Any:
    bearer = {"authorization": f"Bearer {key or gateway['key']}"}
    return streamable_http_client(gateway["url"] + "/mcp", http_client=httpx2.AsyncClient(headers=bearer, timeout=240))


async def called(gateway: Any, tool: str, arguments: dict[str, Any], key: str | None = None) -> Any:
    async with Client(transport(gateway, key)) as client:
        return await client.call_tool(tool, arguments)


def ask(gateway: Any) -> None:
    result = asyncio.run(called(gateway, "ask", {"question": QUESTION}))
    assert not result.is_error
    says_something(result.content[0].text)
    assert result.structured_content["decision"]["steps"]


def search(gateway: Any) -> None:
    result = asyncio.run(called(gateway, "search", {"query": QUESTION, "limit": 2}))
    assert not result.is_error
    assert len(result.structured_content["passages"]) == 2
    assert "Jamaica" in result.content[0].text


def tools(gateway: Any) -> None:
    async def listed() -> list[str]:
        async with Client(transport(gateway)) as client:
            return [tool.name for tool in (await client.list_tools()).tools]

    assert asyncio.run(listed()) == ["ask", "search"]


def older_protocol(gateway: Any) -> None:
    async def asked() -> Any:
        async with transport(gateway) as (read, write, *_), ClientSession(read, write) as session:
            await session.initialize()
            return await session.call_tool("ask", {"question": QUESTION})

    says_something(asyncio.run(asked()).content[0].text)


def abstention(gateway: Any) -> None:
    result = asyncio.run(called(gateway, "ask", {"question": UNSURE}))
    abstains(result.content[0].text)
    assert result.structured_content["abstained"] is True


def rate_limit(gateway: Any) -> None:
    key = gateway["limited"].pop()
    error = raises(BaseException, lambda: asyncio.run(called(gateway, "ask", {"question": QUESTION}, key)))
    assert "requests per minute: try again in" in repr(error), repr(error)


report(tools, ask, search, older_protocol, abstention, rate_limit)
