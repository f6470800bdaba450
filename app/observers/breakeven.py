"""From the rows of a window to what gating costs, what it would cost without, and from which skip rate it pays.

Everything is measured on served traffic. Derived figures are propagated by drawing means and shares many times from
what their samples allow, with a fixed seed: the same rows always give the same figures. Questions are taken as
independent of each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add, truediv
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.decision.breakeven import (
    RARE,
    BreakEven,
    Comparison,
    CostView,
    Covered,
    passages,
    percent,
    sentence,
    share,
    verdict,
)
from app.decision.cost import Tariff, break_even_against, gate_cost
from app.decision.intervals import Interval
from app.decision.policy import actions_of
from app.observers.sampling import Drawn, Floats, combine, means, shares
from app.observers.traffic import Rows, Traffic, actions, select

_SEED = 20_240
_GATED = "questions that the gate decided"
_RETRIEVING = "gated questions that read passages"


@dataclass(frozen=True, eq=False, slots=True)
class Spent:
    """What each of some questions spent on its parts, in one unit."""

    probe: Floats
    retrieval: Floats
    read: Floats


Count = Callable[[Rows], Spent]


def estimate(traffic: Traffic, *, seconds: float, reference: int, tariff: Tariff, ks: Sequence[int]) -> BreakEven:
    """Everything that `/breakeven` says, from one window of traffic."""
    rows = traffic.rows
    gated = select(rows, rows["gated"])
    skip = share(int((gated["k"] == 0).sum()), len(gated), of=_GATED)
    done, above = actions(gated, ks), ks[1:]
    latency = _view("latency", "ms", rows, _latency, skip=skip, ks=above)
    headline = latency.against[f"k{reference}"].sentence
    if not len(gated):
        headline = f"The gate decided no question in the last {seconds:g} s, so there is nothing to compare."
    return BreakEven(
        window=Covered(seconds, round(traffic.covered_seconds, 3), len(rows), len(gated), traffic.workers),
        sentence=headline,
        reference=f"k{reference}",
        skip_rate=skip,
        shares={
            name: share(int((done == index).sum()), len(gated), of=_GATED) for index, name in enumerate(actions_of(ks))
        },
        costs={
            "latency": latency,
            "tokens": _view("tokens", "tokens", rows, _tokens, skip=skip, ks=above),
            "money": None if tariff.is_free else _view("money", "price", rows, _money(tariff), skip=skip, ks=above),
        },
        caveats=_caveats(traffic, seconds, reference),
    )


def _latency(rows: Rows) -> Spent:
    return Spent(_ms(rows["probe_ms"]), _ms(rows["embed_ms"]) + _ms(rows["search_ms"]), _ms(rows["read_ms"]))


def _tokens(rows: Rows) -> Spent:
    probe = _float(rows["probe_prompt"]) + _float(rows["probe_completion"])
    read = _float(rows["read_prompt"]) + _float(rows["read_completion"])
    return Spent(probe, np.zeros(len(rows)), read)


def _money(tariff: Tariff) -> Count:
    def count(rows: Rows) -> Spent:
        fetched = tariff.call + tariff.passage * _float(rows["k"])
        probe, read = (
            tariff.generation(_float(rows[f"{stage}_prompt"]), _float(rows[f"{stage}_completion"]))
            for stage in ("probe", "read")
        )
        return Spent(probe, fetched, read)

    return count


def _view(cost: str, unit: str, rows: Rows, count: Count, *, skip: Interval, ks: Sequence[int]) -> CostView:
    """One cost from all sides. Each begins with the same seed, so that none depends on the others."""
    rng = np.random.default_rng(_SEED)
    gated = select(rows, rows["gated"])
    (probe,) = means(rng, count(gated).probe)
    probe = probe.wanting(_GATED)
    read = {k: _reading(rng, count(_that_read(rows, k))) for k in ks}
    parts = {"cb": probe.estimate()}
    always = {}
    for k, (retrieval, reading) in read.items():
        retrieval, reading = retrieval.wanting(_reading_of(k)), reading.wanting(_reading_of(k))  # noqa: PLW2901
        parts |= {f"ret{k}": retrieval.estimate(), f"ob{k}": reading.estimate()}
        always[k] = combine(add, retrieval, reading)
    skipped, retrieving = _retrieving(rng, gated, {k: combine(add, *both) for k, both in read.items()})
    gate = probe if retrieving is None else combine(gate_cost, probe, skipped, retrieving)
    against = {}
    for k in ks:
        ratio = _positive(always[k], lambda a: combine(truediv, gate, a)).estimate()
        even = _break_even(probe, retrieving, always[k]).estimate()
        against[f"k{k}"] = Comparison(
            always[k].estimate(), even, ratio, verdict(ratio), sentence(cost, k, ratio, even, skip)
        )
    return CostView(unit, parts, gate.estimate(), against)


def _reading(rng: np.random.Generator, spent: Spent) -> tuple[Drawn, Drawn]:
    retrieval, read = means(rng, spent.retrieval, spent.read)
    return retrieval, read


def _reading_of(k: int) -> str:
    return f"questions that read {passages(k)}"


def _that_read(rows: Rows, k: int) -> Rows:
    """The questions that read k passages, whoever chose k: what k costs without a gate."""
    return select(rows, rows["k"] == k)


def _retrieving(rng: np.random.Generator, gated: Rows, always: dict[int, Drawn]) -> tuple[Drawn, Drawn | None]:
    """The share of gated questions that read nothing, and what the others pay for what they read; None without any."""
    counts = {k: int((gated["k"] == k).sum()) for k in always}
    taken = [k for k in always if counts[k]]
    skipped, *how_often = shares(rng, [len(gated) - sum(counts.values()), *(counts[k] for k in taken)])
    if not taken:
        return skipped, None
    costs = [always[k] if counts[k] <= RARE * len(gated) else always[k].wanting(_reading_of(k)) for k in taken]

    def mean(*both: Any) -> Any:  # noqa: ANN401 - figures, or draws of them
        weights, amounts = both[: len(costs)], both[len(costs) :]
        return sum(w * a for w, a in zip(weights, amounts, strict=True)) / sum(weights)

    return skipped, combine(mean, *how_often, *costs)


def _break_even(probe: Drawn, retrieving: Drawn | None, always: Drawn) -> Drawn:
    if retrieving is None:
        return Drawn(np.nan, np.empty(0), probe.n, _RETRIEVING)
    return _positive(
        retrieving,
        lambda r: combine(lambda *amounts: np.maximum(0.0, break_even_against(*amounts)), probe, r, always),
    )


def _positive(divisor: Drawn, quotient: Callable[[Drawn], Drawn]) -> Drawn:
    """A quotient, or what it lacks where the divisor is nothing, as all is that has no price."""
    if divisor.needs is None and divisor.value <= 0.0:
        return Drawn(np.nan, np.empty(0), divisor.n, "a reading that costs anything")
    return quotient(divisor)


def _caveats(traffic: Traffic, seconds: float, reference: int) -> tuple[str, ...]:
    said = []
    reading = _that_read(traffic.rows, reference)
    chosen = float(reading["gated"].mean()) if len(reading) else 0.0
    if chosen > RARE:
        said.append(
            f"{percent(chosen)} of the questions behind the cost of k{reference} were sent there by the gate. Those "
            "are the harder ones, so reading for every question may cost less than is shown."
        )
    if traffic.overrun:
        said.append(
            f"More questions came than the workers remember: the window covers the last {traffic.covered_seconds:.0f} "
            f"of {seconds:g} s."
        )
    return tuple(said)


def _ms(values: NDArray[Any]) -> Floats:
    """Milliseconds of a stage, none where it did not run."""
    return np.nan_to_num(_float(values))


def _float(values: NDArray[Any]) -> Floats:
    return values.astype(np.float64)
