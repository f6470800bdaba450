"""From what served traffic shows to what a plan is chosen by."""

from collections.abc import Mapping
from dataclasses import replace

from app.decision.breakeven import RARE, BreakEven, Comparison, Estimate, lacking
from app.decision.cost import Costs, Shares
from app.decision.forecast import Measured, Objective, Plan

_KS = (1, 5)


def measured_from(found: BreakEven, *, serving: Plan, busy: float, most: int = 5) -> Measured | str:
    """What the figures of a window say, or which of them are missing; `most` is what the policy reads at the most.

    Probes that were spared or cut short count with what they took: they are part of the policy, not of the plan. A way
    of reading that is hardly ever taken costs as much as the other, which is right where it has no share.
    """
    shares, reference = _shares(found), int(found.reference.removeprefix("k"))
    if shares is None:
        return found.skip_rate.needs or "questions that the gate decided"
    needed = {reference, *(k for k, share in zip(_KS, (shares.k1, shares.k5), strict=True) if share > RARE)}
    costs: dict[str, Costs | None] = dict.fromkeys(found.costs)
    for name, view in found.costs.items():
        if view is not None:
            known = _costs(view.parts, needed)
            if isinstance(known, str):
                return known
            costs[name] = known
    # Where nothing ever reads five, one passage is what is fetched and read ahead.
    if most == reference == 1:
        shares = Shares(shares.k0, 0.0, 1.0 - shares.k0)
        costs = {name: replace(c, ret5=c.ret1, ob5=c.ob1) if c else None for name, c in costs.items()}
    latency, tokens = costs["latency"], costs["tokens"]
    assert latency is not None
    assert tokens is not None
    return Measured(latency, tokens, shares, money=costs["money"], busy=busy, serving=serving, reference=reference)


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


def _costs(parts: Mapping[str, Estimate], needed: set[int]) -> Costs | str:
    for name in ("cb", *(f"{part}{k}" for k in sorted(needed) for part in ("ret", "ob"))):
        if parts[name].value is None:
            return parts[name].needs or "questions that were read for"
    value = {name: part.value for name, part in parts.items()}
    for k, other in (_KS, _KS[::-1]):
        if value[f"ob{k}"] is None:
            value[f"ret{k}"], value[f"ob{k}"] = value[f"ret{other}"], value[f"ob{other}"]
    return Costs(**{name: one for name, one in value.items() if one is not None})
