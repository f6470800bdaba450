"""Errors as OpenAI's clients know them: `{"error": {message, type, param, code}}`, and the statuses they expect."""

from collections.abc import Sequence
from typing import Any

# Everything below this path speaks as OpenAI's API does, whatever is wrong.
PREFIX = "/v1/"

_TYPES = {403: "permission_error", 429: "rate_limit_error"}
# Where OpenAI has a word of its own that programs test for; otherwise ours stands.
_CODES = {
    "unauthorised": "invalid_api_key",
    "over_limit": "rate_limit_exceeded",
    "prompt_too_long": "context_length_exceeded",
}


def as_openai(status: int, kind: str, message: str, fields: Sequence[dict[str, str]]) -> tuple[int, dict[str, Any]]:
    """The status and the body of an error that is ours by `kind`; the first wrong field is its `param`."""
    # There a request that does not validate is a 400.
    status = 400 if status == 422 else status
    kind_there = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = fields[0]["field"] if fields and fields[0]["field"] != "body" else None
    return status, {
        "error": {"message": message, "type": kind_there, "param": param, "code": _CODES.get(kind, kind)},
    }
