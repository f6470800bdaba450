"""From answers to figures: each system's own, and its difference from the fixed actions, with paired intervals.

Intervals are the middle 95 % of a bootstrap over groups, the same draws for all systems, because two phrasings of one
fact are one unit and all systems answered the same questions. Means weigh every group alike, as certificates do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from app.refit.metrics import Draws, Floats, Interval
from app.refit.split import Units
from bench.schedules.verdicts import Bar

FIXED = {5: "always-k5", 1: "always-k1"}
STAGES = ("probe", "embed", "search", "read")
RESAMPLES = 5000
# What must be seen: of always-k5's mean latency, and of the best fixed action's.
OF_FULL, OF_BEST = 0.5, 1.02


@dataclass(frozen=True, slots=True)
class Answer:
    """What one system made of one question."""

    system: str
    question: str
    group: str
    right: bool
    ms: float
    k: int
    reason: str
    schedule: str
    # All tokens that were paid for, and those of them that were for a read nobody wanted.
    tokens: int
    wasted_tokens: int
    # Those of its prompts that the reader still knew from earlier ones: alike for all systems, or one is favoured.
    cached_tokens: float
    calls_used: int
    calls_wasted: int
    # Milliseconds of each stage that ran; side by side they add up to more than the whole.
    stages: Mapping[str, float]


@dataclass(frozen=True, eq=False, slots=True)
class Comparison:
    """All systems on the same questions: rows of one place are the same question everywhere."""

    answers: Mapping[str, Sequence[Answer]]
    draws: Draws
    groups: int

    def column(self, system: str, of: str) -> Floats:
        """One number of each answer."""
        return np.array([float(getattr(answer, of)) for answer in self.answers[system]])

    def mean(self, system: str, of: str) -> Interval:
        """The mean of one number."""
        return self.draws.interval(self.column(system, of))

    def more_right(self, system: str, than: str) -> Interval:
        """How much more accurate a system is than another."""
        return self.draws.interval(self.column(system, "right") - self.column(than, "right"))

    def ratio(self, system: str, than: str, of: str = "ms") -> Interval:
        """The mean of a system over that of another."""
        drawn = self.draws.mean(self.column(system, of)) / self.draws.mean(self.column(than, of))
        low, high = np.percentile(drawn[1:], [2.5, 97.5]).tolist()
        return {"value": float(drawn[0]), "low": low, "high": high}


def compare(answers: Sequence[Answer], resamples: int = RESAMPLES) -> Comparison:
    """Lay the answers side by side; every system must have answered every question once."""
    by: dict[str, dict[str, Answer]] = {}
    for answer in answers:
        of_system = by.setdefault(answer.system, {})
        if answer.question in of_system:
            raise ValueError(f"{answer.system} answered {answer.question} twice")
        of_system[answer.question] = answer
    questions = sorted({answer.question for answer in answers})
    for system, given in by.items():
        if len(given) != len(questions):
            raise ValueError(f"{system} answered {len(given)} of {len(questions)} questions")
    laid = {system: [given[question] for question in questions] for system, given in by.items()}
    first = next(iter(laid.values()))
    names, codes, sizes = np.unique([answer.group for answer in first], return_inverse=True, return_counts=True)
    units = Units(codes.astype(np.intp), sizes.astype(np.float64))
    return Comparison(laid, Draws(units, resamples), len(names))


def figures(found: Comparison, system: str) -> dict[str, Any]:
    """Everything about one system, ready for JSON."""
    answers = found.answers[system]
    ms = found.column(system, "ms")
    own: dict[str, Any] = {
        "n": len(answers),
        "accuracy": found.mean(system, "right"),
        "mean_ms": found.mean(system, "ms"),
        "p50_ms": float(np.median(ms)),
        "p99_ms": float(np.percentile(ms, 99)),
        **{
            name: float(found.column(system, name).mean())
            for name in ("tokens", "wasted_tokens", "cached_tokens", "calls_used", "calls_wasted")
        },
        "k": {f"k{k}": sum(answer.k == k for answer in answers) / len(answers) for k in (0, 1, 5)},
        # By how many it ran for, and how long it then took: a mean over all questions would mix the two.
        "stages": {stage: _stage(answers, stage) for stage in STAGES},
        "read_ms": {f"k{k}": _read_ms(answers, k) for k in (1, 5)},
        "schedules": _shares([answer.schedule for answer in answers]),
        "reasons": _shares([answer.reason for answer in answers]),
    }
    own["against"] = {
        fixed: {
            "accuracy": found.more_right(system, fixed),
            "latency": found.ratio(system, fixed),
            "tokens": found.ratio(system, fixed, "tokens"),
        }
        for fixed in FIXED.values()
        if fixed in found.answers and fixed != system
    }
    return own


def bars(systems: Mapping[str, Mapping[str, Any]], *, best: str, epsilon: float, headline: str) -> list[Bar]:
    """The two bars, for every system that gates; only the headline's are judged."""
    found = []
    for name, own in systems.items():
        if name in FIXED.values():
            continue
        for fixed, least, most in ((FIXED[5], 0.0, OF_FULL), (best, -epsilon, OF_BEST)):
            against = own["against"][fixed]
            accuracy, latency = against["accuracy"], against["latency"]
            wanted = f"accuracy at least {least:+.2f}".replace("+0.00", "as high") + f", time at most {most:g}"
            met = accuracy["value"] >= least - 1e-9 and latency["value"] <= most
            said = f"{accuracy['value']:+.3f} {_span(accuracy, '+.3f')}, {latency['value']:.3f} {_span(latency)}"
            found.append(Bar(f"{name} against {fixed}", wanted, said, met if name == headline else None))
    return found


def as_rows(found: Comparison) -> list[dict[str, Any]]:
    """Every answer as plain data, so that a run can be looked at again."""
    return [asdict(answer) for answers in found.answers.values() for answer in answers]


def _stage(answers: Sequence[Answer], stage: str) -> dict[str, float | None]:
    ran = [answer.stages[stage] for answer in answers if stage in answer.stages]
    return {"share": len(ran) / len(answers), "mean_ms": float(np.mean(ran)) if ran else None}


def _read_ms(answers: Sequence[Answer], k: int) -> float | None:
    """What reading k passages took where nothing ran beside it: alike for all systems, unless a cache favoured one."""
    alone = [a.stages["read"] for a in answers if a.k == k and "read" in a.stages and a.schedule != "race"]
    return float(np.mean(alone)) if alone else None


def _shares(values: Sequence[str]) -> dict[str, float]:
    return {value: values.count(value) / len(values) for value in sorted(set(values))}


def _span(interval: Interval, form: str = ".3f") -> str:
    return f"[{interval['low']:{form}}, {interval['high']:{form}}]"
