"""Turns of chats in a running gateway: they are logged, explored, shadowed, judged and decided again like answers."""

import json

import pytest

from app.errors import UpstreamUnavailable

from .conftest import Open
from .test_chat import ASKED, NONE, ONE, OUT_OF_SCOPE, WITH_RULE, chat
from .test_feedback import say
from .test_learning import eventually_kept
from .test_replay import decided_again


async def test_a_drawn_turn_keeps_what_would_have_been_chosen(open_gateway: Open) -> None:
    """Every k comes up, and the chances favour the k of the rule."""
    async with open_gateway(artifact=WITH_RULE, explore_share=0.9) as gateway:
        gateway.reader.says(ASKED, "Lenkograd", k=0, sure=ONE)
        given = [(await chat(gateway))["fetchwise"] for _ in range(40)]
        rows = await eventually_kept(gateway, "decisions", 40)
        assert all(not one.differences and one.problem is None for one in (await decided_again(gateway, 40))[1])
    assert {receipt["k"] for receipt in given} == {0, 1, 5}
    for row in rows:
        chances = json.loads(row["propensities"])
        assert chances == pytest.approx({"k0": 0.3, "k1": 0.4, "k5": 0.3})
    assert {row["mode"] for row in rows} == {"chat"}


async def test_a_turn_is_shadowed_and_judged_by_its_text(open_gateway: Open) -> None:
    """The run answers the question behind it at every k; the verdict is about what was written."""
    async with open_gateway(artifact=WITH_RULE, shadow_share=1.0) as gateway:
        gateway.reader.says(ASKED, "Lenkograd", k=0, sure=NONE)
        receipt = (await chat(gateway))["fetchwise"]
        (run,) = await eventually_kept(gateway, "full_runs", 1)
        judged = await say(gateway, receipt["id"], references=[receipt["answer"]])
        (row,) = gateway.logged("decisions")
        assert await gateway.metric("estimated_accuracy") == 0.0, "what is written has no confidence"
    assert receipt["feedback_wanted"]
    assert judged.json()["correct"] is True
    assert json.loads(run["outcomes"]).keys() == {"0", "1", "5"}
    assert (row["mode"], row["standalone"], row["question"]) == ("chat", "as_asked", ASKED)
    assert (row["confidence"], row["answer"]) == (None, receipt["answer"])


@pytest.mark.parametrize("missing", ["note", "withhold", "answer"])
@pytest.mark.parametrize("world", ["found", "search down", "out of scope", "probe down"])
async def test_every_turn_is_decided_again(open_gateway: Open, missing: str, world: str) -> None:
    """From its row alone, whatever was missing and whatever was wanted then."""
    async with open_gateway(artifact=OUT_OF_SCOPE if world == "out of scope" else WITH_RULE) as gateway:
        if world == "search down":
            gateway.vectors.fail_with = UpstreamUnavailable("vectors", "down")
        if world == "probe down":
            gateway.reader.fail_with, gateway.reader.fail_on_k = UpstreamUnavailable("reader", "down"), 0
        body = await chat(gateway, fetchwise={"missing": missing})
        (_, (again,)) = await decided_again(gateway, 1)
    assert again.differences == ()
    assert again.problem is None
    lacking = world in ("search down", "out of scope")
    assert body["fetchwise"]["abstained"] is (lacking and missing == "withhold")
