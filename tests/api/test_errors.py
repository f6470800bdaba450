"""Every 4xx and 5xx has the same shape, on every route, with a message that says what to do."""

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes.gateway import ASKED, FakeGateway

from .replies import check_shape

CHAT = "/v1/chat/completions"
CHATTED: dict[str, Any] = {"model": "fetchwise", "messages": [{"role": "user", "content": ASKED}]}


@dataclass(frozen=True)
class Case:
    """An invalid request and its expected error."""

    status: int
    kind: str
    says: str = ""
    method: str = "POST"
    path: str = "/answer"
    body: Any = None
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


def invalid(says: str, **body: Any) -> Case:
    """An invalid body."""
    return Case(422, "invalid_request", says, body={"question": ASKED} | body)


def raw(content: bytes, status: int = 422, says: str = "", **headers: str) -> Case:
    """A body that is not JSON, or not an object."""
    sent = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return Case(status, "invalid_request", says, content=content, headers=sent)


DEEP = b"[" * 2000 + b"]" * 2000
CASES: dict[str, Case] = {
    "unknown field": invalid("colour", colour="red"),
    "unknown field of an odd name": invalid("", **{"\n\x00\x80": 1}),
    "no question": Case(422, "invalid_request", "question", body={}),
    "question null": invalid("question", question=None),
    "question empty": invalid("question", question=""),
    "question blank": invalid("empty", question=" \n\t "),
    "question too long": invalid("200", question="x" * 201),
    "question a number": invalid("question", question=7),
    "question a list": invalid("question", question=[ASKED]),
    "control character": invalid("U+0000", question="What\x00?"),
    "escape character": invalid("U+001B", question="What \x1b[31m?"),
    "C1 control character": invalid("U+0085", question="What\x85?"),
    # JSON of Unicode text has none: the parser says where.
    "lone surrogate": raw(b'{"question": "What \\ud800?"}', 400, "hex escape"),
    "lone surrogate in a tag": raw(b'{"question": "x", "tags": {"a": "\\ud800"}}', 400, "hex escape"),
    "lone surrogate in a field's name": raw(b'{"question": "x", "\\ud800": "a"}', 400, "hex escape"),
    "policy unknown": invalid("policy", policy="greedy"),
    "retrieval unknown": invalid("retrieval", retrieval="maybe"),
    "abstain a string": invalid("abstain", abstain="yes"),
    "abstain a number": invalid("abstain", abstain=1),
    "abstain null": invalid("abstain", abstain=None),
    "collection empty": invalid("collection", collection=""),
    "collection too long": invalid("collection", collection="c" * 65),
    "filter a list": invalid("filter", filter=["lang"]),
    "filter nested": invalid("filter", filter={"lang": {"not": "en"}}),
    "filter a fraction": invalid("filter", filter={"year": 1.5}),
    "filter null": invalid("filter", filter={"year": None}),
    "filter too long": invalid("filter", filter={f"f{n}": n for n in range(17)}),
    "max_tokens zero": invalid("max_tokens", max_tokens=0),
    "max_tokens a string": invalid("max_tokens", max_tokens="24"),
    "max_tokens a fraction": invalid("max_tokens", max_tokens=2.5),
    "max_tokens not a number": raw(b'{"question": "x", "max_tokens": NaN}', says="max_tokens"),
    "stream": invalid("stream", stream="yes"),
    "tags a number": invalid("tags", tags={"team": 7}),
    "too many tags": invalid("tags", tags={f"t{n}": "x" for n in range(17)}),
    "tag's name too long": invalid("tags", tags={"x" * 65: "y"}),
    "timeout_ms zero": invalid("timeout_ms", timeout_ms=0),
    "timeout_ms too long": invalid("timeout_ms", timeout_ms=600_001),
    "timeout_ms a string": invalid("timeout_ms", timeout_ms="500"),
    "timeout_ms a fraction": invalid("timeout_ms", timeout_ms=0.5),
    "timeout_ms a truth": invalid("timeout_ms", timeout_ms=True),
    "tag too long": invalid("tags", tags={"team": "x" * 129}),
    "always, forbidden": Case(
        422,
        "contradictory_request",
        "contradicts",
        body={"question": ASKED, "policy": "always", "retrieval": "forbidden"},
    ),
    "never, required": Case(
        422,
        "contradictory_request",
        "contradicts",
        body={"question": ASKED, "policy": "never", "retrieval": "required"},
    ),
    "unknown collection": Case(404, "unknown_collection", "nowhere", body={"question": ASKED, "collection": "nowhere"}),
    "no body": raw(b"", 400, "JSON"),
    "not JSON": raw(b"{question: 1}", 400, "JSON"),
    "half JSON": raw(b'{"question": "x', 400, "JSON"),
    "a list": raw(b"[1, 2]"),
    "a string": raw(b'"x"'),
    "null": raw(b"null"),
    "invalid UTF-8": raw(b'{"question": "\xff\xfe"}', 400, "UTF-8"),
    "too deep": raw(DEEP, 400),
    "a number of five thousand digits": raw(b'{"question": "x", "max_tokens": ' + b"9" * 3900 + b"}"),
    "form": raw(b"question=x", content_type="application/x-www-form-urlencoded"),
    "declared too large": Case(
        413, "body_too_large", "4096", content=b"{}", headers={"content-length": "4097", "content-type": "text/plain"}
    ),
    "really too large": Case(413, "body_too_large", "4096", body={"question": ASKED, "tags": {"a": "x" * 5000}}),
    "unknown path": Case(404, "not_found", method="GET", path="/nowhere"),
    "unknown path, posted to": Case(404, "not_found", path="/nowhere", body={}),
    "GET /answer": Case(405, "method_not_allowed", method="GET"),
    "DELETE /answer": Case(405, "method_not_allowed", method="DELETE"),
    "POST /healthz": Case(405, "method_not_allowed", path="/healthz"),
    "POST /readyz": Case(405, "method_not_allowed", path="/readyz"),
    "POST /metrics": Case(405, "method_not_allowed", path="/metrics"),
    "POST /": Case(405, "method_not_allowed", path="/"),
    "/v1: unknown path": Case(404, "not_found", method="GET", path="/v1/nowhere"),
    "/v1: unknown path, posted to": Case(404, "not_found", path="/v1/files", body={}),
    "/v1: GET": Case(405, "method_not_allowed", method="GET", path=CHAT),
    "/v1: half JSON": Case(400, "invalid_request", path=CHAT, content=b"{"),
    "/v1: nothing": Case(422, "invalid_request", path=CHAT, body={}),
    "/v1: really too large": Case(413, "body_too_large", path=CHAT, body=CHATTED | {"user": "x" * 5000}),
    "/v1: unknown model": Case(404, "model_not_found", "fetchwise-graded", path=CHAT, body=CHATTED | {"model": "x"}),
    "/v1: unknown collection": Case(
        404, "unknown_collection", path=CHAT, body=CHATTED | {"fetchwise": {"collection": "nowhere"}}
    ),
}


async def test_every_wrong_request(gateway: FakeGateway) -> None:
    """Each invalid request gets its 4xx, which names what is wrong, and no upstream is called."""
    for name, case in CASES.items():
        # Encoded by hand: the client would refuse to send what a careless one sends.
        response = await gateway.client.request(
            case.method,
            case.path,
            content=encoded(case.body) if case.body is not None else case.content,
            headers={"content-type": "application/json"} | case.headers,
        )
        try:
            error = check_shape(response, case.status, case.kind)
            assert case.says.lower() in error.error.message.lower()
        except AssertionError as failure:
            failure.add_note(f"in the case {name!r}: {response.status_code} {response.text[:300]}")
            raise
        if case.status == 405:
            assert response.headers["allow"]
    assert gateway.reader.calls == 0


def encoded(body: Any) -> bytes:
    """JSON with every non-ASCII character escaped, including lone surrogates."""
    return json.dumps(body).encode()


async def test_every_wrong_field_is_named(gateway: FakeGateway) -> None:
    """The error lists all invalid fields."""
    body = {"question": "", "policy": "greedy", "colour": "red"}
    error = check_shape(await gateway.client.post("/answer", json=body), 422, "invalid_request")
    assert {problem.field for problem in error.error.fields} == {"question", "policy", "colour"}
    assert all(problem.message for problem in error.error.fields)


async def test_a_body_that_grows_over_the_limit(gateway: FakeGateway) -> None:
    """A body without declared length is refused as soon as it is too long, without reading the rest."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'{"question": "'
        while sent < 1000:
            sent += 1
            yield b"x" * 1024

    response = await gateway.client.post("/answer", content=endless(), headers={"content-type": "application/json"})
    check_shape(response, 413, "body_too_large")
    assert sent < 10


async def test_a_body_within_the_limit_may_come_in_pieces(gateway: FakeGateway) -> None:
    """A chunked body is accepted."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"question": '
        yield b'"What is the capital of France?"}'

    response = await gateway.client.post("/answer", content=pieces(), headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text


async def test_an_unexpected_exception(gateway: FakeGateway, caplog: pytest.LogCaptureFixture) -> None:
    """A bug is a 500 without details for the caller; the log has the traceback."""
    gateway.reader.fail_with = RuntimeError("secret inside")
    with caplog.at_level(logging.ERROR):
        response = await gateway.ask()
    check_shape(response, 500, "internal_error")
    assert "secret" not in response.text
    assert "RuntimeError" not in response.text
    assert "secret inside" in caplog.text
    gateway.reader.fail_with = None
    assert (await gateway.ask()).status_code == 200
