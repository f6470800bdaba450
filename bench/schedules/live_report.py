"""The tables and the picture of a live run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.schedules.live_figures import FIXED, STAGES

# Told apart by people who see colours differently, too.
_STAGE_COLOURS = {"probe": "#E69F00", "embed": "#009E73", "search": "#CC79A7", "read": "#56B4E9"}
_STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
Figures = Mapping[str, Any]


def main_table(systems: Mapping[str, Figures]) -> str:
    """Accuracy, latency and what was spent, one line a system, as Markdown."""
    names = ["system", "n", "accuracy", "mean ms"]
    names += [f"{what} {fixed}" for fixed in FIXED.values() for what in ("accuracy −", "time /")]
    names += ["p50", "p99", "tokens", "calls used", "wasted", "k0 / k1 / k5"]
    lines = [_line(names), "|---" * len(names) + "|"]
    for name, own in systems.items():
        cells = [name, str(own["n"]), _with(own["accuracy"]), _with(own["mean_ms"], ".0f")]
        for fixed in FIXED.values():
            against = own["against"].get(fixed)
            cells += [_with(against["accuracy"], "+.3f"), _with(against["latency"])] if against else ["", ""]
        cells += [f"{own['p50_ms']:.0f}", f"{own['p99_ms']:.0f}", f"{own['tokens']:.0f}"]
        cells += [f"{own['calls_used']:.2f}", f"{own['calls_wasted']:.2f}"]
        cells.append(" / ".join(f"{100 * share:.0f} %" for share in own["k"].values()))
        lines.append(_line(cells))
    return "\n".join(lines)


def stage_table(systems: Mapping[str, Figures]) -> str:
    """Where the time goes: each stage's share of the questions and its mean, and reading by k."""
    names = ["system", *STAGES, "read k1", "read k5", "tokens cached", "schedules"]
    lines = [_line(names), "|---" * len(names) + "|"]
    for name, own in systems.items():
        cells = [name]
        for stage in STAGES:
            ran = own["stages"][stage]
            cells.append("" if ran["mean_ms"] is None else f"{ran['mean_ms']:.0f} ms, {100 * ran['share']:.0f} %")
        cells += ["" if own["read_ms"][k] is None else f"{own['read_ms'][k]:.0f} ms" for k in ("k1", "k5")]
        cells.append(f"{own['cached_tokens']:.0f}")
        cells.append(", ".join(f"{which} {100 * share:.0f} %" for which, share in own["schedules"].items()))
        lines.append(_line(cells))
    return "\n".join(lines)


def draw(systems: Mapping[str, Figures], title: str, out: Path) -> None:
    """Accuracy against mean latency, and below it where the time of each system goes."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 8), layout="constrained")
        above, below = figure.subplots(2, 1, height_ratios=(3, 2))
        figure.suptitle(title)
        _plane(above, systems)
        _stages(below, systems)
        figure.savefig(out, dpi=110)


def _plane(axes: Axes, systems: Mapping[str, Figures]) -> None:
    for number, (name, own) in enumerate(systems.items()):
        x, y = own["mean_ms"], own["accuracy"]
        axes.errorbar(
            x["value"],
            y["value"],
            xerr=[[x["value"] - x["low"]], [x["high"] - x["value"]]],
            yerr=[[y["value"] - y["low"]], [y["high"] - y["value"]]],
            fmt="s" if name in FIXED.values() else "o",
            color=f"C{number % 10}",
            elinewidth=0.8,
            label=name,
        )
    axes.set_xlabel("mean milliseconds a question")
    axes.set_ylabel("accuracy")
    axes.set_xlim(left=0)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_title("accuracy against latency; 95 % group-bootstrap intervals of each, up and to the left is better")


def _stages(axes: Axes, systems: Mapping[str, Figures]) -> None:
    names: Sequence[str] = list(reversed(systems))
    left = dict.fromkeys(names, 0.0)
    for stage in STAGES:
        ran = {name: systems[name]["stages"][stage] for name in names}
        widths = [(ran[name]["mean_ms"] or 0.0) * ran[name]["share"] for name in names]
        axes.barh(names, widths, left=list(left.values()), color=_STAGE_COLOURS[stage], label=stage, height=0.7)
        left = {name: left[name] + width for name, width in zip(names, widths, strict=True)}
    for place, name in enumerate(names):
        took = systems[name]["mean_ms"]["value"]
        axes.plot([took, took], [place - 0.42, place + 0.42], color="black", linewidth=1.5)
    axes.set_xlabel("mean milliseconds of each stage; the black line is the whole, less where stages ran side by side")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _with(interval: Mapping[str, float], form: str = ".3f") -> str:
    return f"{interval['value']:{form}} [{interval['low']:{form}}, {interval['high']:{form}}]"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
