"""`POST /feedback` over HTTP: what is kept, what is refused, and in which words."""

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import httpx
import pytest

from app.api.feedback import FeedbackReceipt, FeedbackRequest
from tests.fakes.gateway import ASKED, FakeGateway

from .conftest import Open
from .replies import check_shape

ABSTAINING: dict[str, Any] = {"filter": {"lang": "tlh"}, "retrieval": "required"}


async def say(gateway: FakeGateway, identifier: str, **said: Any) -> httpx.Response:
    """Send feedback."""
    return await gateway.client.post("/feedback", json={"id": identifier} | said)


async def test_a_verdict_at_once_after_the_answer(gateway: FakeGateway) -> None:
    """The decision may still wait to be written: both are on disk when the reply comes."""
    receipt = await gateway.receipt(tags={"team": "night"})
    response = await say(gateway, receipt["id"], correct=True, comment="yes", tags={"by": "me"})
    assert response.status_code == 200, response.text
    assert response.json() == {
        "id": receipt["id"],
        "correct": True,
        "source": "given",
        "replaced": False,
        "action": receipt["action"],
    }
    (decision,), (verdict,) = gateway.logged("decisions"), gateway.logged("feedback")
    assert (decision["id"], decision["question"], decision["answer"]) == (receipt["id"], ASKED, receipt["answer"])
    assert decision["p_closed_book"] == receipt["decision"]["p_closed_book"]
    assert (verdict["decision_id"], verdict["correct"], verdict["comment"], verdict["key"]) == (
        receipt["id"],
        1,
        "yes",
        None,
    )


@pytest.mark.parametrize(
    ("references", "right"), [(["Paris"], True), (["Lyon", "the paris."], True), (["Lyon"], False)]
)
async def test_references_judge_by_the_rule_of_refitting(
    gateway: FakeGateway, references: list[str], right: bool
) -> None:
    """Any reference that the answer holds as whole words makes it right."""
    gateway.reader.says(ASKED, "It is Paris.", k=0, sure=0.9)
    receipt = await gateway.receipt(policy="never")
    reply = (await say(gateway, receipt["id"], references=references)).json()
    assert (reply["correct"], reply["source"], reply["action"]) == (right, "references", "k0")


async def test_the_same_again_gets_the_same_reply_and_is_kept_and_counted_once(gateway: FakeGateway) -> None:
    """A client may repeat what it is not sure has arrived."""
    receipt = await gateway.receipt(policy="never")
    replies = [await say(gateway, receipt["id"], correct=True, tags={"a": "1"}) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 200]
    assert len({reply.text for reply in replies}) == 1
    assert len(gateway.logged("feedback")) == 1
    assert await gateway.metric("feedback_total", correct="true", action="k0") == 1


async def test_a_later_verdict_replaces_the_earlier(gateway: FakeGateway) -> None:
    """The reply says so, the history keeps both, and the counter has both words."""
    receipt = await gateway.receipt(policy="never")
    first = (await say(gateway, receipt["id"], correct=True)).json()
    second = (await say(gateway, receipt["id"], correct=False)).json()
    again = (await say(gateway, receipt["id"], correct=False)).json()
    assert (first["replaced"], second["replaced"]) == (False, True)
    assert again == second
    assert [row["correct"] for row in gateway.logged("feedback")] == [1, 0]
    for correct in ("true", "false"):
        assert await gateway.metric("feedback_total", correct=correct, action="k0") == 1


async def test_many_verdicts_at_once(gateway: FakeGateway) -> None:
    """Verdicts on many answers, sent together and each twice, are all acknowledged and each kept once."""
    receipts = [await gateway.receipt(policy="never") for _ in range(20)]
    replies = await asyncio.gather(*(say(gateway, receipt["id"], correct=True) for receipt in receipts * 2))
    assert {reply.status_code for reply in replies} == {200}
    assert len(gateway.logged("feedback")) == 20


async def test_an_unknown_id_is_a_404(gateway: FakeGateway) -> None:
    """It says what may have become of it."""
    error = check_shape(await say(gateway, "f" * 24, correct=True), 404, "unknown_decision")
    assert "pruned" in error.error.message


async def test_an_abstention_has_nothing_to_judge(gateway: FakeGateway) -> None:
    """No answer was given, so none was right or wrong."""
    receipt = await gateway.receipt(**ABSTAINING)
    assert receipt["action"] == "abstain"
    error = check_shape(await say(gateway, receipt["id"], correct=True), 409, "nothing_to_judge")
    assert "abstention" in error.error.message


async def test_references_to_an_abstention_are_kept_and_count_as_no_verdict(gateway: FakeGateway) -> None:
    """They say what a shadow run should have answered; `correct` is null, and no metric moves."""
    receipt = await gateway.receipt(**ABSTAINING)
    reply = await say(gateway, receipt["id"], references=["Paris"])
    assert reply.status_code == 200
    assert reply.json() == {
        "id": receipt["id"],
        "correct": None,
        "source": "references",
        "replaced": False,
        "action": "abstain",
    }
    assert [row["correct"] for row in gateway.logged("feedback")] == [None]
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
    """Each mistake is a 422 with the place of the mistake."""
    response = await gateway.client.post("/feedback", json={"id": "a" * 24} | said)
    error = check_shape(response, 422, "invalid_request")
    assert error.error.fields[0].field == where


async def test_a_locked_database_refuses_feedback_and_answers_go_on(
    open_gateway: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with Retry-After, never a false yes; once the lock is gone the same request is kept."""
    monkeypatch.setattr("app.adapters.decision_store.BUSY_TIMEOUT_S", 0.05)
    async with open_gateway(artifact={}) as gateway:
        receipt = await gateway.receipt(policy="never")
        assert (await say(gateway, receipt["id"], correct=True)).status_code == 200
        other = sqlite3.connect(gateway.settings.data_dir / "decisions.sqlite3", isolation_level=None)
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


async def test_a_full_queue_costs_records_not_answers(open_gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the buffer decisions are dropped and counted, and every question is answered."""
    monkeypatch.setattr("app.adapters.decision_store.BUSY_TIMEOUT_S", 0.05)
    async with open_gateway(artifact={}, log_buffer=3) as gateway:
        with closing(sqlite3.connect(gateway.settings.data_dir / "decisions.sqlite3", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for _ in range(10):
                await gateway.receipt(policy="never")
            dropped = await gateway.metric("log_dropped_total")
            other.execute("ROLLBACK")
    # The writer may just be taking one from the queue when it is measured.
    assert dropped >= 6
    assert len(gateway.logged("decisions")) + dropped == 10


async def test_another_worker_and_a_restart_know_the_answer(open_gateway: Open) -> None:
    """An id can be judged at any worker on the same file, and after a restart."""
    async with open_gateway(artifact={}) as first, open_gateway(artifact=None) as second:
        receipt = await first.receipt(policy="never")
        assert (await say(second, receipt["id"], correct=True)).status_code == 200
    async with open_gateway(artifact=None) as later:
        assert (await say(later, receipt["id"], correct=False)).json()["replaced"] is True


async def test_texts_can_stay_private(open_gateway: Open) -> None:
    """With hashes only, a verdict is taken, references are refused, and no file holds the question."""
    async with open_gateway(artifact={}, log_texts="hash") as gateway:
        receipt = await gateway.receipt(policy="never")
        check_shape(await say(gateway, receipt["id"], references=["Paris"]), 409, "nothing_to_judge")
        assert (await say(gateway, receipt["id"], correct=True)).status_code == 200
    for file in gateway.settings.data_dir.glob("decisions*"):
        assert b"capital of France" not in file.read_bytes()


async def test_without_a_log_nothing_is_kept_and_nothing_can_be_judged(open_gateway: Open) -> None:
    """`off` writes no file; feedback is told why."""
    async with open_gateway(artifact={}, decision_log="off") as gateway:
        receipt = await gateway.receipt()
        error = check_shape(await say(gateway, receipt["id"], correct=True), 404, "unknown_decision")
        assert "FETCHWISE_DECISION_LOG" in error.error.message
    assert not list(gateway.settings.data_dir.glob("decisions*"))


async def test_the_documentation_has_every_status_and_real_examples(gateway: FakeGateway) -> None:
    """What /feedback can reply is described, and its examples are valid."""
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
