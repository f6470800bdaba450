"""From what served traffic shows to what a plan is chosen by."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.decision.artifact import Flow
from app.decision.breakeven import RARE, BreakEven, Comparison, Estimate, lacking
from app.decision.cost import NO_EXIT, Costs, Exit, Objective, Shares
from app.decision.forecast import Measured, Plan
from app.decision.spending import Pregate

_KS = (1, 5)


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe takes that runs to its end, and the embedding that a pre-gate puts before it."""

    ms: float
    tokens: float
    money: float
    embed_ms: float


@dataclass(frozen=True, slots=True)
class Unasked:
    """Gated questions that were not probed: shares of all of them, by what they read, and what embedding took."""

    k1: float = 0.0
    k5: float = 0.0
    embed_ms: float = 0.0


_ALL_PROBED = Unasked()


def measured_from(
    found: BreakEven, *, serving: Plan, busy: float, most: int = 5, unasked: Unasked = _ALL_PROBED
) -> Measured | str:
    """What the figures of a window say, or which of them are missing; `most` is what the policy reads at the most.

    Probes that were cut short count with what they took: they are part of the policy, not of the plan. So are questions
    that were not probed, which have nothing beside which anything could run. A way of reading that is hardly ever taken
    costs as much as the other, which is right where it has no share.
    """
    shares, reference = _shares(found), int(found.reference.removeprefix("k"))
    if shares is None:
        return found.skip_rate.needs or "questions that the gate decided"
    needed = {reference, *(k for k, share in zip(_KS, (shares.k1, shares.k5), strict=True) if share > RARE)}
    costs: dict[str, Costs | None] = dict.fromkeys(found.costs)
    probed = 1.0 - unasked.k1 - unasked.k5
    for name, view in found.costs.items():
        if view is not None:
            known = _costs(view.parts, needed)
            if isinstance(known, str):
                return known
            costs[name] = replace(known, cb=known.cb / probed) if probed > 0.0 else known
    # Where nothing ever reads five, one passage is what is fetched and read ahead.
    one = most == reference == 1 and unasked.k5 == 0.0
    if one:
        costs = {name: replace(c, ret5=c.ret1, ob5=c.ob1) if c else None for name, c in costs.items()}
    # Answers that were withheld blur the shares a little, so they are made to add up again.
    k1, k5 = max(0.0, shares.k1 - unasked.k1), max(0.0, shares.k5 - unasked.k5)
    ways = (unasked.k1, unasked.k5, shares.k0, k1, k5)
    shares, early = _ways(Flow(*(share / sum(ways) for share in ways)), unasked.embed_ms, one=one)
    latency, tokens = costs["latency"], costs["tokens"]
    assert latency is not None
    assert tokens is not None
    return Measured(
        latency, tokens, shares, early=early, money=costs["money"], busy=busy, serving=serving, reference=reference
    )


def by_flow(found: BreakEven, flow: Flow, probe: Probe, *, serving: Plan, busy: float, most: int) -> Measured | None:
    """What would be measured if questions went another way: their shares as certified, what each way costs as served.

    None where they would go a way that nobody has gone here yet.
    """
    most = most if flow.unasked5 == 0.0 else 5
    served = measured_from(found, serving=serving, busy=busy, most=most)
    if isinstance(served, str) or not all(_known(found, k) for k in _KS if _reading(flow, k) > RARE):
        return None
    shares, early = _ways(flow, probe.embed_ms, one=most == served.reference == 1)
    return replace(
        served,
        latency=replace(served.latency, cb=probe.ms),
        tokens=replace(served.tokens, cb=probe.tokens),
        money=replace(served.money, cb=probe.money) if served.money is not None else None,
        shares=shares,
        early=early,
    )


def _ways(flow: Flow, embed_ms: float, *, one: bool) -> tuple[Shares, Pregate | None]:
    """A flow as plans reckon with it; `one`: one passage is what is fetched and read ahead."""
    k1, k5 = (0.0, flow.k1 + flow.k5) if one else (flow.k1, flow.k5)
    read, unasked = k1 + k5, flow.unasked1 + flow.unasked5
    cut = Exit(min(1.0, flow.cut / read), flow.spent) if flow.cut > 0.0 else NO_EXIT
    if unasked == 0.0:
        return _adding_up(flow.k0, k1, k5), None if cut is NO_EXIT else Pregate(0.0, then=cut)
    # As if those that are not probed would have been read for anyway: what they would have come to plays no part.
    reading = read + unasked
    shares = _adding_up(flow.k0, reading * k1 / read, reading * k5 / read) if read else _adding_up(flow.k0, 0, reading)
    return shares, Pregate(min(1.0, unasked / reading), one=flow.unasked1 / unasked, embed=embed_ms, then=cut)


def _adding_up(k0: float, k1: float, k5: float) -> Shares:
    total = k0 + k1 + k5
    return Shares(k0 / total, k1 / total, max(0.0, 1.0 - k0 / total - k1 / total))


def _reading(flow: Flow, k: int) -> float:
    return flow.k1 + flow.unasked1 if k == 1 else flow.k5 + flow.unasked5


def _known(found: BreakEven, k: int) -> bool:
    return all(view is None or view.parts[f"ob{k}"].value is not None for view in found.costs.values())


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
