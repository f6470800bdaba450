"""Schedules over HTTP: what receipts say of them, what `auto` makes of traffic, and an operator's own rules."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.decision.artifact import Early, Flow, Thresholds
from app.errors import ConfigurationError
from app.observers import gate_watch
from app.observers.planner import Planner
from tests.fakes.artifacts import a_fit, a_foresight, a_variant
from tests.fakes.gateway import FakeGateway

from .conftest import Open
from .test_breakeven import HALF_SURE, SURE, UNSURE, ask, breakeven, metrics
from .test_learning import eventually_kept
from .test_streaming import parsed, told

NOTHING = {"prompt_tokens": 0, "completion_tokens": 0}
SAID = {SURE: 0.9, HALF_SURE: 0.6, UNSURE: 0.3}


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look anew at every request: a second is long in a test."""
    monkeypatch.setattr(gate_watch, "FRESH_S", 0.0)


def scripted(gateway: FakeGateway) -> None:
    """Let the reader be as sure of each question as its name says."""
    for question, sure in SAID.items():
        gateway.reader.says(question, "By heart", k=0, sure=sure)
        for k in (1, 5):
            gateway.reader.says(question, f"From {k} passages", k=k, sure=0.9)


async def asked(gateway: FakeGateway, question: str, **more: Any) -> dict[str, Any]:
    response = await gateway.client.post("/answer", json={"question": question, **more})
    assert response.status_code == 200, response.text
    receipt: dict[str, Any] = response.json()
    return receipt


class Slowly:
    """Lets probes wait until a read beside them has ended, so that a race is always run to its end."""

    def __init__(self, gateway: FakeGateway) -> None:
        self._read = asyncio.Event()
        answer = gateway.reader._answer

        async def waiting(prompt: Any, max_tokens: int) -> Any:
            if not prompt.passages:
                await self._read.wait()
            whole = await answer(prompt, max_tokens)
            if prompt.passages:
                # Some turns of the loop later, when all of it has been read.
                asyncio.get_running_loop().call_later(0.05, self._read.set)
            return whole

        gateway.reader._answer = waiting  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("question", "schedule", "calls", "wasted"),
    [
        (SURE, "serial", {"used": 0, "wasted": 0}, False),
        (UNSURE, "serial", {"used": 1, "wasted": 0}, False),
        (UNSURE, "overlap", {"used": 1, "wasted": 0}, False),
        (SURE, "race", {"used": 0, "wasted": 1}, True),
        (HALF_SURE, "race", {"used": 1, "wasted": 0}, True),
        (UNSURE, "race", {"used": 1, "wasted": 0}, False),
    ],
)
async def test_a_receipt_says_what_was_for_nothing(
    open_gateway: Open, question: str, schedule: str, calls: dict[str, int], wasted: bool
) -> None:
    """Searches whose passages nobody read, and tokens of a read that nobody wanted; the same in the counters."""
    async with open_gateway(artifact={}, schedule=schedule) as gateway:
        scripted(gateway)
        if schedule == "race":
            Slowly(gateway)
        receipt = await asked(gateway, question)
        shown = await metrics(gateway)
    assert receipt["decision"]["schedule"] == schedule
    assert receipt["usage"]["calls"] == calls
    if not wasted:
        assert receipt["usage"]["wasted"] == NOTHING
    else:
        # Five passages, read to the end: three words and the end token.
        assert receipt["usage"]["wasted"]["completion_tokens"] == 4
        assert receipt["usage"]["wasted"]["prompt_tokens"] > receipt["usage"]["probe"]["prompt_tokens"]
        k = str(receipt["k"])
        assert shown["tokens_total"][k, "completion", "wasted"] == 4
    assert shown["retrieval_calls_total"] == {(use,): number for use, number in calls.items()}
    assert shown["plan_info"] == {("false", "as fitted", schedule): 1}


async def test_an_overlapping_search_for_nothing_is_counted(open_gateway: Open) -> None:
    """It was begun before the probe was sure."""
    async with open_gateway(artifact={}, schedule="overlap") as gateway:
        scripted(gateway)
        begun = asyncio.Event()
        search = gateway.vectors.search

        async def searching(*args: Any, **more: Any) -> Any:
            begun.set()
            return await search(*args, **more)

        answer = gateway.reader._answer

        async def probing(prompt: Any, max_tokens: int) -> Any:
            await begun.wait()
            return await answer(prompt, max_tokens)

        gateway.vectors.search = searching  # type: ignore[method-assign]
        gateway.reader._answer = probing  # type: ignore[method-assign]
        receipt = await asked(gateway, SURE)
    assert (receipt["action"], receipt["usage"]["calls"]) == ("k0", {"used": 0, "wasted": 1})
    assert receipt["usage"]["wasted"] == NOTHING


@pytest.mark.parametrize("schedule", ["serial", "overlap", "race"])
@pytest.mark.parametrize("abstain", [True, False])
async def test_streams_say_the_same_under_every_schedule(open_gateway: Open, schedule: str, abstain: bool) -> None:
    """The decision, then the passages, then the answer: never a piece of what was read ahead and not wanted."""
    async with open_gateway(artifact={}, schedule=schedule) as gateway:
        scripted(gateway)
        for question, answer in ((SURE, "By heart"), (HALF_SURE, "From 1 passages"), (UNSURE, "From 5 passages")):
            asking = {"question": question, "stream": True, "abstain": abstain}
            events = parsed(await gateway.client.post("/answer", json=asking))
            names = [name for name, _ in events]
            assert names[0] == "decision"
            assert names[-1] == "final"
            assert set(names[1:-1]) == ({"token"} if question == SURE else {"passages", "token"})
            assert told(events) == answer == events[-1][1]["answer"]
            assert events[-1][1]["decision"]["schedule"] == schedule


async def test_a_raced_stream_that_fails_after_its_first_word_ends_in_an_error(open_gateway: Open) -> None:
    """What was said stays said; the last event tells what happened."""
    async with open_gateway(artifact={}, schedule="race") as gateway:
        scripted(gateway)
        stream = gateway.reader.stream

        async def breaking(prompt: Any, *, max_tokens: int) -> AsyncIterator[Any]:
            async for piece in stream(prompt, max_tokens=max_tokens):
                yield piece
                if prompt.passages:
                    # Only once the probe has decided that this is wanted.
                    await asyncio.sleep(0.2)
                    raise ConnectionError("gone")

        gateway.reader.stream = breaking  # type: ignore[method-assign, assignment]
        asking = {"question": UNSURE, "stream": True, "abstain": False}
        events = parsed(await gateway.client.post("/answer", json=asking))
    assert [name for name, _ in events] == ["decision", "passages", "token", "error"]


async def test_breakeven_tells_the_plan(open_gateway: Open) -> None:
    """A plan that was set says so, and nothing was foretold of it."""
    async with open_gateway(artifact={}, schedule="overlap", objective="tokens") as gateway:
        plan = (await breakeven(gateway)).plan
    assert (plan.schedule.value, plan.bypass, plan.objective.value) == ("overlap", False, "tokens")
    assert (plan.expected_ratio, plan.why) == (None, "FETCHWISE_SCHEDULE=overlap says so.")


def planner_of(gateway: FakeGateway) -> Planner:
    planner = gateway.app.state.gateway.planner
    assert isinstance(planner, Planner)
    return planner


async def test_auto_waits_for_figures_and_then_chooses(open_gateway: Open) -> None:
    """Serial until it is known what questions cost; then what is foretold to cost least, and why."""
    async with open_gateway(artifact={}, schedule="auto", objective="tokens") as gateway:
        scripted(gateway)
        await asyncio.to_thread(planner_of(gateway).consider)
        plan = (await breakeven(gateway)).plan
        assert (plan.schedule.value, plan.expected_ratio) == ("serial", None)
        assert plan.why.endswith("It takes 30 questions that the gate decided, 0 so far.")
        # The artifact's fallback is one passage, so that is what would always be read.
        await ask(gateway, SURE, 40)
        await ask(gateway, HALF_SURE, 40)
        await asyncio.to_thread(planner_of(gateway).consider)
        found = await breakeven(gateway)
        receipt = await asked(gateway, SURE)
    tokens = found.costs["tokens"]
    assert tokens is not None
    assert found.plan.expected_ratio == pytest.approx(tokens.against["k1"].gate_cost_ratio.value)
    assert found.plan.why.startswith("Serial should take")
    assert receipt["decision"]["schedule"] == "serial"


async def test_auto_chooses_the_means(open_gateway: Open) -> None:
    """Probes cost tokens, and by the question alone half of them could be spared: from then on they are."""
    early = a_fit(thresholds=Thresholds(0.75, 0.0, Early(unasked=1.0)))
    own = a_fit(0.75, 0.0)
    halves = {
        "whole probes": Flow(0.0, 0.0, k0=0.5, k1=0.5, k5=0.0),
        "pre-gate": Flow(0.5, 0.0, k0=0.5, k1=0.0, k5=0.0),
    }
    variants = {means: a_variant(fit, flow=halves[means]) for means, fit in zip(halves, (own, early), strict=True)}
    changes = {"policies": {"graded": own}, "foresight": a_foresight(), "variants": variants}
    async with open_gateway(artifact=changes, schedule="auto", objective="tokens") as gateway:
        scripted(gateway)
        await ask(gateway, SURE, 40)
        await ask(gateway, HALF_SURE, 40)
        before = await asked(gateway, HALF_SURE)
        await asyncio.to_thread(planner_of(gateway).consider)
        found, shown = await breakeven(gateway), await metrics(gateway)
        after = await asked(gateway, HALF_SURE)
        otherwise = await asked(gateway, HALF_SURE, policy="utility")
    assert (before["decision"]["reason"], after["decision"]["reason"]) == ("borderline", "foreseen")
    assert after["decision"]["calibrator"]["certified"]
    assert otherwise["decision"]["reason"] != "foreseen"
    assert found.plan.means == "pre-gate"
    assert found.plan.why.startswith("Serial with pre-gate should take")
    assert "with whole probes" in found.plan.why
    assert ("false", "pre-gate", "serial") in shown["plan_info"]


async def test_auto_goes_without_a_gate_that_never_pays(open_gateway: Open) -> None:
    """Where every question is read for in the end, the probes are for nothing: most are spared, and receipts say so."""
    async with open_gateway(
        artifact={"policies": {"graded": a_fit(0.95, 0.0)}}, schedule="auto", objective="tokens"
    ) as gateway:
        scripted(gateway)
        await ask(gateway, HALF_SURE, 40)
        plan = await asyncio.to_thread(planner_of(gateway).consider)
        assert plan.bypass
        receipts = [await asked(gateway, HALF_SURE) for _ in range(30)]
        found = await breakeven(gateway)
        shown = await metrics(gateway)
    # One in fifty still meets the gate.
    bypassed = [receipt for receipt in receipts if receipt["decision"]["reason"] == "bypassed"]
    assert len(bypassed) >= 20
    assert all(receipt["usage"]["probe"] is None and receipt["action"] == "k1" for receipt in bypassed)
    assert found.plan.bypass
    assert "go without the gate" in found.plan.why
    assert ("true", "as fitted", found.plan.schedule.value) in shown["plan_info"]
    # They are none of the questions by which gating is judged.
    assert found.window.gated == 70 - len(bypassed)


async def test_a_gateway_that_races_closes_in_peace(open_gateway: Open) -> None:
    """Nothing that was begun beside a probe outlives the gateway."""
    async with open_gateway(artifact={}, schedule="race") as gateway:
        scripted(gateway)
        await asyncio.gather(*(asked(gateway, question) for question in SAID for _ in range(4)))
    assert [task for task in asyncio.all_tasks() if task.get_name() in {"fetch ahead", "read ahead"}] == []


async def test_an_operators_rules_are_read_from_a_file(open_gateway: Open, tmp_path: Path) -> None:
    """Words and phrases, one a line, with comments; a question that holds one is answered from passages."""
    rules = tmp_path / "rules.txt"
    rules.write_text("# what changes\n\n  Side effect  \nlatest\n", encoding="utf-8")
    async with open_gateway(artifact={}, mandatory_retrieval=rules) as gateway:
        for question in ("What is the LATEST news?", "Which side effect does it have?", "The side effects?"):
            gateway.reader.says(question, "By heart", k=0, sure=0.9)
        assert (await asked(gateway, "What is the LATEST news?"))["decision"]["reason"] == "retrieval_required"
        receipt = await asked(gateway, "Which side effect does it have?")
        assert (receipt["k"], receipt["usage"]["probe"]) == (1, None)
        assert receipt["decision"]["calibrator"]["certified"] is False
        # Whole words: another word is another word.
        assert (await asked(gateway, "The side effects?"))["decision"]["reason"] == "confident"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"objective": "money"}, "FETCHWISE_OBJECTIVE=money needs prices"),
        ({"schedule": "auto", "objective": "money"}, "FETCHWISE_OBJECTIVE=money needs prices"),
        ({"mandatory_retrieval": Path("nowhere.txt")}, "FETCHWISE_MANDATORY_RETRIEVAL=nowhere.txt cannot be used"),
    ],
)
async def test_what_cannot_be_done_is_refused_at_the_start(
    open_gateway: Open, settings: dict[str, Any], sentence: str
) -> None:
    """With a sentence that names the setting."""
    with pytest.raises(ConfigurationError, match=sentence):
        async with open_gateway(artifact={}, **settings):
            pass


async def test_a_rule_without_a_word_is_refused(open_gateway: Open, tmp_path: Path) -> None:
    """It could never hold, which is hardly what was meant."""
    rules = tmp_path / "rules.txt"
    rules.write_text("latest\n???\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="has no word"):
        async with open_gateway(artifact={}, mandatory_retrieval=rules):
            pass


async def test_money_with_a_tariff_is_chosen_by(open_gateway: Open) -> None:
    """Free tokens and dear calls: what calls least."""
    async with open_gateway(artifact={}, schedule="auto", objective="money", tariff_call=1.0) as gateway:
        scripted(gateway)
        await ask(gateway, SURE, 40)
        await ask(gateway, HALF_SURE, 40)
        plan = await asyncio.to_thread(planner_of(gateway).consider)
    assert (plan.schedule.value, plan.bypass) == ("serial", False)
    assert plan.ratio == pytest.approx(0.5)


async def test_the_decision_log_keeps_schedule_and_waste(open_gateway: Open) -> None:
    """So that what a schedule cost can be counted later."""
    async with open_gateway(artifact={}, schedule="race") as gateway:
        scripted(gateway)
        Slowly(gateway)
        receipt = await asked(gateway, SURE)
        rows = await eventually_kept(gateway, "decisions", 1)
    assert [row["schedule"] for row in rows] == ["race"]
    assert rows[0]["wasted_completion_tokens"] == receipt["usage"]["wasted"]["completion_tokens"] == 4
    assert json.loads(rows[0]["passages"]) == []
