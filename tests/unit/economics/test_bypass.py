"""The bypass by served traffic: when the gate is given up and taken up again, and what is said of it."""

import logging
from dataclasses import replace
from typing import cast

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
    """A bypass over rows that the test puts there, a clock and a calibrator that it sets."""

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

    def looks(self) -> list[bool]:
        """Look as often as a change takes."""
        seen = []
        for _ in range(PATIENCE):
            self.bypass.update()
            seen.append(self.bypass.on())
        return seen


def test_given_up_and_taken_up_again() -> None:
    """Out after three looks that agree, in again after three more, each time with the figures as the reason."""
    gated = Gated(gated_rows(LOSING, MIX))
    assert gated.looks() == [False, False, True]
    assert gated.bypass.reason.startswith("Gating costs")
    assert gated.bypass.reason.endswith("All but 2.0 % of the questions bypass the gate.")
    gated.rows = gated_rows(PAYING, MIX)
    assert gated.looks() == [True, True, False]
    assert gated.bypass.reason.startswith("Gating saves")
    assert gated.bypass.reason.endswith("Every question goes through the gate.")


def test_too_few_figures_change_nothing() -> None:
    """And what is missing is said."""
    gated = Gated(gated_rows(LOSING, {0: 5, 5: 5}))
    assert not any(gated.looks())
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
def test_it_is_judged_by_the_objective(objective: Objective, tariff: Tariff | None, lost: bool) -> None:
    """A slow probe of few tokens loses time alone; calls are never more than always reading makes."""
    gated = Gated(gated_rows(LOSING, MIX), objective=objective, tariff=tariff)
    assert gated.looks()[-1] is lost


def test_a_new_calibrator_begins_anew() -> None:
    """What gating by the old one cost says nothing of it."""
    gated = Gated(gated_rows(LOSING, MIX))
    assert gated.looks()[-1]
    gated.version, gated.now = "two", 200.0
    assert not any(gated.looks())
    gated.rows = gated_rows(LOSING, MIX, at=201.0)
    assert gated.looks()[-1]


def test_a_change_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Once, in the words that `/breakeven` has for it."""
    gated = Gated(gated_rows(LOSING, MIX))
    with caplog.at_level(logging.INFO, logger=bypass_module.__name__):
        gated.looks()
        gated.looks()
    assert [record.getMessage() for record in caplog.records] == [gated.bypass.reason]


async def test_a_look_that_fails_changes_nothing() -> None:
    """The bypass stays as it is, and the next look counts all the same."""
    gated = Gated(gated_rows(LOSING, MIX))
    rows, gated.rows = gated.rows, None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        await gated.bypass.refresh()
    assert not gated.bypass.on()
    gated.rows = rows
    for _ in range(PATIENCE):
        await gated.bypass.refresh()
    assert gated.bypass.on()
