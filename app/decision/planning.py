"""From what served traffic shows to what a plan is chosen by."""

from collections.abc import Mapping

from app.decision.breakeven import BreakEven, Comparison, Estimate, lacking
from app.decision.cost import Costs, Shares
from app.decision.forecast import Measured, Objective, Plan

_KS = (1, 5)


def measured_from(found: BreakEven, *, serving: Plan, busy: float) -> Measured | str:
    """What the figures of a window say, or which of them are missing.

    Probes that were spared or cut short count with what they took: they are part of the policy, not of the plan. A way
    of reading that is never taken costs as much as the other, which is right where it has no share.
    """
    shares = _shares(found)
    if shares is None:
        return found.skip_rate.needs or "questions that the gate decided"
    costs: dict[str, Costs | None] = {}
    for name in ("latency", "tokens", "money"):
        view = found.costs[name]
        costs[name] = _costs(view.parts) if view is not None else None
        if view is not None and costs[name] is None:
            return next(part.needs for part in view.parts.values() if part.needs) or "questions that were read for"
    latency, tokens = costs["latency"], costs["tokens"]
    assert latency is not None
    assert tokens is not None
    return Measured(
        latency,
        tokens,
        shares,
        money=costs["money"],
        busy=busy,
        serving=serving,
        reference=int(found.reference.removeprefix("k")),
    )


def live_ratio(found: BreakEven, objective: Objective) -> Estimate:
    """What gating costs over reading the reference for every question, as served; calls are never more than that."""
    view = found.costs.get(objective.value)
    against: Mapping[str, Comparison] = view.against if view is not None else {}
    compared = against.get(found.reference)
    return compared.gate_cost_ratio if compared is not None else lacking(0, "a cost that can exceed the reference")


def _shares(found: BreakEven) -> Shares | None:
    skipped, one, five = found.skip_rate.value, found.shares["k1"].value, found.shares["k5"].value
    if skipped is None or one is None or five is None:
        return None
    # Answers that were withheld are not told apart by what was read for them: they are read like the others.
    read = one + five
    k1 = (1.0 - skipped) * (one / read if read > 0.0 else 0.0)
    return Shares(skipped, k1, 1.0 - skipped - k1)


def _costs(parts: Mapping[str, Estimate]) -> Costs | None:
    value = {name: part.value for name, part in parts.items()}
    for k, other in (_KS, _KS[::-1]):
        if value[f"ob{k}"] is None:
            value[f"ret{k}"], value[f"ob{k}"] = value[f"ret{other}"], value[f"ob{other}"]
    known = {name: one for name, one in value.items() if one is not None}
    return Costs(**known) if len(known) == len(value) else None
