"""Which plan serves the operator's objective best, and a plain sentence that says why."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product

from app.decision.breakeven import percent
from app.decision.forecast import Measured, Objective, Plan, Schedule, predict, work

__all__ = ["Measured", "Objective", "Plan", "Schedule", "candidates", "choose"]

# Of plans that differ by less, the one that gives the reader the least work is taken...
FRUGAL = 0.005
# ...and a plan in force stays until another is better by this, so that noise does not drive it to and fro.
STAY = 0.02


def choose(
    measured: Measured,
    objective: Objective,
    *,
    current: Plan | None = None,
    bypassed: bool = False,
    without: Collection[Schedule] = (),
) -> Plan:
    """The plan that is expected to cost least; a bypass where none saves anything, or `bypassed` demands it.

    A bypass under way ends only for a plan that saves at least `STAY`. Plans of a schedule in `without` are not tried,
    whatever is expected of them; serial always is.
    """
    gates = [
        replace(plan, ratio=predict(measured, objective, plan))
        for plan in candidates(measured)
        if plan.schedule is Schedule.SERIAL or plan.schedule not in without
    ]
    best = min(gates, key=lambda plan: plan.ratio)
    resting = current is not None and current.bypass
    if bypassed or best.ratio > (1.0 - STAY if resting else 1.0):
        return _bypass(measured, objective, best, demanded=bypassed)
    found = next((plan for plan in gates if current is not None and plan.same(current)), None)
    if found is None or found.ratio > min(1.0, best.ratio + STAY):
        near = [plan for plan in gates if plan.ratio <= min(1.0, best.ratio + FRUGAL)]
        found = min(near, key=lambda plan: work(measured, plan))
    return replace(found, why=_why(measured, objective, found, gates))


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
    others = [
        f"{one.value} {_change(min(plan.ratio for plan in gates if plan.schedule is one), objective)}"
        for one in Schedule
        if one is not found.schedule and any(plan.schedule is one for plan in gates)
    ]
    return f"{said}; otherwise, at best, {' and '.join(others)}." if others else f"{said}."


def _change(ratio: float, objective: Objective) -> str:
    if ratio == float("inf"):
        return "more than the reader can bear"
    spent = _SPENT[objective]
    if abs(ratio - 1.0) < 0.0005:
        return f"as {'many' if objective in _COUNTED else 'much'} {spent}"
    less = "fewer" if objective in _COUNTED else "less"
    return f"{percent(abs(ratio - 1.0))} {'more' if ratio > 1.0 else less} {spent}"
