"""Every 4xx and 5xx in the one shape, on every route, with a message that a caller can act on."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from app.api.openai_reply import OpenAIErrorOut
from app.api.schemas import ErrorOut
from app.errors import PromptTooLong, UpstreamBadReply, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from tests.fakes.gateway import FakeGateway

from .conftest import Open

ASKED = "What is the capital of France?"
# Our word for an error, and OpenAI's where it has one.
OPENAI_CODES = {
    "unauthorised": "invalid_api_key",
    "over_limit": "rate_limit_exceeded",
    "prompt_too_long": "context_length_exceeded",
}


def check_shape(response: httpx.Response, status: int, kind: str) -> Any:
    """The error, which must hold the three keys and nothing else, or below /v1/ the four of OpenAI's API."""
    there = response.request.url.path.startswith("/v1/")
    assert response.status_code == (400 if there and status == 422 else status), response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    error = OpenAIErrorOut.model_validate(body) if there else ErrorOut.model_validate(body)
    assert error.model_dump() == body
    assert (error.error.code if there else error.error.type) == (OPENAI_CODES.get(kind, kind) if there else kind)
    assert error.error.message
    assert "Traceback" not in response.text
    if status in {429, 503}:
        assert int(response.headers["retry-after"]) >= 1
    return error


@dataclass(frozen=True)
class Case:
    """One wrong request."""

    status: int
    kind: str
    says: str = ""
    method: str = "POST"
    path: str = "/answer"
    body: Any = None
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


def invalid(says: str, **body: Any) -> Case:
    """A body that does not validate."""
    return Case(422, "invalid_request", says, body={"question": ASKED} | body)


def raw(content: bytes, status: int = 422, says: str = "", **headers: str) -> Case:
    """A body that is not even JSON of the right kind."""
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
    "max_tokens too many": invalid("max_tokens", max_tokens=513),
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
}


async def test_every_wrong_request(gateway: FakeGateway) -> None:
    """Each wrong request gets its own 4xx in the one shape, which names what is wrong, and no part is bothered."""
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
    """JSON in which every character beyond ASCII is escaped, lone surrogates too."""
    return json.dumps(body).encode()


async def test_every_wrong_field_is_named(gateway: FakeGateway) -> None:
    """A request with several mistakes hears of all of them at once."""
    body = {"question": "", "policy": "greedy", "colour": "red"}
    error = check_shape(await gateway.client.post("/answer", json=body), 422, "invalid_request")
    assert {problem.field for problem in error.error.fields} == {"question", "policy", "colour"}
    assert all(problem.message for problem in error.error.fields)


async def test_a_body_that_grows_over_the_limit(gateway: FakeGateway) -> None:
    """A body of undeclared length is refused as soon as it is too long, and not read to its end."""
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
    """A chunked body is as good as a whole one."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"question": '
        yield b'"What is the capital of France?"}'

    response = await gateway.client.post("/answer", content=pieces(), headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UpstreamTimeout("reader", "the reader did not answer in time"), "upstream_timeout"),
        (UpstreamUnavailable("reader", "the reader is down"), "upstream_unavailable"),
        (UpstreamBadReply("reader", "the reader talks nonsense"), "upstream_bad_reply"),
        (UpstreamError("reader", "something"), "upstream_error"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_failed_reader(gateway: FakeGateway, error: UpstreamError, kind: str) -> None:
    """Without a reader the answer is a 503 that says how it failed and when to try again."""
    gateway.reader.fail_with = error
    body = check_shape(await gateway.client.post("/answer", json={"question": ASKED}), 503, kind)
    assert body.error.message == str(error)
    gateway.reader.fail_with = None
    assert (await gateway.client.post("/answer", json={"question": ASKED})).status_code == 200


async def test_a_failed_search_where_evidence_is_required(gateway: FakeGateway) -> None:
    """A search that failed is a 503 where the question may not do without."""
    gateway.vectors.fail_with = UpstreamUnavailable("vectors", "the vectors are down")
    response = await gateway.client.post("/answer", json={"question": ASKED, "retrieval": "required"})
    check_shape(response, 503, "upstream_unavailable")


async def test_nothing_found_where_an_answer_is_owed(gateway: FakeGateway) -> None:
    """A search that found nothing is a 404 where the question may neither do without nor abstain."""
    body = {"question": ASKED, "retrieval": "required", "abstain": False, "filter": {"lang": "tlh"}}
    check_shape(await gateway.client.post("/answer", json=body), 404, "no_passages")


async def test_a_prompt_too_long_for_the_reader(gateway: FakeGateway) -> None:
    """A question that the reader cannot take is the caller's to shorten."""
    gateway.reader.fail_with = PromptTooLong("the question does not fit the reader's context: shorten it")
    error = check_shape(await gateway.client.post("/answer", json={"question": ASKED}), 422, "prompt_too_long")
    assert "shorten" in error.error.message


async def test_an_unforeseen_exception(gateway: FakeGateway, caplog: pytest.LogCaptureFixture) -> None:
    """A defect is a 500 that tells the caller nothing of the inside, and the log everything."""
    gateway.reader.fail_with = RuntimeError("secret inside")
    with caplog.at_level(logging.ERROR):
        response = await gateway.client.post("/answer", json={"question": ASKED})
    check_shape(response, 500, "internal_error")
    assert "secret" not in response.text
    assert "RuntimeError" not in response.text
    assert "secret inside" in caplog.text
    gateway.reader.fail_with = None
    assert (await gateway.client.post("/answer", json={"question": ASKED})).status_code == 200


async def test_more_questions_than_permits(open_gateway: Open) -> None:
    """The question after the last permit is refused at once with a 429, and served once a permit is free."""
    async with open_gateway(max_in_flight=2, queue=0) as gateway:
        gateway.reader.hang = True
        working = [asyncio.create_task(gateway.client.post("/answer", json={"question": ASKED})) for _ in range(2)]
        while gateway.reader.calls < 2:  # noqa: ASYNC110 the reader has no event to wait for
            await asyncio.sleep(0)
        shed = await gateway.client.post("/answer", json={"question": ASKED})
        check_shape(shed, 429, "overloaded")
        assert (await gateway.client.get("/healthz")).status_code == 200
        assert (await gateway.client.get("/readyz")).status_code == 200
        gateway.reader.hang = False
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        assert gateway.reader.cancelled == 2
        assert (await gateway.client.post("/answer", json={"question": ASKED})).status_code == 200


async def test_a_question_that_takes_too_long(open_gateway: Open) -> None:
    """A question is given up after its time, the generation is stopped, and the permit is free again."""
    async with open_gateway(max_in_flight=1, request_timeout_s=0.05) as gateway:
        gateway.reader.hang = True
        error = check_shape(await gateway.client.post("/answer", json={"question": ASKED}), 503, "deadline_passed")
        assert "the reader" in error.error.message
        assert gateway.reader.cancelled == 1
        gateway.reader.hang = False
        # Generous now: only the permit is of interest.
        assert (await gateway.client.post("/answer", json={"question": ASKED})).status_code in {200, 503}
        assert gateway.reader.calls == 2
