"""The first sentences of the dashboard: accuracy and cost of the served calibrator next to its reference."""

from collections.abc import Mapping
from typing import Any

from app.core.artifact import Artifact, Certificate
from app.economics.breakeven import passages, percent

_COSTS = {"latency": "time", "calls": "reads"}


def against_reference(artifact: Artifact | None) -> list[str]:
    """Sentences: what its test questions say, and its certificate. What the artifact lacks is left out."""
    if artifact is None:
        return []
    name, fit = ("ladder", artifact.ladder) if artifact.ladder else ("graded", artifact.policies.get("graded"))
    if fit is None:
        return []
    test = _mapping(artifact.report.get("test"))
    measured = _measured(name, fit.objective.value, _mapping(test.get("accuracy")), _mapping(test.get("cost")))
    certified = _certified(fit.certificate, fit.uncertified_reason)
    return [sentence for sentence in (measured, certified) if sentence]


def _measured(name: str, objective: str, accuracy: Mapping[str, Any], cost: Mapping[str, Any]) -> str | None:
    """Accuracy on test next to the most accurate fixed number of passages, and cost next to the same."""
    own = _value(accuracy.get(name))
    fixed = {k: value for k in accuracy if k[:1] == "k" and (value := _value(accuracy[k])) is not None}
    if own is None or not fixed:
        return None
    best = max(fixed, key=lambda k: fixed[k])
    read = "answering without passages" if best == "k0" else f"always reading {passages(int(best[1:]))}"
    said = f"On its test questions the policy {name} is right for {percent(own)}, {read} for {percent(fixed[best])}"
    means = _mapping(cost.get(objective))
    spent, reference = (_value(_mapping(means.get(each)).get("mean")) for each in (name, best))
    if spent is None or not reference:
        return f"{said}."
    change = spent / reference - 1.0
    unit, lower = _COSTS.get(objective, objective), "lower" if change < 0 else "higher"
    return f"{said}; its cost in {unit} is {percent(abs(change))} {lower}."


def _certified(certificate: Certificate | None, why: str | None) -> str:
    if certificate is None:
        return f"It is not certified: {why}." if why else "It is not certified."
    than, many = certificate.reference, certificate.reference.removeprefix("always-k")
    if many != than and many.isdigit():
        than = f"always reading {passages(int(many))}"
    elif than == "every fixed action":
        than = "every fixed number of passages"
    sure = percent(1.0 - certificate.delta)
    if certificate.epsilon <= 0.0:
        by = f"{100 * certificate.bound:.1f}"
        return f"Certified with {sure} confidence: more accurate than {than}, by at least {by} percentage points."
    points = f"{100 * certificate.epsilon:.1f}"
    return f"Certified with {sure} confidence: at most {points} percentage points less accurate than {than}."


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _value(found: object) -> float | None:
    """A number, also as the first of an interval."""
    if isinstance(found, Mapping):
        found = found.get("value")
    elif isinstance(found, list | tuple) and found:
        found = found[0]
    return float(found) if isinstance(found, int | float) else None
