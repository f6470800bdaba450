"""`POST /answer` over fakes: the receipt, and what a request may choose."""

import math
from typing import Any

import pytest

from app.api.schemas import Receipt
from app.decision.policy import Reason
from app.decision.signals import NAMES, TokenLogprobs
from app.errors import UpstreamUnavailable
from tests.fakes.artifacts import TAU0, TAU1, TAU_ABSTAIN
from tests.fakes.gateway import CORPUS, FakeGateway

from .conftest import Open

ASKED = "What is the capital of France?"


async def ask(gateway: FakeGateway, **body: Any) -> dict[str, Any]:
    """The receipt of an answered question, which equals its schema to the last key."""
    response = await gateway.client.post("/answer", json={"question": ASKED} | body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    receipt: dict[str, Any] = response.json()
    assert Receipt.model_validate(receipt).model_dump(mode="json") == receipt
    return receipt


async def test_a_confident_answer(gateway: FakeGateway) -> None:
    """A model that is sure answers at once: k0, no citation, and every number that led there."""
    gateway.reader.says(ASKED, "Paris", k=0, sure=0.875)
    receipt = await ask(gateway)
    assert (receipt["answer"], receipt["action"], receipt["k"], receipt["citations"]) == ("Paris", "k0", 0, [])
    assert receipt["confidence"] == receipt["decision"]["p_closed_book"] == 0.875
    decision = receipt["decision"]
    assert decision["thresholds"] == {"tau0": TAU0, "tau1": TAU1, "tau_abstain": TAU_ABSTAIN}
    assert (decision["policy"], decision["schedule"], decision["reason"]) == ("graded", "serial", "confident")
    assert decision["calibrator"] == {"version": "2026-01-31-0a1b2c3d", "certified": True}
    assert set(decision["signals"]) >= set(NAMES)
    assert receipt["usage"]["read"] is None
    assert receipt["usage"]["passages"] == 0
    assert receipt["timings_ms"]["probe"] is not None
    assert receipt["timings_ms"]["read"] is None


@pytest.mark.parametrize(("p", "k", "reason"), [(0.625, 1, "borderline"), (0.375, 5, "uncertain")])
async def test_an_answer_from_passages(gateway: FakeGateway, p: float, k: int, reason: str) -> None:
    """A model that is less sure reads one passage or five, and cites what it read."""
    gateway.reader.says(ASKED, "Paris", k=0, sure=p)
    receipt = await ask(gateway)
    assert (receipt["action"], receipt["k"], receipt["decision"]["reason"]) == (f"k{k}", k, reason)
    assert receipt["answer"] == "The capital of France is Franville."
    assert [citation["index"] for citation in receipt["citations"]] == list(range(1, k + 1))
    first = receipt["citations"][0]
    assert (first["id"], first["title"], first["text"]) == (CORPUS[0].id, CORPUS[0].title, CORPUS[0].text)
    assert receipt["usage"]["passages"] == k
    assert receipt["usage"]["read"]["prompt_tokens"] > receipt["usage"]["probe"]["prompt_tokens"]
    assert all(value is not None and value >= 0 for value in receipt["timings_ms"].values())


async def test_abstaining_is_a_200(gateway: FakeGateway) -> None:
    """An answer below tau_abstain is withheld, with what it cost and how sure it was."""
    gateway.reader.says(ASKED, "Paris?", sure=0.125)
    receipt = await ask(gateway)
    assert (receipt["answer"], receipt["action"], receipt["k"]) == (None, "abstain", 5)
    assert receipt["confidence"] == 0.125
    assert receipt["decision"]["reason"] == "low_confidence"
    given = await ask(gateway, abstain=False)
    assert (given["answer"], given["confidence"]) == ("Paris?", 0.125)


async def test_without_a_calibrator(open_gateway: Open) -> None:
    """Nothing that matches: five passages, `not_calibrated`, and no number is made up."""
    async with open_gateway() as gateway:
        receipt = await ask(gateway)
        assert (receipt["action"], receipt["k"], receipt["confidence"]) == ("k5", 5, None)
        assert receipt["decision"]["reason"] == "not_calibrated"
        assert receipt["decision"]["p_closed_book"] is None
        assert receipt["decision"]["thresholds"] == {"tau0": None, "tau1": None, "tau_abstain": None}
        assert receipt["decision"]["calibrator"] == {"version": None, "certified": False}
        assert gateway.reader.calls == 1


@pytest.mark.parametrize("changes", [{"max_tokens": 48}, {"collection": "other"}])
async def test_a_calibrator_for_something_else(open_gateway: Open, changes: dict[str, Any]) -> None:
    """A calibrator that was fitted on anything but what runs decides nothing."""
    async with open_gateway(artifact=changes) as gateway:
        assert (await ask(gateway))["decision"]["reason"] == "not_calibrated"


async def test_a_request_that_leaves_what_was_calibrated(gateway: FakeGateway) -> None:
    """Another max_tokens than the calibrator's is not calibrated; a filter is, but not certified."""
    gateway.reader.says(ASKED, "Paris", k=0, sure=0.875)
    assert (await ask(gateway, max_tokens=25))["decision"]["reason"] == "not_calibrated"
    assert (await ask(gateway, max_tokens=24))["decision"]["reason"] == "confident"
    filtered = await ask(gateway, filter={"lang": "en"})
    assert filtered["decision"]["reason"] == "confident"
    assert filtered["decision"]["p_closed_book"] == 0.875
    assert filtered["decision"]["calibrator"]["certified"] is False
    assert (await ask(gateway, filter={}))["decision"]["calibrator"]["certified"] is True


async def test_an_uncertified_calibrator(open_gateway: Open) -> None:
    """Thresholds that nothing vouches for do not decide, unless the operator says so: then the receipt does too."""
    from tests.fakes.artifacts import an_uncertified_fit

    artifact = {"policies": {"graded": an_uncertified_fit()}}
    async with open_gateway(artifact=artifact) as gateway:
        receipt = await ask(gateway)
        assert (receipt["k"], receipt["decision"]["reason"]) == (1, "not_certified")
    async with open_gateway(artifact=artifact, allow_uncertified=True) as gateway:
        receipt = await ask(gateway)
        assert receipt["decision"]["reason"] == "confident"
        assert receipt["decision"]["calibrator"]["certified"] is False


async def test_defaults_come_from_the_settings(open_gateway: Open) -> None:
    """Policy, collection and length are the operator's where the request names none."""
    async with open_gateway(artifact={}, policy="never") as gateway:
        receipt = await ask(gateway)
        assert (receipt["k"], receipt["decision"]["policy"]) == (0, "never")
        assert (await ask(gateway, policy="always"))["k"] == 5


async def test_the_question_is_cleaned(gateway: FakeGateway) -> None:
    """White space around a question goes, and line breaks and tabs within it are allowed."""
    await ask(gateway, question=f"  {ASKED}\n")
    assert gateway.reader.prompts[0].question == ASKED
    await ask(gateway, question="What\tis\r\nthis? 🎉 é")
    assert gateway.reader.prompts[-1].question == "What\tis\r\nthis? 🎉 é"


async def test_the_longest_question(gateway: FakeGateway) -> None:
    """A question of exactly the allowed length is allowed, counted in characters and without its margins."""
    await ask(gateway, question="é" * 200 + "   ")


async def test_a_failed_search_is_survived(gateway: FakeGateway) -> None:
    """Where the closed-book answer is good enough it stands, and says why it is one."""
    gateway.reader.says(ASKED, "Paris", k=0, sure=0.375)
    gateway.vectors.fail_with = UpstreamUnavailable("vectors", "down")
    receipt = await ask(gateway)
    assert (receipt["answer"], receipt["action"], receipt["decision"]["reason"]) == ("Paris", "k0", "retrieval_failed")
    assert receipt["decision"]["calibrator"]["certified"] is False


async def test_no_number_that_json_cannot_hold(gateway: FakeGateway) -> None:
    """NaN and infinite log-probabilities never reach a receipt."""
    odd = (TokenLogprobs(-math.inf, (-math.inf,) * 20), TokenLogprobs(math.nan, (math.nan,) * 20))
    gateway.reader.says(ASKED, "Paris", tokens=odd)
    receipt = await ask(gateway)
    assert receipt["decision"]["reason"] == Reason.NO_SIGNAL
    assert all(math.isfinite(value) for value in receipt["decision"]["signals"].values())
