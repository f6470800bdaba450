"""The pictures of a run: schedules by load, and `auto` over the regimes of the sweep."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from bench.schedules.regimes import SATURATED, Row

# Told apart by people who see colours differently, too.
COLOURS = {
    "serial": "#999999",
    "serial+exit": "#E69F00",
    "overlap": "#56B4E9",
    "overlap+exit": "#0072B2",
    "race": "#D55E00",
    "race+exit": "#CC79A7",
    "auto": "#009E73",
}
_STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def draw_loads(rows: Sequence[Row], out: Path) -> None:
    """Mean latency over always-RAG's at each load, and throughput at saturation, on the paper's costs."""
    own = [row for row in rows if row["regime"] == "paper"]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 7), layout="constrained")
        panels = figure.subplots(2, 2, width_ratios=(3, 1))
        for (latency, through), model in zip(panels, ("8B", "32B"), strict=True):
            of_model = [row for row in own if row["model"] == model]
            loads = sorted({row["load"] for row in of_model} - {SATURATED})
            names = [f"{100 * load:.0f} % of saturation" if load else "one at a time" for load in loads]
            _bars(latency, of_model, loads, names, "latency_ratio")
            latency.set_title(f"{model}: mean latency over always-RAG")
            _bars(through, of_model, [SATURATED], ["saturated"], "throughput_ratio")
            through.set_title(f"{model}: throughput")
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(COLOURS))
        figure.savefig(out, dpi=110)


def _bars(axes: Axes, rows: Sequence[Row], loads: Sequence[float], names: Sequence[str], of: str) -> None:
    width = 0.86 / len(COLOURS)
    for place, (schedule, colour) in enumerate(COLOURS.items()):
        by = {row["load"]: row for row in rows if row["schedule"] == schedule}
        x = np.arange(len(loads)) + (place - (len(COLOURS) - 1) / 2) * width
        values = [by[load][of] for load in loads]
        axes.bar(x, values, width * 0.9, color=colour, label=schedule)
        for at, value in zip(x, values, strict=True):
            axes.annotate(
                f"{value:.2f}", (at, value), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7
            )
    axes.axhline(1.0, color="#333333", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(loads)), names)


def draw_sweep(rows: Sequence[Row], out: Path) -> None:
    """Each regime's colour is what auto takes over always-RAG, and the letter the plan that it served most."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(12, 8), layout="constrained")
        panels = figure.subplots(2, 2)
        picture = None
        for line, load in zip(panels, (0.0, 0.8), strict=True):
            for axes, model in zip(line, ("8B", "32B"), strict=True):
                own = [
                    row
                    for row in rows
                    if row["regime"] == "sweep"
                    and row["schedule"] == "auto"
                    and (row["model"], row["load"]) == (model, load)
                ]
                picture = _heat(axes, own)
                where = f"{100 * load:.0f} % of saturation" if load else "one at a time"
                axes.set_title(f"{model}, {where}; worst {max(row['latency_ratio'] for row in own):.3f}")
        figure.colorbar(picture, ax=panels, label="auto's mean latency over always-RAG", shrink=0.7)
        figure.supxlabel("b bypass, s serial, o overlap, r race, +e with early exit; exits catch 0.64", fontsize=10)
        figure.savefig(out, dpi=110)


def _heat(axes: Axes, rows: Sequence[Row]):  # noqa: ANN202 - what matplotlib calls it
    ratios, skips = sorted({row["ret_over_ob"] for row in rows}), sorted({row["skip"] for row in rows})
    grid = np.full((len(skips), len(ratios)), np.nan)
    for row in rows:
        y, x = skips.index(row["skip"]), ratios.index(row["ret_over_ob"])
        grid[y, x] = row["latency_ratio"]
        most = max(row["served"], key=lambda name: row["served"][name])
        letter = most[0] + ("+e" if "exit" in most else "")
        ink = "white" if row["latency_ratio"] < 0.45 else "black"
        axes.text(x, y, f"{row['latency_ratio']:.2f}\n{letter}", ha="center", va="center", fontsize=7, color=ink)
    picture = axes.imshow(grid, origin="lower", aspect="auto", cmap="RdBu_r", norm=TwoSlopeNorm(1.0, 0.2, 1.2))
    axes.set_xticks(range(len(ratios)), [f"{ratio:g}" for ratio in ratios])
    axes.set_yticks(range(len(skips)), [f"{skip:g}" for skip in skips])
    axes.set_xlabel("c_ret / c_ob")
    axes.set_ylabel("skip rate")
    return picture
