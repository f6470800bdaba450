"""Whether gating pays: estimates with their intervals, a verdict, and a sentence that states it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.certify.intervals import MIN_SAMPLE, Interval, missing, unknown_interval, wilson

# Up to this share of gated questions, the cost of a reference needs no caveat.
RARE = 0.05


class Verdict(StrEnum):
    """The conclusion from the interval of the cost ratio."""

    SAVES = "saves"
    COSTS = "costs"
    UNCLEAR = "unclear"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The gate, compared with reading the same number of passages for every question."""

    always: Interval
    break_even_skip: Interval
    gate_cost_ratio: Interval
    verdict: Verdict
    sentence: str


@dataclass(frozen=True, slots=True)
class CostView:
    """Costs in one unit: of each stage, of the gate, and of the gate compared with each reference."""

    unit: str
    stages: Mapping[str, Interval]
    gate: Interval
    against: Mapping[str, Comparison]


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """The traffic that the figures were measured on."""

    seconds: float
    covered_seconds: float
    answers: int
    gated: int
    workers: int


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The cost with and without gating, and the skip rate above which gating pays."""

    window: MeasuredWindow
    sentence: str
    reference: str
    skip_rate: Interval
    shares: Mapping[str, Interval]
    costs: Mapping[str, CostView | None]
    caveats: tuple[str, ...]


def share(count: int, n: int, *, of: str) -> Interval:
    """A share of the questions of a kind; unknown if there are too few."""
    return wilson(count, n) if n >= MIN_SAMPLE else unknown_interval(n, missing(n, of))


def verdict(ratio: Interval) -> Verdict:
    """`saves` or `costs` only if the whole interval is on that side of 1."""
    if ratio.low is None or ratio.high is None:
        return Verdict.UNKNOWN
    if ratio.high < 1.0:
        return Verdict.SAVES
    return Verdict.COSTS if ratio.low > 1.0 else Verdict.UNCLEAR


_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_SPENT = {"latency": "time", "tokens": "tokens", "money": "money"}


def sentence(cost: str, reference: int, ratio: Interval, even: Interval, skip: Interval) -> str:
    """The verdict as a sentence."""
    always, spent = f"always reading {passages(reference)}", _SPENT[cost]
    found = verdict(ratio)
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return f"Whether gating saves {spent} against {always} is not known yet: that needs {ratio.needs}."
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


def _from_when(found: Verdict, even: Interval, skip: Interval) -> str:
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
    """A share in per cent, with one decimal if it is small."""
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"
