"""The bypass on served traffic: when it turns on and off, and the reason it gives."""

import logging
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from app.core.cost import Objective, Tariff
from app.economics import bypass as bypass_module
from app.economics.bypass import PATIENCE, BypassWatch
from app.economics.view import TrafficView
from app.economics.window import Rows, Traffic, TrafficWindow
from tests.fakes.traffic import Costs, gated_rows

PAYING = Costs(cb=10.0, ret=20.0, ob={5: 80.0})
LOSING = replace(PAYING, cb=200.0)
MIX = {0: 300, 5: 700}


class Gated:
    """A bypass on rows, a clock and a calibrator that the test sets."""

    def __init__(self, rows: Rows, *, objective: Objective = Objective.LATENCY, tariff: Tariff | None = None) -> None:
        self.rows, self.now, self.version = rows, 100.0, "one"
        view = TrafficView(
            cast("TrafficWindow", self),
            seconds=900,
            reference=lambda: 5,
            tariff=tariff or Tariff(),
            ks=(0, 1, 5),
            clock=self.clock,
        )
        self.bypass = BypassWatch(view, objective=objective, calibrator=lambda: self.version, clock=self.clock)

    def read(self, _: float) -> Traffic:
        return Traffic(self.rows, 900.0, 1)

    def clock(self) -> float:
        return self.now

    def updates(self) -> list[bool]:
        """Update as often as a change requires, each time after enough time with the same traffic again."""
        seen = []
        for _ in range(PATIENCE):
            self.pass_time()
            self.bypass.update()
            seen.append(self.bypass.on())
        return seen

    def pass_time(self) -> None:
        self.now += 300.0
        self.rows["at"] = self.now - 1.0


def test_bypass_turns_on_and_off_again() -> None:
    """On after three updates that agree, off after three more, each time with the figures as the reason."""
    gated = Gated(gated_rows(LOSING, MIX))
    assert gated.updates() == [False, False, True]
    assert gated.bypass.reason.startswith("Gating costs")
    assert gated.bypass.reason.endswith("All but 2.0 % of the questions bypass the gate.")
    gated.rows = gated_rows(PAYING, MIX)
    assert gated.updates() == [True, True, False]
    assert gated.bypass.reason.startswith("Gating saves")
    assert gated.bypass.reason.endswith("Every question goes through the gate.")


def test_no_question_counts_twice() -> None:
    """However often one looks, three estimates take the questions of three spans of time."""
    gated = Gated(gated_rows(LOSING, MIX))
    gated.pass_time()
    for _ in range(50):
        gated.now += 10.0
        gated.bypass.update()
    assert not gated.bypass.on()
    assert gated.updates()[1]


def test_questions_collect_until_there_are_enough() -> None:
    """A look at too few of them is no estimate: it neither counts nor begins a new span."""
    gated = Gated(gated_rows(LOSING, MIX))
    assert gated.updates()[-1]
    few = gated_rows(PAYING, {0: 10, 5: 25})
    for _ in range(PATIENCE):
        gated.rows = few
        gated.pass_time()
        gated.bypass.update()
        gated.rows, gated.now = np.concatenate([few, few]), gated.now + 10.0
        gated.bypass.update()
    assert not gated.bypass.on()


def test_small_sample_changes_nothing() -> None:
    """The reason says what is missing."""
    gated = Gated(gated_rows(LOSING, {0: 5, 5: 5}))
    assert not any(gated.updates())
    assert "that needs 30 questions that the gate decided, 10 so far" in gated.bypass.reason


@pytest.mark.parametrize(
    ("objective", "tariff", "lost"),
    [
        (Objective.LATENCY, None, True),
        (Objective.TOKENS, None, False),
        (Objective.CALLS, None, False),
        (Objective.MONEY, Tariff(call=1.0), False),
    ],
)
def test_bypass_follows_the_objective(objective: Objective, tariff: Tariff | None, lost: bool) -> None:
    """A slow probe with few tokens loses time only; the number of calls is never above that of always reading."""
    gated = Gated(gated_rows(LOSING, MIX), objective=objective, tariff=tariff)
    assert gated.updates()[-1] is lost


def test_new_calibrator_resets_the_bypass() -> None:
    """The cost of gating with the old calibrator does not apply to the new one."""
    gated = Gated(gated_rows(LOSING, MIX))
    assert gated.updates()[-1]
    gated.version = "two"
    gated.bypass.update()
    assert not gated.bypass.on()
    assert gated.updates() == [False, False, True]


def test_change_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the sentence of `/breakeven`."""
    gated = Gated(gated_rows(LOSING, MIX))
    with caplog.at_level(logging.INFO, logger=bypass_module.__name__):
        gated.updates()
        gated.updates()
    assert [record.getMessage() for record in caplog.records] == [gated.bypass.reason]


async def test_failed_update_changes_nothing() -> None:
    """The bypass keeps its state, and the next update counts."""
    gated = Gated(gated_rows(LOSING, MIX))
    rows, gated.rows = gated.rows, None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        await gated.bypass.refresh()
    assert not gated.bypass.on()
    gated.rows = rows
    for _ in range(PATIENCE):
        gated.pass_time()
        await gated.bypass.refresh()
    assert gated.bypass.on()
