"""The shape of every error, on every route."""

from typing import Any

import httpx

from app.api.http.errors import ErrorOut, OpenAIErrorOut

# Our word for an error, and OpenAI's where it has one.
OPENAI_CODES = {
    "unauthorised": "invalid_api_key",
    "prompt_too_long": "context_length_exceeded",
}


def check_shape(response: httpx.Response, status: int, kind: str) -> Any:
    """The error; it must have exactly our three keys, or below /v1/ the four of OpenAI's API.

    On /mcp it is also an error of JSON-RPC.
    """
    there = response.request.url.path.startswith("/v1/")
    assert response.status_code == (400 if there and status == 422 else status), response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    if response.request.url.path == "/mcp":
        assert (body.pop("jsonrpc"), body.pop("id"), body["error"].pop("code")) == ("2.0", None, -32000)
    error: Any = (OpenAIErrorOut if there else ErrorOut).model_validate(body)
    assert error.model_dump() == body
    assert (error.error.code if there else error.error.type) == (OPENAI_CODES.get(kind, kind) if there else kind)
    assert error.error.message
    assert "Traceback" not in response.text
    if status in {429, 503}:
        assert int(response.headers["retry-after"]) >= 1
    return error
