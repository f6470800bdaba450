"""`POST /answer` over fakes: the options of a request. The golden walks test the result of each option."""

from typing import Any

import pytest

from tests.fakes.gateway import ASKED, FakeGateway

from .conftest import Open


@pytest.mark.parametrize("changes", [{"max_tokens": 24}, {"collection": "other"}])
async def test_a_calibrator_for_something_else(open_gateway: Open, changes: dict[str, Any]) -> None:
    """A calibrator that does not match the running system is not used."""
    async with open_gateway(artifact=changes) as gateway:
        assert (await gateway.receipt())["decision"]["reason"] == "not_calibrated"


async def test_naming_a_default_changes_nothing(gateway: FakeGateway) -> None:
    """An answer stays certified with the calibrator's own max_tokens and an empty filter."""
    receipt = await gateway.receipt(max_tokens=48, filter={})
    assert receipt["decision"]["calibrator"]["certified"] is True


async def test_the_question_is_cleaned(gateway: FakeGateway) -> None:
    """White space around a question is removed; line breaks and tabs inside are allowed."""
    await gateway.receipt(f"  {ASKED}\n")
    assert gateway.reader.prompts[0].question == ASKED
    await gateway.receipt("What\tis\r\nthis? 🎉 é")
    assert gateway.reader.prompts[-1].question == "What\tis\r\nthis? 🎉 é"


async def test_the_longest_question(gateway: FakeGateway) -> None:
    """A question of exactly the maximum length is accepted, counted in characters without surrounding white space."""
    await gateway.receipt("é" * 200 + "   ")
