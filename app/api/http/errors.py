"""The one table from exceptions to statuses, and the JSON shape of every error: ours, and OpenAI's below `/v1/`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from app.errors import (
    BadRequest,
    ContradictoryRequest,
    DeadlinePassed,
    Denial,
    Denied,
    FetchwiseError,
    LogUnavailable,
    NoPassages,
    NothingToJudge,
    OverLimit,
    Overloaded,
    PromptTooLong,
    Unauthorised,
    UnknownCollection,
    UnknownDecision,
    UnknownModel,
    UpstreamBadReply,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)

logger = logging.getLogger(__name__)

# Most specific first: the first that matches wins.
STATUSES: tuple[tuple[type[FetchwiseError], int, str], ...] = (
    (UnknownCollection, 404, "unknown_collection"),
    (UnknownDecision, 404, "unknown_decision"),
    (UnknownModel, 404, "model_not_found"),
    (NoPassages, 404, "no_passages"),
    (NothingToJudge, 409, "nothing_to_judge"),
    (ContradictoryRequest, 422, "contradictory_request"),
    (PromptTooLong, 422, "prompt_too_long"),
    (BadRequest, 422, "invalid_request"),
    (Unauthorised, 401, "unauthorised"),
    (OverLimit, 429, "rate_limit_exceeded"),
    (Denied, 403, "denied"),
    (Overloaded, 429, "overloaded"),
    (DeadlinePassed, 503, "deadline_passed"),
    (UpstreamTimeout, 503, "upstream_timeout"),
    (UpstreamUnavailable, 503, "upstream_unavailable"),
    (UpstreamBadReply, 503, "upstream_bad_reply"),
    (UpstreamError, 503, "upstream_error"),
    (LogUnavailable, 503, "log_unavailable"),
)
RETRY_AFTER_S = 1
_MEANINGS = {
    400: "The body is not JSON in UTF-8.",
    401: "Keys are asked for, and none that is known was presented.",
    403: "The key does not allow this: `message` says what.",
    408: "The request took too long to come in.",
    413: "The body is too large.",
    422: "The request is not valid; `fields` says where.",
    429: "Too much at once; `Retry-After` says when to try again.",
    500: "An unforeseen error.",
    503: "A part behind the gateway failed, and no honest answer was left.",
}
# What every route can answer that wants a key.
DENIALS = (401, 403, 429)
_HTTP_TYPES = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
# Everything below this path speaks as OpenAI's API does, whatever is wrong.
OPENAI_PREFIX = "/v1/"

_OPENAI_TYPES = {403: "permission_error", 429: "rate_limit_error"}
# Where OpenAI has a word of its own that programs test for; otherwise ours stands.
_OPENAI_CODES = {
    "unauthorised": "invalid_api_key",
    "prompt_too_long": "context_length_exceeded",
}


class FieldProblem(BaseModel):
    """One field that is wrong."""

    field: str
    message: str


class Problem(BaseModel):
    """What went wrong, in a word that programs can test and a sentence that people can read."""

    type: str
    message: str
    fields: list[FieldProblem] = []


class ErrorOut(BaseModel):
    """The one shape of every 4xx and 5xx."""

    error: Problem


class OpenAIProblem(BaseModel):
    """What went wrong; `param` names the field, if one is to blame."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorOut(BaseModel):
    """The shape of every error below `/v1/`."""

    error: OpenAIProblem


def documented(
    *statuses: int, own: Mapping[int, str] | None = None, model: type[BaseModel] = ErrorOut
) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI document says of the errors of a route; `own` are those that mean something special there."""
    said = {status: _MEANINGS[status] for status in statuses} | dict(own or {})
    return {status: {"model": model, "description": meaning} for status, meaning in said.items()}


def problem(
    status: int,
    kind: str,
    message: str,
    *,
    path: str,
    fields: list[dict[str, str]] | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """An error response in the one shape; below `/v1/`, in that of OpenAI's API."""
    if path.startswith(OPENAI_PREFIX):
        status, body = as_openai(status, kind, message, fields or [])
    else:
        body = {"error": {"type": kind, "message": message, "fields": fields or []}}
    return JSONResponse(body, status_code=status, headers=headers)


def as_openai(status: int, kind: str, message: str, fields: Sequence[dict[str, str]]) -> tuple[int, dict[str, Any]]:
    """The status and the body of an error that is ours by `kind`; the first wrong field is its `param`."""
    # There a request that does not validate is a 400.
    status = 400 if status == 422 else status
    kind_there = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = fields[0]["field"] if fields and fields[0]["field"] != "body" else None
    return status, {
        "error": {"message": message, "type": kind_there, "param": param, "code": _OPENAI_CODES.get(kind, kind)},
    }


def install(
    app: FastAPI, *, on_upstream_error: Callable[[str, str], None], on_denied: Callable[[Denial], None]
) -> None:
    """Teach the application to answer every exception in the one shape."""

    def explain(error: FetchwiseError, path: str) -> JSONResponse:
        if isinstance(error, UpstreamError):
            on_upstream_error(error.upstream, error.kind)
            logger.warning("%s failed (%s): %s", error.upstream, error.kind, error)
        if isinstance(error, Denied):
            on_denied(error.why)
        status, kind = next(
            ((status, kind) for known, status, kind in STATUSES if isinstance(error, known)), (500, "internal_error")
        )
        told = error.retry_after_s if isinstance(error, Overloaded | OverLimit | UpstreamError) else None
        retry_after = told or RETRY_AFTER_S
        headers = {"retry-after": str(retry_after)} if status in {429, 503} else {}
        if isinstance(error, Unauthorised):
            headers["www-authenticate"] = error.challenge
        return problem(status, kind, str(error), path=path, headers=headers)

    async def known(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, FetchwiseError)
        return explain(error, request.scope["path"])

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        fields = [_field(one) for one in error.errors()]
        message = f"{fields[0]['field']}: {fields[0]['message']}" if fields else "the request is not valid"
        return problem(422, "invalid_request", message, path=request.scope["path"], fields=fields)

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        kind = _HTTP_TYPES.get(error.status_code, "http_error")
        headers = dict(error.headers or {})
        return problem(error.status_code, kind, str(error.detail), path=request.scope["path"], headers=headers)

    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        logger.error("unforeseen error on %s", request.url.path, exc_info=error)
        return problem(500, "internal_error", "an unforeseen error; the log has its trace", path=request.scope["path"])

    # For a reply that has begun, in which an error can only be an event.
    app.state.explain = explain
    app.add_exception_handler(FetchwiseError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unforeseen)


def _field(one: Mapping[str, Any]) -> dict[str, str]:
    """One mistake that validation found, and where."""
    return {
        "field": ".".join(str(part) for part in one["loc"] if part != "body") or "body",
        "message": str(one["msg"]).removeprefix("Value error, "),
    }
