"""When to stop asking the gate because it loses, and when to ask it again: by intervals, and not at the first look."""

from dataclasses import dataclass

from app.decision.breakeven import BreakEven
from app.decision.cost import Objective
from app.decision.intervals import Interval, lacking

# The share of questions that still meets the gate while all others bypass it, so that its return can be noticed.
WATCH = 0.02
# Looks in a row that must agree, so that one odd window changes nothing.
PATIENCE = 3
# What gating must surely save before it is taken up again; the gap to 1, where it is given up, stops to and fro.
MARGIN = 0.02


@dataclass(frozen=True, slots=True)
class Bypass:
    """Whether most questions go without the gate, and how many looks in a row have spoken for a change."""

    on: bool = False
    looks: int = 0

    def look(self, ratio: Interval, *, patience: int = PATIENCE, margin: float = MARGIN) -> "Bypass":
        """The state after one more estimate of what gating costs over always reading the same passages.

        Given up where the whole interval lies above 1, taken up again where it lies at 1 - `margin` or below. An
        estimate that is lacking, or too wide to say, speaks for no change.
        """
        if ratio.low is None or ratio.high is None:
            return Bypass(self.on)
        speaks = ratio.high <= 1.0 - margin if self.on else ratio.low > 1.0
        if not speaks:
            return Bypass(self.on)
        looks = self.looks + 1
        return Bypass(not self.on) if looks >= patience else Bypass(self.on, looks)


def live_ratio(found: BreakEven, objective: Objective) -> Interval:
    """What gating costs over reading the reference for every question, as served.

    Lacking for retrieval calls, of which gating never makes more, and for money without a tariff.
    """
    view = found.costs.get(objective.value)
    if view is None:
        return lacking(0, "a cost that can exceed the reference")
    return view.against[found.reference].gate_cost_ratio
