"""`GET /breakeven` and its gauges, over fakes."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from app.api.operators import FIELDS, BreakEvenReport
from app.errors import UpstreamUnavailable
from tests.api.conftest import Open
from tests.fakes.artifacts import an_abstention
from tests.fakes.gateway import FakeGateway

SURE, HALF_SURE, UNSURE = "capital of France?", "capital of Italy?", "capital of Elbonia?"


async def ask(gateway: FakeGateway, question: str, times: int, **more: Any) -> None:
    for _ in range(times):
        await gateway.receipt(question, **more)


async def mixed(gateway: FakeGateway, times: int = 40) -> None:
    """Questions of every kind: half skip, a quarter read one passage, a quarter five."""
    gateway.reader.says(SURE, "Paris", k=0, sure=0.9)
    gateway.reader.says(HALF_SURE, "Rome", k=0, sure=0.6)
    gateway.reader.says(UNSURE, "No idea", k=0, sure=0.3)
    await ask(gateway, SURE, 2 * times)
    await ask(gateway, HALF_SURE, times)
    await ask(gateway, UNSURE, times)


async def breakeven(gateway: FakeGateway, query: str = "") -> BreakEvenReport:
    await gateway.refresh()
    response = await gateway.client.get(f"/breakeven{query}")
    assert response.status_code == 200, response.text
    return TypeAdapter(BreakEvenReport).validate_python(response.json())


async def shown(gateway: FakeGateway, name: str) -> dict[tuple[str, ...], float]:
    """Every sample of a metric, by its label values in the order of their names."""
    await gateway.refresh()
    found = await gateway.metrics()
    return {
        tuple(value for _, value in labels): number
        for (metric, labels), number in found.items()
        if metric == f"fetchwise_{name}"
    }


async def test_before_the_first_question(gateway: FakeGateway) -> None:
    """Without traffic every figure says what it needs, and no gauge has a value."""
    found = await breakeven(gateway)
    assert found.sentence.startswith("The gate decided no question")
    assert found.reference == "k1"
    assert found.skip_rate.needs == "30 questions that the gate decided, 0 so far"
    assert found.costs["money"] is None
    assert await shown(gateway, "fallback_info") == {("k1",): 1}
    for name in ("skip_ratio", "break_even_skip_ratio", "gate_cost_ratio"):
        assert await shown(gateway, name) == {}


async def test_figures_come_from_what_was_served(gateway: FakeGateway) -> None:
    """Shares and tokens match the questions asked, and the gauges match the report."""
    await mixed(gateway)
    found = await breakeven(gateway)
    assert (found.window.answers, found.window.gated, found.window.workers) == (160, 160, 1)
    assert {name: share.value for name, share in found.shares.items()} == {
        "k0": 0.5,
        "k1": 0.25,
        "k5": 0.25,
        "abstain": 0.0,
    }
    assert found.skip_rate.value == 0.5
    tokens = found.costs["tokens"]
    assert tokens is not None
    assert all(part.n >= 40 and part.value is not None for part in tokens.stages.values())
    spent = tokens.stages
    expected = _value(spent["probe"]) + 0.25 * _value(spent["read_k1"]) + 0.25 * _value(spent["read_k5"])
    assert tokens.gate.value == pytest.approx(expected)
    assert any("chosen by the gate" in caveat for caveat in found.caveats)
    assert await shown(gateway, "skip_ratio") == {(): 0.5}
    assert await shown(gateway, "gated_total") == {("0",): 80, ("1",): 40, ("5",): 40}
    ratios = await shown(gateway, "break_even_skip_ratio")
    assert ratios.keys() == {(c, k) for c in ("latency", "tokens") for k in ("k1", "k5")}
    for (cost, reference), value in (await shown(gateway, "gate_cost_ratio")).items():
        view = found.costs[cost]
        assert view is not None
        assert view.against[reference].gate_cost_ratio.value == value


def _value(estimate: Any) -> float:
    assert estimate.value is not None
    return float(estimate.value)


async def test_withheld_answers_are_shares_of_their_own_and_cost_what_they_read(open_gateway: Open) -> None:
    """An abstention is not a skip; k is the number of passages read."""
    async with open_gateway(artifact={"abstention": an_abstention(tau=0.5)}) as gateway:
        gateway.reader.says(UNSURE, "No idea", sure=0.3)
        await ask(gateway, UNSURE, 30)
        found = await breakeven(gateway)
    assert (found.shares["abstain"].value, found.skip_rate.value) == (1.0, 0.0)


async def test_what_the_caller_chose_is_not_gated(gateway: FakeGateway) -> None:
    """Questions with their own policy count for the cost of passages, not for the gate."""
    await ask(gateway, SURE, 30, policy="always")
    await ask(gateway, SURE, 5, retrieval="forbidden")
    found = await breakeven(gateway)
    assert (found.window.answers, found.window.gated) == (35, 0)
    assert found.costs["latency"] is not None
    assert found.costs["latency"].stages["read_k5"].n == 30
    assert found.caveats == ()


async def test_money_needs_a_tariff(open_gateway: Open) -> None:
    """With prices the report and the gauges have money."""
    async with open_gateway(artifact={}, tariff_call=2.0) as gateway:
        await mixed(gateway)
        found = await breakeven(gateway)
        money = found.costs["money"]
        assert money is not None
        assert money.gate.value == pytest.approx(1.0)
        # Only calls are paid for, so skipping any saves.
        assert money.against["k5"].verdict == "saves"
        assert money.against["k5"].break_even_skip.value == 0.0
        assert (await shown(gateway, "gate_cost_ratio"))["money", "k5"] == pytest.approx(0.5)


async def test_without_a_calibrator_the_reference_is_five(open_gateway: Open) -> None:
    """Without a calibrator the reference is the largest k."""
    async with open_gateway() as gateway:
        await ask(gateway, SURE, 3)
        found = await breakeven(gateway)
        assert (found.reference, found.window.answers, found.window.gated) == ("k5", 3, 0)
        assert await shown(gateway, "fallback_info") == {("k5",): 1}
        assert await shown(gateway, "calibrator_info") == {("uncertified", "none"): 1}


async def test_the_window_is_the_callers_choice(gateway: FakeGateway) -> None:
    """The query may name a window; the default is the setting."""
    assert (await breakeven(gateway, "?window=60")).window.seconds == 60
    assert (await breakeven(gateway)).window.seconds == gateway.settings.economics.window_s


@pytest.mark.parametrize("window", ["0", "-5", "86401", "1.5", "nan", "inf", "soon", "", "1e3", "9" * 400])
async def test_a_bad_window_is_a_422(gateway: FakeGateway, window: str) -> None:
    """The error names the field."""
    response = await gateway.client.get("/breakeven", params={"window": window})
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["type"] == "invalid_request"
    assert [one["field"] for one in error["fields"]] == ["query.window"]


async def test_a_search_that_fails_saves_nothing(gateway: FakeGateway) -> None:
    """A question without passages because the vector store is down does not count as skipped."""
    gateway.reader.says(UNSURE, "No idea", k=0, sure=0.3)
    gateway.vectors.fail_with = UpstreamUnavailable("vectors", "down")
    await ask(gateway, UNSURE, 30)
    found = await breakeven(gateway)
    assert (found.window.answers, found.window.gated) == (30, 0)


async def test_the_document_says_what_the_fields_mean(gateway: FakeGateway) -> None:
    """The dataclasses are the schema, and every field listed in FIELDS has its description."""
    schema = (await gateway.client.get("/openapi.json")).json()
    operation = schema["paths"]["/breakeven"]["get"]
    assert operation["responses"]["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorOut")
    for name, fields in FIELDS.items():
        for field, meaning in fields.items():
            assert schema["components"]["schemas"][name]["properties"][field]["description"] == meaning


async def test_which_parts_answer_is_shown(open_gateway: Open) -> None:
    """The metric uses the pings of readiness: a vector store without the collection is down."""
    async with open_gateway(collection=False) as gateway:
        assert (await gateway.client.get("/readyz")).status_code == 503
        assert await shown(gateway, "upstream_up") == {("embedder",): 1, ("reader",): 1, ("vectors",): 0}
