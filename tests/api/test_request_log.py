"""The request log: every line has its request id, one line per answer, never the question."""

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.errors import UpstreamBadReply
from app.telemetry.log_lines import JsonLines
from tests.fakes.gateway import FakeGateway

from .conftest import Open

ASKED = 'Who wrote "Der Prozeß", and when?'
ID = {"x-request-id": "edge-1:7/a.b=c"}
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Iterator[Lines]:
    """All log lines as JSON, from level `info`."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(log_questions=False))
    logger = logging.getLogger("app")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(getattr(request, "param", logging.INFO))
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(before)


def access(lines: Lines) -> list[dict[str, Any]]:
    """The lines of the request log."""
    return [line for line in lines() if line["logger"] == "app.api.http.middleware"]


async def test_one_line_an_answer(gateway: FakeGateway, lines: Lines) -> None:
    """It has the decision, the time, the status and the id of the receipt."""
    response = await gateway.client.post("/answer", json={"question": ASKED, "policy": "always"}, headers=ID)
    receipt = response.json()
    assert response.headers.get_list("x-request-id") == [ID["x-request-id"]]
    (line,) = access(lines)
    assert line["request_id"] == ID["x-request-id"]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/answer", 200)
    assert line["decision_id"] == receipt["id"]
    for name in ("action", "k", "confidence"):
        assert line[name] == receipt[name]
    assert line["reason"] == receipt["decision"]["reason"]
    spent = {stage: ms for stage, ms in receipt["timings_ms"].items() if ms is not None}
    assert line["timings_ms"] == spent
    assert line["ms"] >= spent["total"]
    assert line["message"].startswith(f"POST /answer 200 {receipt['action']} {line['reason']} ")


@pytest.mark.parametrize("given", ["", "two words", "{json}", "x" * 129, "naïve", "a\tb"])
async def test_an_id_that_could_forge_a_line_is_replaced(gateway: FakeGateway, lines: Lines, given: str) -> None:
    """An id that is too long or has other characters is replaced by a new one."""
    seen = set()
    for _ in range(2):
        response = await gateway.client.post(
            "/answer", json={"question": ASKED}, headers={b"x-request-id": given.encode()}
        )
        seen.add(response.headers["x-request-id"])
    assert {line["request_id"] for line in access(lines)} == seen
    assert len(seen) == 2
    for one in seen:
        assert len(one) == 24
        int(one, 16)


async def test_errors_carry_the_id_too(gateway: FakeGateway, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """For errors in any layer, the response and every line have the id and the status."""

    async def broken(*_: object) -> None:
        raise RuntimeError("unforeseen")

    expected = [422, 413, 422, 503, 500]
    bodies: list[dict[str, Any]] = [{"json": {}}, {"content": b"x" * 5000}, {"content": b"{"}]
    statuses = [(await gateway.client.post("/answer", headers=ID, **body)).status_code for body in bodies]
    gateway.reader.fail_with = UpstreamBadReply("reader", "nonsense")
    for _ in range(2):
        response = await gateway.client.post("/answer", json={"question": ASKED}, headers=ID)
        assert response.headers["x-request-id"] == ID["x-request-id"]
        statuses.append(response.status_code)
        monkeypatch.setattr(gateway.reader, "_turn", broken)
    assert statuses == expected
    assert [line["status"] for line in access(lines)] == expected
    assert {line["request_id"] for line in lines()} == {ID["x-request-id"]}
    (trace,) = [line for line in lines() if "exception" in line]
    assert "RuntimeError: unforeseen" in trace["exception"]
    assert [line["message"] for line in lines() if line["level"] == "warning"] == [
        "reader failed (bad_reply): nonsense"
    ]


@pytest.mark.parametrize("lines", [logging.DEBUG], indirect=True)
async def test_the_question_stays_out(gateway: FakeGateway, lines: Lines) -> None:
    """The question and the key are never logged, even if an upstream repeats the question in an error."""
    headers = {"authorization": "Bearer s3cret"}
    assert (await gateway.client.post("/answer", json={"question": ASKED}, headers=headers)).status_code == 200
    for quoted in (ASKED, json.dumps(ASKED), json.dumps({"input": ASKED}, ensure_ascii=False), repr([ASKED])):
        gateway.reader.fail_with = UpstreamBadReply("reader", f"the reader answered 400: {quoted} is wrong")
        assert (await gateway.client.post("/answer", json={"question": ASKED}, headers=headers)).status_code == 503
    written = json.dumps(lines(), ensure_ascii=False)
    assert written.count("[question]") == 4
    for secret in ("Proze", "when?", "s3cret"):
        assert secret not in written
    assert len(access(lines)) == 5


async def test_the_question_is_logged_where_the_operator_wants_it(open_gateway: Open, lines: Lines) -> None:
    """With the setting, the line has the question."""
    async with open_gateway(log_questions=True) as gateway:
        await gateway.client.post("/answer", json={"question": ASKED})
    (line,) = access(lines)
    assert line["question"] == ASKED


async def test_reading_is_not_worth_a_line(gateway: FakeGateway, lines: Lines) -> None:
    """Probes and scrapes get their id back, and are not logged."""
    for path in ("/healthz", "/readyz", "/metrics", "/nowhere"):
        response = await gateway.client.get(path, headers=ID)
        assert response.headers["x-request-id"] == ID["x-request-id"]
    assert access(lines) == []


@pytest.mark.parametrize("lines", [logging.DEBUG], indirect=True)
async def test_reading_has_a_line_for_those_who_debug(gateway: FakeGateway, lines: Lines) -> None:
    """At level `debug` they are logged, with the raw path."""
    await gateway.client.get("/no%0Awhere?key=s3cret")
    (line,) = access(lines)
    assert (line["path"], line["status"], line["level"]) == ("/no%0Awhere", 404, "debug")


async def test_questions_at_the_same_time_keep_their_own_ids(gateway: FakeGateway, lines: Lines) -> None:
    """Each line belongs to its own request."""

    async def ask(number: int) -> tuple[str, str]:
        body = {"question": f"What is the capital of country {number}?"}
        response = await gateway.client.post("/answer", json=body, headers={"x-request-id": f"r{number}"})
        return response.headers["x-request-id"], response.json()["id"]

    given = await asyncio.gather(*(ask(number) for number in range(8)))
    assert sorted((line["request_id"], line["decision_id"]) for line in access(lines)) == sorted(given)
