"""`POST /feedback` over HTTP: what is stored, and what is refused."""

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import httpx
import pytest

from app.api.feedback import FeedbackReceipt, FeedbackRequest
from app.core.feedback import Judged, Source
from app.learning.log import DecisionLog
from tests.fakes.gateway import ASKED, FakeGateway

from .conftest import Open
from .keyed import Keyed
from .replies import check_shape

ABSTAINING: dict[str, Any] = {"filter": {"lang": "tlh"}, "retrieval": "required"}


async def say(gateway: FakeGateway, identifier: str, **said: Any) -> httpx.Response:
    """Send feedback."""
    return await gateway.client.post("/feedback", json={"id": identifier} | said)


async def test_a_verdict_at_once_after_the_answer(gateway: FakeGateway) -> None:
    """Feedback on a decision that is not written yet: both are on disk when the reply arrives."""
    receipt = await gateway.receipt(tags={"team": "night"})
    response = await say(gateway, receipt["id"], correct=True, comment="yes", tags={"by": "me"})
    assert response.status_code == 200, response.text
    assert response.json() == {
        "id": receipt["id"],
        "correct": True,
        "source": "caller",
        "replaced": False,
        "action": receipt["action"],
    }
    (decision,), (is_correct,) = gateway.logged("decisions"), gateway.logged("feedback")
    assert (decision["id"], decision["question"], decision["answer"]) == (receipt["id"], ASKED, receipt["answer"])
    assert decision["p_closed_book"] == receipt["decision"]["p_closed_book"]
    assert (is_correct["decision_id"], is_correct["correct"], is_correct["comment"], is_correct["key"]) == (
        receipt["id"],
        1,
        "yes",
        None,
    )


async def test_verdicts_replace_each_other_and_the_same_again_is_no_news(gateway: FakeGateway) -> None:
    """Repeated feedback gets the same reply, and is stored and counted once."""
    gateway.reader.says(ASKED, "It is Paris.", k=0, sure=0.9)
    receipt = await gateway.receipt(policy="never")
    said: list[dict[str, Any]] = [{"references": ["Lyon", "the paris."]}, {"correct": False}, {"correct": False}]
    replies = [(await say(gateway, receipt["id"], **one)).json() for one in said]
    assert [(one["correct"], one["source"], one["replaced"]) for one in replies] == [
        (True, "references", False),
        (False, "caller", True),
        (False, "caller", True),
    ]
    assert [row["correct"] for row in gateway.logged("feedback")] == [1, 0]
    for correct in ("true", "false"):
        assert await gateway.metric("feedback_total", correct=correct, action="k0") == 1


async def test_what_cannot_be_judged(gateway: FakeGateway) -> None:
    """404 for an unknown id, 409 for a withheld answer; references for one are stored without a verdict."""
    error = check_shape(await say(gateway, "f" * 24, correct=True), 404, "unknown_decision")
    assert "pruned" in error.error.message
    check_shape(await say(gateway, "a\0", correct=True), 404, "unknown_decision")
    receipt = await gateway.receipt(**ABSTAINING)
    error = check_shape(await say(gateway, receipt["id"], correct=True), 409, "nothing_to_judge")
    assert "abstention" in error.error.message
    reply = await say(gateway, receipt["id"], references=["Paris"])
    assert (reply.status_code, reply.json()["correct"], reply.json()["action"]) == (200, None, "abstain")
    counted = {key: value for key, value in (await gateway.metrics()).items() if key[0] == "fetchwise_feedback_total"}
    assert not any(counted.values())


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ({}, "body"),
        ({"correct": True, "references": ["Paris"]}, "body"),
        ({"correct": "yes"}, "correct"),
        ({"correct": None}, "body"),
        ({"references": []}, "references"),
        ({"references": ["Paris", "..."]}, "references"),
        ({"references": "Paris"}, "references"),
        ({"correct": True, "comment": "x" * 2001}, "comment"),
        ({"correct": True, "verdict": 1}, "verdict"),
        ({"correct": True, "id": ""}, "id"),
        ({"correct": True, "tags": {"a": 1}}, "tags.a"),
    ],
)
async def test_what_is_not_valid_names_its_field(gateway: FakeGateway, said: dict[str, Any], where: str) -> None:
    """Each error is a 422 that names the field."""
    response = await gateway.client.post("/feedback", json={"id": "a" * 24} | said)
    error = check_shape(response, 422, "invalid_request")
    assert error.error.fields[0].field == where


async def test_a_locked_database_refuses_feedback_and_answers_go_on(
    open_gateway: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locked database gives 503 with Retry-After; when the lock is gone, the same request is stored."""
    monkeypatch.setattr("app.storage.database.BUSY_TIMEOUT_S", 0.05)
    async with open_gateway(artifact={}) as gateway:
        receipt = await gateway.receipt(policy="never")
        assert (await say(gateway, receipt["id"], correct=True)).status_code == 200
        other = sqlite3.connect(gateway.settings.server.data_dir / "decisions.sqlite3", isolation_level=None)
        with closing(other):
            other.execute("BEGIN IMMEDIATE")
            second = await gateway.receipt(policy="never")
            error = check_shape(await say(gateway, second["id"], correct=True), 503, "log_unavailable")
            assert "locked" in error.error.message
            for _ in range(5):
                await gateway.receipt(policy="never")
            other.execute("ROLLBACK")
        response = await say(gateway, second["id"], correct=True)
        while response.status_code == 503:
            response = await say(gateway, second["id"], correct=True)
        assert response.json()["replaced"] is False
        assert len(gateway.logged("feedback")) == 2
    assert len(gateway.logged("decisions")) == 7


async def test_without_a_log_nothing_is_kept_and_nothing_can_be_judged(open_gateway: Open) -> None:
    """`off` writes no file; feedback is refused with the reason."""
    async with open_gateway(artifact={}, decision_log="off") as gateway:
        receipt = await gateway.receipt()
        error = check_shape(await say(gateway, receipt["id"], correct=True), 404, "unknown_decision")
        assert "FETCHWISE_DECISION_LOG" in error.error.message
    assert not list(gateway.settings.server.data_dir.glob("decisions*"))


async def test_the_documentation_has_every_status_and_real_examples(gateway: FakeGateway) -> None:
    """Every status of /feedback is documented, and its examples are valid."""
    schema = (await gateway.client.get("/openapi.json")).json()
    responses = schema["paths"]["/feedback"]["post"]["responses"]
    assert set(responses) == {"200", "400", "401", "403", "404", "409", "413", "422", "429", "500", "503"}
    components = schema["components"]["schemas"]
    receipt = await gateway.receipt(policy="never")
    for example in components["FeedbackRequest"]["examples"]:
        FeedbackRequest.model_validate(example)
        assert (await gateway.client.post("/feedback", json=example | {"id": receipt["id"]})).status_code == 200
    for example in components["FeedbackReceipt"]["examples"]:
        assert FeedbackReceipt.model_validate(example).model_dump(mode="json") == example


async def test_references_cost_nothing_before_the_id_is_known(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing texts takes time, so the decision is looked up first."""
    compared: list[str] = []
    monkeypatch.setattr("app.core.labels.words", lambda text: compared.append(text) or ("word",))
    check_shape(await say(gateway, "f" * 24, references=["Paris"]), 404, "unknown_decision")
    assert not compared
    receipt = await gateway.receipt(policy="never")
    compared.clear()
    assert (await say(gateway, receipt["id"], references=["Paris"])).json()["correct"] is True
    assert "Paris" in compared


async def test_too_many_long_references(open_gateway: Open) -> None:
    """Their length together is limited, before anything is looked up."""
    async with open_gateway() as gateway:
        error = check_shape(await say(gateway, "f" * 24, references=["x" * 1000] * 5), 422, "invalid_request")
        assert error.error.fields[0].field == "references"


async def test_references_that_grow_when_they_are_compared(gateway: FakeGateway) -> None:
    """U+FDFA stands for 18 characters: what counts is the length that must be compared."""
    receipt = await gateway.receipt(policy="never")
    response = await say(gateway, receipt["id"], references=["\ufdfa" * 500])
    assert "too long" in check_shape(response, 422, "invalid_request").error.message
    assert not gateway.logged("feedback")


async def test_feedback_counts_as_a_request_in_flight(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key cannot occupy the log with more feedback at once than it may have questions."""
    _, presented = keyed.make(max_concurrent=1)
    await keyed.known(presented)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def give(*_: Any) -> Judged:
        begun.set()
        await go_on.wait()
        return Judged("a" * 24, correct=True, source=Source.CALLER, replaced=False, action="k0")

    monkeypatch.setattr(DecisionLog, "give", give)
    first = asyncio.create_task(keyed.send("POST", "/feedback", presented))
    await begun.wait()
    check_shape(await keyed.send("POST", "/feedback", presented), 429, "rate_limit_exceeded")
    go_on.set()
    assert (await first).status_code == 200
