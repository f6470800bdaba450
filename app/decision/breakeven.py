"""Whether gating pays: estimates with their intervals, the verdict they allow, and one plain sentence on it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# The fewest questions from which a mean or a share is shown.
MIN_SAMPLE = 30
# A way of reading that fewer of the gated questions take need not be known well: it hardly moves what the gate costs.
RARE = 0.05
Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval, from n questions; without a value, `needs` says what is missing."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    needs: str | None = None


class Verdict(StrEnum):
    """What the interval of the cost ratio allows one to say."""

    SAVES = "saves"
    COSTS = "costs"
    UNCLEAR = "unclear"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The gate against reading the same number of passages for every question."""

    always: Estimate
    break_even_skip: Estimate
    gate_cost_ratio: Estimate
    verdict: Verdict
    sentence: str


@dataclass(frozen=True, slots=True)
class CostView:
    """Everything in one unit: each part of a question, the gate, and the gate against each reference."""

    unit: str
    parts: Mapping[str, Estimate]
    gate: Estimate
    against: Mapping[str, Comparison]


@dataclass(frozen=True, slots=True)
class Covered:
    """What the figures were measured on."""

    seconds: float
    covered_seconds: float
    answers: int
    gated: int
    workers: int


@dataclass(frozen=True, slots=True)
class BreakEven:
    """What gating costs, what it would cost without, and from which skip rate it pays."""

    window: Covered
    sentence: str
    reference: str
    skip_rate: Estimate
    shares: Mapping[str, Estimate]
    costs: Mapping[str, CostView | None]
    caveats: tuple[str, ...]


def lacking(n: int, needs: str) -> Estimate:
    """No figure, and what it would take."""
    return Estimate(None, None, None, n, needs)


def share(count: int, n: int, *, of: str) -> Estimate:
    """A share with Wilson's interval, which stays inside [0, 1] and does not collapse at its ends."""
    if n < MIN_SAMPLE:
        return lacking(n, missing(n, of))
    p, z2 = count / n, Z95 * Z95
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    # The ends are p itself where nothing or everything was counted; rounding must not say otherwise.
    return Estimate(p, min(p, max(0.0, centre - half)), max(p, min(1.0, centre + half)), n)


def missing(n: int, of: str) -> str:
    """Say how many questions of a kind are still to come."""
    return f"{MIN_SAMPLE} {of}, {n} so far"


def verdict(ratio: Estimate) -> Verdict:
    """Saving or costing only where the whole interval says so."""
    if ratio.low is None or ratio.high is None:
        return Verdict.UNKNOWN
    if ratio.high < 1.0:
        return Verdict.SAVES
    return Verdict.COSTS if ratio.low > 1.0 else Verdict.UNCLEAR


_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_SPENT = {"latency": "time", "tokens": "tokens", "money": "money"}


def sentence(cost: str, reference: int, ratio: Estimate, even: Estimate, skip: Estimate) -> str:
    """The verdict as a person would say it."""
    always, spent = f"always reading {passages(reference)}", _SPENT[cost]
    found = verdict(ratio)
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return f"Whether gating saves {spent} against {always} is not known yet: it takes {ratio.needs}."
    if found is Verdict.SAVES:
        said = f"Gating saves {percent(1 - ratio.value)} of the {spent} of {always}"
    elif found is Verdict.COSTS:
        said = f"Gating costs {percent(ratio.value - 1)} more {spent} than {always}"
    else:
        said = (
            f"Gating takes between {_change(ratio.low)} and {_change(ratio.high)} {spent} than {always}: "
            "too close to call"
        )
    return said + _from_when(found, even, skip)


def _from_when(found: Verdict, even: Estimate, skip: Estimate) -> str:
    if even.value is None or skip.value is None:
        return "."
    if even.value > 1.0:
        return "; with these costs it cannot pay, however much is skipped."
    if even.value == 0.0:
        return "; with these costs it pays even if nothing is skipped."
    pays = "it would pay" if found is Verdict.COSTS else "it pays"
    return f"; {pays} from {percent(even.value)} skipped; now {percent(skip.value)}."


def _change(ratio: float) -> str:
    return f"{percent(abs(ratio - 1))} {'more' if ratio >= 1 else 'less'}"


def passages(k: int) -> str:
    """A number of passages in words."""
    return f"{_NUMBERS[k] if k < len(_NUMBERS) else k} {'passage' if k == 1 else 'passages'}"


def percent(share: float) -> str:
    """A share as per cent, to a tenth where it is small."""
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"
