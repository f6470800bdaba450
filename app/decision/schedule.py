"""Which plan serves the operator's objective best, and a plain sentence that says why."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from app.decision.breakeven import percent
from app.decision.cost import Objective
from app.decision.forecast import Measured, Plan, Schedule, predict, work

__all__ = ["Measured", "Plan", "Schedule", "Variants", "candidates", "choose"]

# Of plans that differ by less, the one that gives the reader the least work is taken...
FRUGAL = 0.005
# ...and a plan in force stays until another is better by this, so that noise does not drive it to and fro.
STAY = 0.02
_SERIAL = Plan(Schedule.SERIAL)


@dataclass(frozen=True, slots=True)
class Variants:
    """The calibrator's variants: which one is in force, and what is foretold of each, that one too, by its flow.

    `lived`: what was measured of others while they were in force, not long ago; what was lived through is not foretold.
    """

    now: str
    foretold: Mapping[str, Measured]
    lived: Mapping[str, Measured] = field(default_factory=dict)


def choose(
    measured: Measured,
    objective: Objective,
    *,
    current: Plan | None = None,
    bypassed: bool = False,
    without: Collection[Schedule] = (),
    variants: Variants | None = None,
) -> Plan:
    """The plan that is expected to cost least; a bypass where none saves anything, or `bypassed` demands it.

    A bypass under way ends only for a plan that saves at least `STAY`. Plans of a schedule in `without` are not tried,
    whatever is expected of them; serial always is.
    """
    needed = {
        plan: tokens
        for plan, tokens in _weighed(measured, objective, variants)
        if plan.schedule is Schedule.SERIAL or plan.schedule not in without
    }
    gates = list(needed)
    best = min(gates, key=lambda plan: plan.ratio)
    resting = current is not None and current.bypass
    found = next((plan for plan in gates if current is not None and plan.same(replace(current, bypass=False))), None)
    if bypassed or best.ratio > (1.0 - STAY if resting else 1.0):
        if found is not None and found.ratio <= best.ratio + STAY:
            best = found
        return _bypass(measured, objective, best, demanded=bypassed)
    if resting or found is None or found.ratio > min(1.0, best.ratio + STAY):
        near = [plan for plan in gates if plan.ratio <= min(1.0, best.ratio + FRUGAL)]
        found = min(near, key=lambda plan: needed[plan])
    return replace(found, why=_why(measured, objective, found, gates))


def _weighed(measured: Measured, objective: Objective, variants: Variants | None) -> Iterator[tuple[Plan, float]]:
    """Every plan with what it is expected to cost, and the tokens that it gives the reader.

    What another variant would cost is foretold relative to the one in force, so that it shares the luck of the latter:
    both by what their certificates rest on, and then as much more or less than was really measured.
    """
    now = variants.now if variants is not None else None
    for plan in candidates(measured):
        yield replace(plan, means=now, ratio=predict(measured, objective, plan)), work(measured, plan)
    if variants is None:
        return
    for means, known in variants.lived.items():
        for schedule in Schedule:
            plan = Plan(schedule)
            yield replace(plan, means=means, ratio=predict(known, objective, plan)), work(known, plan)
    if (own := variants.foretold.get(variants.now)) is None:
        return
    given = work(own, own.serving or _SERIAL)
    own = replace(own, given=given)
    for means, other in variants.foretold.items():
        if means == variants.now or means in variants.lived:
            continue
        foretold = replace(other, given=given)
        for schedule in Schedule:
            plan = Plan(schedule)
            ratio, as_foretold = predict(foretold, objective, plan), predict(own, objective, plan)
            as_measured = predict(measured, objective, plan)
            if 0.0 < as_foretold < float("inf") and as_measured < float("inf"):
                ratio *= as_measured / as_foretold
            yield replace(plan, means=means, ratio=ratio), work(foretold, plan)


def candidates(measured: Measured) -> Iterator[Plan]:
    """Every plan that gates, the simplest first."""
    cuts = (False, True) if measured.exit is not None else (False,)
    sends = (False, True) if measured.pregate is not None else (False,)
    for sent, cut, schedule in product(sends, cuts, Schedule):
        yield Plan(schedule, exits=cut, pregate=sent)


_SPENT = {
    Objective.LATENCY: "time",
    Objective.TOKENS: "tokens",
    Objective.CALLS: "retrieval calls",
    Objective.MONEY: "money",
}
_COUNTED = (Objective.TOKENS, Objective.CALLS)
_ALWAYS = {1: "always reading one passage", 5: "always reading five passages"}


def _bypass(measured: Measured, objective: Objective, best: Plan, *, demanded: bool) -> Plan:
    plan = replace(best, bypass=True)
    always = _ALWAYS[measured.reference]
    if demanded:
        because = f"Served traffic shows that gating takes more {_SPENT[objective]} than {always}"
    else:
        because = f"Even the best plan, {best.name}, would take {_change(best.ratio, objective)} than {always}"
    why = f"{because}: all but {percent(measured.watch)} of the questions go without the gate."
    return replace(plan, ratio=predict(measured, objective, plan), why=why)


def _why(measured: Measured, objective: Objective, found: Plan, gates: Sequence[Plan]) -> str:
    said = f"{found.name.capitalize()} should take {_change(found.ratio, objective)} than {_ALWAYS[measured.reference]}"
    by_schedule, by_means = dict[str, float](), dict[str, float]()
    for plan in gates:
        if plan.means != found.means:
            name = f"with {plan.means}"
            by_means[name] = min(plan.ratio, by_means.get(name, plan.ratio))
        elif plan.schedule is not found.schedule:
            by_schedule[plan.schedule.value] = min(plan.ratio, by_schedule.get(plan.schedule.value, plan.ratio))
    others = [f"{name} {_change(ratio, objective)}" for name, ratio in (by_schedule | by_means).items()]
    return f"{said}; otherwise, at best, {_listed(others)}." if others else f"{said}."


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _change(ratio: float, objective: Objective) -> str:
    if ratio == float("inf"):
        return "more than the reader can bear"
    spent = _SPENT[objective]
    if abs(ratio - 1.0) < 0.0005:
        return f"as {'many' if objective in _COUNTED else 'much'} {spent}"
    less = "fewer" if objective in _COUNTED else "less"
    return f"{percent(abs(ratio - 1.0))} {'more' if ratio > 1.0 else less} {spent}"
