"""The table from exceptions to status codes, and the JSON shape of errors: our own, and OpenAI's below `/v1/`."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Scope

from app.errors import (
    BadRequest,
    ContradictoryRequest,
    DeadlinePassed,
    Denied,
    FetchwiseError,
    LogUnavailable,
    NoPassages,
    NothingToJudge,
    OverLimit,
    Overloaded,
    PromptTooLong,
    ReaderRefused,
    StorageUnavailable,
    Unauthorised,
    UnknownCollection,
    UnknownDecision,
    UnknownModel,
    UpstreamBadReply,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.telemetry.gauges import TrafficMetrics

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
    (ReaderRefused, 422, "reader_refused"),
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
    (StorageUnavailable, 503, "storage_unavailable"),
)
RETRY_AFTER_S = 1
_MEANINGS = {
    400: "The body is not JSON in UTF-8.",
    401: "The key is missing, unknown or revoked.",
    403: "The key, the host or the origin does not allow this; `message` says why.",
    408: "The request took too long to arrive.",
    413: "The body is too large.",
    422: "The request is not valid; `fields` lists the errors.",
    429: "Too many requests; `Retry-After` says when to try again.",
    500: "An unexpected error.",
    503: "An upstream failed, and no answer is available.",
}
# Errors of every route that needs a key.
DENIALS = (401, 403, 429)
_HTTP_TYPES = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
# Every error below this path has the shape of OpenAI's API.
OPENAI_PREFIX = "/v1/"

_OPENAI_TYPES = {403: "permission_error", 429: "rate_limit_error"}
# Codes of OpenAI that programs test for; for other errors the code is our own type.
_OPENAI_CODES = {
    "unauthorised": "invalid_api_key",
    "prompt_too_long": "context_length_exceeded",
}


class FieldProblem(BaseModel):
    """One invalid field."""

    field: str
    message: str


class Problem(BaseModel):
    """What went wrong: `type` for programs, `message` for people."""

    type: str
    message: str
    fields: list[FieldProblem] = []


class ErrorOut(BaseModel):
    """The body of every 4xx and 5xx."""

    error: Problem


class OpenAIProblem(BaseModel):
    """What went wrong; `param` names the invalid field, if there is one."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorOut(BaseModel):
    """The body of every error below `/v1/`."""

    error: OpenAIProblem


def documented(
    *statuses: int, own: Mapping[int, str] | None = None, model: type[BaseModel] = ErrorOut
) -> dict[int | str, dict[str, Any]]:
    """The errors of a route for the OpenAPI document; `own` replaces the usual descriptions."""
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
    openai_type: str | None = None,
) -> JSONResponse:
    """An error response in our shape; below `/v1/` in the shape of OpenAI's API, where `openai_type` is its type."""
    if path.startswith(OPENAI_PREFIX):
        status, body = as_openai(status, kind, message, fields or [])
        body["error"]["type"] = openai_type or body["error"]["type"]
    else:
        body = {"error": {"type": kind, "message": message, "fields": fields or []}}
    return JSONResponse(body, status_code=status, headers=headers)


def as_openai(status: int, kind: str, message: str, fields: Sequence[dict[str, str]]) -> tuple[int, dict[str, Any]]:
    """The status and the body of an error in the shape of OpenAI; `param` is the first invalid field."""
    # OpenAI answers an invalid request with 400.
    status = 400 if status == 422 else status
    kind_there = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = fields[0]["field"] if fields and fields[0]["field"] != "body" else None
    return status, {
        "error": {"message": message, "type": kind_there, "param": param, "code": _OPENAI_CODES.get(kind, kind)},
    }


def explain(error: FetchwiseError, scope: Scope) -> JSONResponse:
    """The response for an error, which is counted; a stream that has begun sends its body as an event."""
    metrics: TrafficMetrics = scope["app"].state.gateway.metrics
    if isinstance(error, UpstreamError):
        metrics.upstream_error(error.upstream, error.kind)
        logger.warning("%s failed (%s): %s", error.upstream, error.kind, error)
    if isinstance(error, Denied):
        metrics.denied(error.why)
    status, kind = next(
        ((status, kind) for known, status, kind in STATUSES if isinstance(error, known)), (500, "internal_error")
    )
    known_wait = error.retry_after_s if isinstance(error, Overloaded | OverLimit | UpstreamError) else None
    headers = {"retry-after": str(known_wait or RETRY_AFTER_S)} if status in {429, 503} else {}
    if isinstance(error, Unauthorised):
        headers["www-authenticate"] = error.challenge
    if isinstance(error, ReaderRefused):
        fields = [{"field": error.param, "message": str(error)}] if error.param else []
        return problem(status, kind, str(error), path=scope["path"], fields=fields, openai_type=error.kind)
    return problem(status, kind, str(error), path=scope["path"], headers=headers)


def install(app: FastAPI) -> None:
    """Make the application answer every exception in this shape."""
    app.add_exception_handler(FetchwiseError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


async def _known(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, FetchwiseError)
    return explain(error, request.scope)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fields = [_field(one) for one in error.errors()]
    message = f"{fields[0]['field']}: {fields[0]['message']}" if fields else "the request is not valid"
    return problem(422, "invalid_request", message, path=request.scope["path"], fields=fields)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = _HTTP_TYPES.get(error.status_code, "http_error")
    headers = dict(error.headers or {})
    return problem(error.status_code, kind, str(error.detail), path=request.scope["path"], headers=headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    logger.error("unexpected error on %s", request.url.path, exc_info=error)
    message = "an unexpected error; see the log of the gateway"
    return problem(500, "internal_error", message, path=request.scope["path"])


def _field(one: Mapping[str, Any]) -> dict[str, str]:
    """One validation error and its field."""
    return {
        "field": ".".join(str(part) for part in one["loc"] if part != "body") or "body",
        "message": str(one["msg"]).removeprefix("Value error, "),
    }
