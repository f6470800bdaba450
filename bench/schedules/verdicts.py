"""What must be seen of the figures, whether it was, and the tables that a person reads."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.decision.breakeven import share
from app.decision.cost import Exit
from bench.schedules.regimes import CAUGHT, SATURATED, Row


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that must be seen; `met` is None where it is reported and not judged."""

    what: str
    wanted: str
    found: str
    met: bool | None


def bars(rows: Sequence[Row], exits: Exit | None, retrieving: int = 0) -> list[Bar]:
    """Every bar, in the order in which they are asked for; `exits` as measured on so many retrieving questions."""

    def ratio(
        model: str, schedule: str, *, regime: str = "paper", load: float = 0.0, of: str = "latency_ratio"
    ) -> float:
        wanted = {"model": model, "schedule": schedule, "regime": regime, "load": load}
        return float(next(row[of] for row in rows if wanted.items() <= row.items()))

    serial, small, large = ratio("8B", "serial"), ratio("8B", "overlap+exit"), ratio("32B", "overlap+exit")
    found = [
        Bar("serial, 8B, idle", "about 1.27", f"{serial:.3f}", abs(serial - 1.27) <= 0.01),
        Bar(f"overlap + early exit, 8B, idle, exits catch {CAUGHT:g}", "at most 0.95", f"{small:.3f}", small <= 0.95),
        Bar(f"overlap + early exit, 32B, idle, exits catch {CAUGHT:g}", "at most 0.80", f"{large:.3f}", large <= 0.80),
    ]
    if exits is not None:
        caught = share(round(exits.caught * retrieving), retrieving, of="retrieving questions")
        measured = {model: ratio(model, "overlap+exit", regime="paper, exits as measured") for model in ("8B", "32B")}
        found += [
            Bar(
                "share of retrieving questions that exits catch, demo table's test split",
                f"at least {CAUGHT:g}",
                f"{exits.caught:.3f} ({caught.low:.2f} to {caught.high:.2f}), after {exits.spent:.2f} of the probe; "
                f"{exits.lost:.3f} of the others lost",
                exits.caught >= CAUGHT,
            ),
            Bar(
                "overlap + early exit with exits that catch as many, idle",
                "reported",
                ", ".join(f"{model} {value:.3f}" for model, value in measured.items()),
                None,
            ),
        ]
    for load, judged in ((0.0, True), (0.8, False)):
        swept = [r for r in rows if r["regime"].startswith("sweep") and r["schedule"] == "auto" and r["load"] == load]
        worst = max(swept, key=lambda row: row["latency_ratio"])
        where = f"{worst['model']}, c_ret/c_ob {worst['ret_over_ob']:g}, skip {worst['skip']:g}"
        wanted = "at most 1.02" if judged else "reported"
        value = worst["latency_ratio"]
        found.append(
            Bar(
                f"auto, the worst of {len(swept)} regimes, {_load(load)}",
                wanted,
                f"{value:.3f} ({where})",
                value <= 1.02 if judged else None,
            )
        )
    for model in ("8B", "32B"):
        through = {s: ratio(model, s, load=SATURATED, of="throughput_ratio") for s in ("race", "overlap+exit")}
        loaded = {s: ratio(model, s, load=0.8) for s in ("race", "overlap+exit", "auto")}
        found.append(
            Bar(
                f"{model} under load: latency at 80 %, and throughput at saturation",
                "reported",
                f"race {loaded['race']:.3f} and {through['race']:.3f}; overlap + early exit "
                f"{loaded['overlap+exit']:.3f} and {through['overlap+exit']:.3f}; auto {loaded['auto']:.3f}",
                None,
            )
        )
    raced = [
        r for r in rows if r["schedule"] == "auto" and r["load"] == 0.8 and any("race" in name for name in r["served"])
    ]
    found.append(Bar("regimes at 80 % load in which auto chooses race", "none", str(len(raced)), not raced))
    return found


def table(rows: Sequence[Row], regime: str, model: str) -> str:
    """One regime as a Markdown table: mean latency over always-RAG's at each load, and what else changes."""
    own = [row for row in rows if row["regime"] == regime and row["model"] == model]
    loads = sorted({row["load"] for row in own})
    through = any(load == SATURATED for load in loads)
    names = ["schedule", *(_load(load) for load in loads if load != SATURATED), "p99", "tokens", "calls", "accuracy"]
    lines = [
        "| " + " | ".join([*names, *(["throughput"] if through else [])]) + " |",
        "|---" * (len(names) + through) + "|",
    ]
    for schedule in dict.fromkeys(row["schedule"] for row in own):
        by = {row["load"]: row for row in own if row["schedule"] == schedule}
        idle = by[min(by)]
        cells = [schedule, *(_with_interval(by[load]) for load in loads if load != SATURATED)]
        busiest = by[max(load for load in by if load != SATURATED)]
        cells += [f"{busiest['p99_ratio']:.2f}", f"{idle['tokens_ratio']:.3f}", f"{idle['retrieval_calls_ratio']:.3f}"]
        cells.append(f"{idle['accuracy_delta']:+.3f}" if idle["accuracy_measured"] else "matched")
        if through:
            cells.append(f"{by[SATURATED]['throughput_ratio']:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def variants(rows: Sequence[Row]) -> str:
    """The paper's costs with other exits and under other assumptions: overlap with exits, and race, in one table."""
    lines = ["| | model | load | serial | overlap+exit | race | auto |", "|---|---|---|---|---|---|---|"]
    own = [row for row in rows if row["regime"].startswith("paper, ")]
    for regime, model, load in dict.fromkeys((row["regime"], row["model"], row["load"]) for row in own):
        found = {r["schedule"]: r for r in own if (r["regime"], r["model"], r["load"]) == (regime, model, load)}
        names = ("serial", "overlap+exit", "race", "auto")
        cells = [f"{found[name]['latency_ratio']:.3f}" if name in found else "" for name in names]
        lines.append(f"| {regime.removeprefix('paper, ')} | {model} | {_load(load)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def bar_table(found: Sequence[Bar]) -> str:
    """The bars as a Markdown table."""
    said = {True: "met", False: "NOT met", None: ""}
    lines = ["| must be seen | wanted | found | |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {b.what} | {b.wanted} | {b.found} | {said[b.met]} |" for b in found)])


def as_json(found: Sequence[Bar]) -> list[dict[str, Any]]:
    """The bars as plain data."""
    return [asdict(bar) for bar in found]


def _with_interval(row: Row) -> str:
    half = (row["latency_high"] - row["latency_low"]) / 2.0
    return f"{row['latency_ratio']:.3f}" + (f" ± {half:.3f}" if half >= 0.0005 else "")


def _load(load: float) -> str:
    return f"{100 * load:.0f} % load" if load else "idle"
