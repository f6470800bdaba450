"""From samples to figures: percentiles, the JSON results, the limits that must hold, and Markdown tables."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

# The gateway of another checkout, measured in the same run.
BEFORE = "before"
# A cell of the result: one system on one path.
Figures = dict[str, Any]
Results = Mapping[str, Mapping[str, Figures]]


@dataclass(frozen=True)
class Round:
    """One measurement under load and one at concurrency 1, of one system on one path; latencies in seconds."""

    rps: float
    loaded: Sequence[float]
    alone: Sequence[float]
    errors: int
    # CPU time of the system's process per good reply under load; steadier than the rate on a shared machine.
    cpu_ms: float


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    # Rounded up in integers: in floats, 0.07 * 100 is a little above 7.
    rank = -(-round(share * 1e6) * len(ordered) // 10**6)
    return ordered[max(rank, 1) - 1]


def figures(rounds: Sequence[Round]) -> Figures:
    """The results of one system on one path: the median over rounds, latencies over all rounds."""
    rates = [one.rps for one in rounds]
    loaded = [took for one in rounds for took in one.loaded]
    alone = [took for one in rounds for took in one.alone]
    return {
        "rps": _short(statistics.median(rates)),
        "p50_ms": _ms(loaded, 0.5),
        "p99_ms": _ms(loaded, 0.99),
        "errors": sum(one.errors for one in rounds),
        "rps_min": _short(min(rates)),
        "rps_max": _short(max(rates)),
        "p50_ms_alone": _ms(alone, 0.5),
        "p99_ms_alone": _ms(alone, 0.99),
        "cpu_ms": _short(statistics.median(one.cpu_ms for one in rounds)),
        "requests": len(loaded) + len(alone),
        "rounds": [_short(rate) for rate in rates],
        "cpu_ms_rounds": [_short(one.cpu_ms) for one in rounds],
    }


def _ms(seconds: Sequence[float], share: float) -> float | None:
    return _short(percentile(seconds, share) * 1000.0) if seconds else None


def _short(value: float) -> float:
    return float(f"{value:.4g}")


@dataclass(frozen=True)
class Bar:
    """A limit that must hold; `measured` is None if a system was not measured."""

    what: str
    wanted: str
    measured: float | None
    met: bool | None
    # By round, if the two sides of a ratio were measured in turn.
    low: float | None = None
    high: float | None = None


def bars(results: Results, direct_p50_ms: float) -> list[Bar]:
    """The limits of a run; `direct_p50_ms` is the reader's own median at concurrency 1, without a gateway."""
    alone = results.get("fetchwise", {}).get("k0", {}).get("p50_ms_alone")
    added = None if alone is None else _short(alone - direct_p50_ms)
    chats = [results.get(name, {}).get("chat", {}).get("p50_ms_alone") for name in ("fetchwise", "aiohttp")]
    over = None if None in chats else _short(chats[0] - chats[1])
    return [
        _ratio(results, "k0", "aiohttp", 0.9),
        _ratio(results, "k5", "aiohttp", 0.9),
        _ratio(results, "k0", "litellm", 15.0),
        Bar("k0, added median latency at concurrency 1, ms", "< 2", added, None if added is None else added < 2.0),
        _ratio(results, "chat", "aiohttp", 0.6),
        Bar(
            "chat, added median latency at concurrency 1 over aiohttp's, ms",
            "< 3",
            over,
            None if over is None else over < 3.0,
        ),
        *(_cpu_ratio(results, path) for path in results.get(BEFORE, {})),
    ]


def _cpu_ratio(results: Results, path: str) -> Bar:
    """CPU time per reply over that of the other checkout: the median of the rounds' ratios."""
    what, wanted = f"{path}, CPU per reply over that of `{BEFORE}`", "<= 1.05"
    ours, theirs = results.get("fetchwise", {}).get(path), results[BEFORE][path]
    by_round = [a / b for a, b in zip(ours["cpu_ms_rounds"], theirs["cpu_ms_rounds"], strict=True) if b] if ours else []
    if not by_round:
        return Bar(what, wanted, None, None)
    ratio = statistics.median(by_round)
    return Bar(what, wanted, _short(ratio), ratio <= 1.05, _short(min(by_round)), _short(max(by_round)))


def _ratio(results: Results, path: str, other: str, least: float) -> Bar:
    what, wanted = f"{path}, requests per second over {other}'s", f">= {least:g}"
    ours, theirs = results.get("fetchwise", {}).get(path), results.get(other, {}).get(path)
    if not ours or not theirs or not theirs["rps"]:
        return Bar(what, wanted, None, None)
    ratio = ours["rps"] / theirs["rps"]
    by_round = [a / b for a, b in zip(ours["rounds"], theirs["rounds"], strict=True) if b]
    return Bar(what, wanted, _short(ratio), ratio >= least, _short(min(by_round)), _short(max(by_round)))


def bars_json(found: Sequence[Bar], direct_p50_ms: float) -> dict[str, Any]:
    """The limits as JSON."""
    return {"direct_p50_ms_alone": _short(direct_p50_ms), "bars": [asdict(bar) for bar in found]}


def written(result: dict[str, Any], found: Sequence[Bar]) -> dict[str, Any]:
    """The contents of the result file: the figures, then whether they are good enough."""
    return {**result, "bars": [asdict(bar) for bar in found]}


def table(results: Results) -> str:
    """The results as a Markdown table."""
    titles = (
        "system",
        "path",
        "req/s",
        "min-max",
        "p50 ms",
        "p99 ms",
        "p50 ms alone",
        "p99 ms alone",
        "CPU ms",
        "errors",
    )
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for system, paths in results.items():
        for path, cell in paths.items():
            spread = f"{cell['rps_min']:.0f}-{cell['rps_max']:.0f}"
            times = (cell[name] for name in ("p50_ms", "p99_ms", "p50_ms_alone", "p99_ms_alone", "cpu_ms"))
            shown = " | ".join("" if ms is None else f"{ms:.2f}" for ms in times)
            lines.append(f"| {system} | {path} | {cell['rps']:.0f} | {spread} | {shown} | {cell['errors']} |")
    return "\n".join(lines)


def bars_table(found: Sequence[Bar]) -> str:
    """The limits as a Markdown table."""
    lines = ["| what | wanted | measured | by round | met |", "|---" * 5 + "|"]
    for bar in found:
        measured = "not measured" if bar.measured is None else f"{bar.measured:.2f}"
        by_round = "" if bar.low is None else f"{bar.low:.2f}-{bar.high:.2f}"
        met = "" if bar.met is None else "yes" if bar.met else "NO"
        lines.append(f"| {bar.what} | {bar.wanted} | {measured} | {by_round} | {met} |")
    return "\n".join(lines)


def recovered_after(at: Sequence[float], *, rate: float, window: float) -> float | None:
    """The end of the first window with replies at this rate, or None; `at` are seconds, in order."""
    needed = math.ceil(rate * window)
    for last in range(needed - 1, len(at)):
        if at[last] - max(at[last - needed + 1], 0.0) <= window:
            return round(max(at[last], 0.0), 3)
    return None


def overload_bars(result: Mapping[str, Any]) -> list[Bar]:
    """The limits of an overload run."""
    served = result["served_rps"] / result["peak_rps"]
    shed, back = result["shed_p50_ms"], result["recovered_after_s"]
    grown = growth([second["rss_mb"] for second in result["by_second"]])
    return [
        Bar("served under overload, of the peak", ">= 0.9", _short(served), served >= 0.9),
        Bar("429s, median ms", "< 50", shed, shed is not None and shed < 50.0),
        Bar("neither served nor refused", "0", result["errors"], result["errors"] == 0),
        Bar("memory at the end, of that at the beginning", "<= 1.05", _short(grown), grown <= 1.05),
        Bar("seconds until 0.9 of the peak is served again", "<= 2", back, back is not None and back <= 2.0),
    ]


def growth(memory: Sequence[float]) -> float:
    """The mean of the last sixth over the mean of the second sixth: buffers fill in the first."""
    part = max(len(memory) // 6, 1)
    return statistics.mean(memory[-part:]) / statistics.mean(memory[part : 2 * part] or memory[:part])


def attack_bars(result: Mapping[str, Any]) -> list[Bar]:
    """The limits of an attack: honest questions against those without one."""
    quiet, attacked = result["quiet"], result["attacked"]
    lost = attacked["sent"] - attacked["served"] + quiet["sent"] - quiet["served"]
    slower = attacked["p99_ms"] / quiet["p99_ms"] if attacked["p99_ms"] and quiet["p99_ms"] else None
    grown = attacked["rss_mb"] - quiet["rss_mb"]
    return [
        Bar("honest questions without an answer", "0", lost, lost == 0),
        Bar("their p99, of that without an attack", "<= 3", slower and _short(slower), bool(slower and slower <= 3.0)),
        Bar("more memory, MB", "<= 100", _short(grown), grown <= 100.0),
    ]
