"""One regime, every schedule: the same questions at the same times, and each schedule's figures over always-RAG's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from app.decision.cost import Exit
from app.decision.schedule import Plan, Schedule
from bench.schedules.auto import auto_for
from bench.schedules.engine import StepModel
from bench.schedules.gateway import Answered, Fixed, Simulation
from bench.schedules.workload import Workload

ALWAYS = "always-RAG"
PLANS: dict[str, Plan | None] = {
    ALWAYS: None,
    "serial": Plan(Schedule.SERIAL),
    "serial+exit": Plan(Schedule.SERIAL, exits=True),
    "overlap": Plan(Schedule.OVERLAP),
    "overlap+exit": Plan(Schedule.OVERLAP, exits=True),
    "race": Plan(Schedule.RACE),
    "race+exit": Plan(Schedule.RACE, exits=True),
}
# As many at a time keep the reader full.
CROWD = 512
# Questions that `auto` learns from before it first chooses, and those after which what its learning left in line is
# gone; figures count the questions after these.
WARM_UP, SETTLED = 1000, 1500


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to, by the questions that count."""

    mean: float
    p50: float
    p99: float
    tokens: float
    wasted_tokens: float
    calls: float
    wasted_calls: float
    # A second.
    throughput: float
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """One schedule at one load; for `auto`, the plans that it came to serve, by share of its looks."""

    schedule: str
    figures: Figures
    served: Mapping[str, float] = field(default_factory=dict)


def saturation(work: Workload, steps: StepModel) -> float:
    """Questions a second that always-RAG answers at most."""
    done = Simulation(work, steps, Fixed(None), servers=CROWD).run(at_a_time=CROWD)
    return _throughput(done, len(done) // 4)


def arrivals(work: Workload, rate: float, rng: np.random.Generator) -> list[float]:
    """Times, in milliseconds, of a Poisson stream of so many questions a second."""
    times: list[float] = np.cumsum(rng.exponential(1000.0 / rate, len(work))).tolist()
    return times


def run(
    schedule: str,
    work: Workload,
    steps: StepModel,
    *,
    at: Sequence[float] | None,
    crowd: int = 1,
    exit_: Exit | None = None,
) -> Run:
    """Answer the questions under one schedule: at those times, or with a crowd that asks again once answered."""
    auto = auto_for(work, steps, exit_, warm_up=WARM_UP) if schedule == "auto" else None
    steering = auto or Fixed(PLANS[schedule])
    simulation = Simulation(work, steps, steering, servers=_servers(work, at))
    done = simulation.run(None if at is None else list(at), at_a_time=crowd)
    served: dict[str, float] = {}
    looks = auto.plans if auto else []
    for plan in looks:
        name = "bypass" if plan.bypass else plan.name
        served[name] = served.get(name, 0.0) + 1.0 / len(looks)
    return Run(schedule, _figures(done, work), served)


def _servers(work: Workload, at: Sequence[float] | None) -> int:
    """Twice as many as are busy with a call for every question, so that retrieval is a delay and no bottleneck."""
    if at is None:
        return CROWD
    rate = len(at) / at[-1]
    return max(8, math.ceil(2.0 * rate * max(work.retrieval_ms.values())))


def _figures(done: Sequence[Answered], work: Workload) -> Figures:
    counted = [one for one in done if one.number >= SETTLED]
    latency = np.array([one.latency for one in counted])
    accuracy = float(np.mean([work.right[one.k][one.number] for one in counted])) if work.right else None
    return Figures(
        mean=float(latency.mean()),
        p50=float(np.median(latency)),
        p99=float(np.percentile(latency, 99)),
        tokens=float(np.mean([one.tokens for one in counted])),
        wasted_tokens=float(np.mean([one.wasted_tokens for one in counted])),
        calls=float(np.mean([one.calls for one in counted])),
        wasted_calls=float(np.mean([one.wasted_calls for one in counted])),
        throughput=_throughput(done, SETTLED),
        accuracy=accuracy,
    )


def _throughput(done: Sequence[Answered], since: int) -> float:
    """Questions a second once so many are done, and until the last of a crowd are waited for."""
    ends = sorted(one.arrived + one.latency for one in done)
    last = len(ends) - CROWD
    return 1000.0 * (last - since) / (ends[last] - ends[since])


def compare(model: str, regime: str, load: float, runs: Sequence[Sequence[Run]], **facts: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - facts are written down as they are
    """One row a schedule from several replications, each of which has every schedule, always-RAG first."""
    rows = []
    for place in range(1, len(runs[0])):
        own, base = ([one[i].figures for one in runs] for i in (place, 0))

        def ratios(name: str, own: list[Figures] = own, base: list[Figures] = base) -> list[float]:
            return [getattr(a, name) / getattr(b, name) for a, b in zip(own, base, strict=True)]

        mean, low, high = _interval(ratios("mean"))
        accuracy = [a.accuracy - b.accuracy for a, b in zip(own, base, strict=True) if a.accuracy is not None]  # type: ignore[operator]
        rows.append(
            {
                "model": model,
                "regime": regime,
                "load": load,
                "schedule": runs[0][place].schedule,
                "latency_ratio": round(mean, 4),
                "tokens_ratio": round(float(np.mean(ratios("tokens"))), 4),
                # By construction of a made-up regime, whose skip rate is that of matched accuracy.
                "accuracy_delta": round(float(np.mean(accuracy)), 4) if accuracy else 0.0,
                "retrieval_calls_ratio": round(float(np.mean(ratios("calls"))), 4),
                "latency_low": round(low, 4),
                "latency_high": round(high, 4),
                "p50_ratio": round(float(np.mean(ratios("p50"))), 4),
                "p99_ratio": round(float(np.mean(ratios("p99"))), 4),
                "throughput_ratio": round(float(np.mean(ratios("throughput"))), 4),
                "accuracy_measured": bool(accuracy),
                "served": _mean_served([one[place].served for one in runs]),
                "figures": _mean_figures(own),
                **facts,
            }
        )
    return rows


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval over replications, by Student's t; a single one has no width."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, mean, mean
    t = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}[len(values)]
    half = t * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def _mean_served(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for one in each for name in one})
    return {name: round(sum(one.get(name, 0.0) for one in each) / len(each), 3) for name in names}


def _mean_figures(own: Sequence[Figures]) -> dict[str, float]:
    rows = [asdict(one) for one in own]
    return {
        name: round(float(np.mean([row[name] for row in rows])), 3) for name in rows[0] if rows[0][name] is not None
    }
