"""The bypass over HTTP, and mandatory rules."""

from pathlib import Path
from typing import Any

import pytest

from app.economics import bypass
from app.errors import ConfigurationError
from tests.fakes.artifacts import a_fit
from tests.waiting import until

from .conftest import Open
from .test_breakeven import HALF_SURE, breakeven


async def test_breakeven_says_that_the_bypass_is_off(open_gateway: Open) -> None:
    """By default every question goes through the gate, whatever it costs."""
    async with open_gateway(artifact={}, objective="tokens") as gateway:
        found = (await breakeven(gateway)).bypass
        shown = await gateway.metric("bypass_active")
    assert (found.setting, found.on, found.objective.value) == ("off", False, "tokens")
    assert found.reason == "FETCHWISE_BYPASS=off: every question goes through the gate."
    assert shown == 0


async def test_a_gate_that_never_pays_is_bypassed(open_gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every question reads passages anyway, most skip the probe; receipts, metric and `/breakeven` show it."""
    monkeypatch.setattr("app.wiring.gateway.BYPASS_EVERY_S", 0.02)
    # An estimate as soon as there are enough new questions.
    monkeypatch.setattr(bypass, "LOOKS_PER_WINDOW", 1e9)
    async with open_gateway(
        artifact={"policies": {"graded": a_fit(0.95, 0.0)}}, bypass="auto", objective="tokens"
    ) as gateway:
        gateway.reader.says(HALF_SURE, "By heart", k=0, sure=0.6)
        gateway.reader.says(HALF_SURE, "From a passage", k=1, sure=0.9)
        receipts = []

        async def bypassing() -> bool:
            receipts.append(await gateway.receipt(HALF_SURE))
            return (await breakeven(gateway)).bypass.on

        await until(bypassing)
        receipts += [await gateway.receipt(HALF_SURE) for _ in range(30)]
        found, shown = await breakeven(gateway), await gateway.metric("bypass_active")
    # One in fifty still meets the gate.
    bypassed = [receipt for receipt in receipts if receipt["decision"]["reason"] == "bypassed"]
    assert len(bypassed) >= 20
    assert all(receipt["usage"]["probe"] is None and receipt["action"] == "k1" for receipt in bypassed)
    assert (found.bypass.setting, found.bypass.on) == ("auto", True)
    assert "bypass the gate" in found.bypass.reason
    assert shown == 1
    # They are none of the questions by which gating is judged.
    assert found.window.gated == len(receipts) - len(bypassed)


async def test_an_operators_rules_are_read_from_a_file(open_gateway: Open, tmp_path: Path) -> None:
    """A question that contains a word or phrase of the file is answered from passages."""
    rules = tmp_path / "rules.txt"
    rules.write_text("# what changes\n\n  Side effect  \nlatest\n", encoding="utf-8")
    async with open_gateway(artifact={}, mandatory_retrieval=rules) as gateway:
        for question in ("What is the LATEST news?", "Which side effect does it have?", "The side effects?"):
            gateway.reader.says(question, "By heart", k=0, sure=0.9)
        assert (await gateway.receipt("What is the LATEST news?"))["decision"]["reason"] == "retrieval_required"
        receipt = await gateway.receipt("Which side effect does it have?")
        assert (receipt["k"], receipt["decision"]["p_closed_book"]) == (1, pytest.approx(0.9))
        assert receipt["decision"]["calibrator"]["certified"] is False
        # Whole words: another word is another word.
        assert (await gateway.receipt("The side effects?"))["decision"]["reason"] == "confident"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"objective": "money"}, "FETCHWISE_OBJECTIVE=money needs prices"),
        ({"mandatory_retrieval": Path("nowhere.txt")}, "FETCHWISE_MANDATORY_RETRIEVAL=nowhere.txt cannot be used"),
    ],
)
async def test_what_cannot_be_done_is_refused_at_the_start(
    open_gateway: Open, settings: dict[str, Any], sentence: str
) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigurationError, match=sentence):
        async with open_gateway(artifact={}, **settings):
            pass


async def test_a_rule_without_a_word_is_refused(open_gateway: Open, tmp_path: Path) -> None:
    """A rule that can never match is refused at the start."""
    rules = tmp_path / "rules.txt"
    rules.write_text("latest\n???\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="contains no word"):
        async with open_gateway(artifact={}, mandatory_retrieval=rules):
            pass
