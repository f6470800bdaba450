"""Servers that repeat what they were sent: no error message contains it."""

import json
from typing import Any

import pytest
from aiohttp import web

from app.core.available import Passage
from app.core.prompts import DEFAULT
from app.errors import UpstreamError
from app.ports import Prompt
from app.upstream.embedders.openai import OpenAIEmbedder
from app.upstream.readers.openai import OpenAIReader
from tests.wire.servers import direct, handling

ASKED = Prompt(
    "When does the vault of Ruritania open?",
    (Passage("p", "Vaults", "The vault of Ruritania opens at dawn with the silver key."),),
)


def echo(status: int, shape: str) -> Any:
    """A handler that answers with the texts of the request, as an error, as a plain body or in a stream."""

    async def handle(request: web.Request) -> web.StreamResponse:
        sent = await request.text()
        body = json.loads(sent) if sent else {}
        texts = [one["content"] for one in body.get("messages", ())] + list(body.get("input", ()))
        said = f"\x1b[2Jcannot handle:\n{' '.join(texts)}"
        error = {"error": {"message": said, "type": said, "param": said, "code": said}}
        if shape == "stream":
            return web.Response(text=f"data: {json.dumps(error)}\n\n", content_type="text/event-stream")
        return web.Response(status=status, text=said if shape == "plain" else json.dumps(error))

    return handle


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("shape", ["plain", "error"])
@pytest.mark.parametrize("ask", ["generate", "stream", "embed"])
async def test_an_error_that_repeats_the_request(status: int, shape: str, ask: str) -> None:
    """Neither the question nor a passage is in the message; the status is, or the reason."""
    message = await failure(echo(status, shape), ask)
    assert "vault" not in message.lower()
    assert message.isprintable()
    assert str(status) in message or "no such path" in message


async def test_an_error_in_a_stream_that_repeats_the_request() -> None:
    """An error after the stream has begun is as silent."""
    message = await failure(echo(200, "stream"), "stream")
    assert message == "the reader failed while answering (no type)"


async def failure(handle: Any, ask: str) -> str:
    """The message of the error that a call to this server raises."""
    async with handling(handle) as url:
        reader = OpenAIReader(url, "model", prompts=DEFAULT)
        # So that the stream asks for nothing else first.
        reader._context = 0
        embedder = OpenAIEmbedder(url, "model", link=direct("embedder"))
        calls = {
            "generate": lambda: reader.generate(ASKED, max_tokens=9),
            "stream": lambda: anext(reader.stream(ASKED, max_tokens=9)),
            "embed": lambda: embedder.embed_query(ASKED.question),
        }
        try:
            with pytest.raises(UpstreamError) as caught:
                await calls[ask]()
        finally:
            await reader.close()
            await embedder.close()
    return str(caught.value)
