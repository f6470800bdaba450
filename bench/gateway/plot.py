"""Plots of a run: rates and latencies side by side, and a minute of overload."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.gateway.figures import Results

# Distinguishable with colour blindness, too.
COLOURS = {"fetchwise": "#0072B2", "aiohttp": "#56B4E9", "httpx": "#E69F00", "litellm": "#999999", "before": "#CC79A7"}
SERVED, SHED, MEMORY, MUTED = "#0072B2", "#D55E00", "#009E73", "#666666"
_STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
}


def draw_results(results: Results, out: Path) -> None:
    """Requests per second with their range over the rounds, and the median latency of a single client."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        rates, alone = figure.subplots(1, 2)
        _grouped(rates, results, "rps", "{:,.0f}", spread=True)
        rates.set_title("Requests per second on one core, with their range over the rounds")
        _grouped(alone, results, "p50_ms_alone", "{:.2f}", spread=False)
        alone.set_title("Median latency at concurrency 1, ms")
        figure.legend(*rates.get_legend_handles_labels(), loc="outside lower center", ncols=len(results))
        figure.savefig(out, dpi=120)


def _grouped(axes: Axes, results: Results, name: str, shown: str, *, spread: bool) -> None:
    paths = list(dict.fromkeys(path for cells in results.values() for path in cells))
    width = 0.8 / len(results)
    for place, (system, cells) in enumerate(results.items()):
        for path, cell in cells.items():
            value = cell[name]
            if value is None:
                continue
            x = paths.index(path) + (place - (len(results) - 1) / 2) * width
            reach = [[value - cell["rps_min"]], [cell["rps_max"] - value]] if spread else None
            # One label per system, for the legend.
            label = system if path == next(iter(cells)) else None
            style = {"ecolor": MUTED, "elinewidth": 1.2}
            axes.bar(x, value, width * 0.92, yerr=reach, color=COLOURS[system], label=label, error_kw=style)
            top = cell["rps_max"] if spread else value
            axes.annotate(
                shown.format(value), (x, top), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8
            )
    axes.set_xticks(range(len(paths)), paths)
    axes.margins(y=0.1)


def draw_overload(result: Mapping[str, Any], out: Path) -> None:
    """Served requests, refused requests and memory, second by second."""
    seconds = result["by_second"]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 7), layout="constrained")
        served, shed, memory = figure.subplots(3, 1, sharex=True)
        _from_zero(served, [second["served"] for second in seconds], SERVED, reach=result["peak_rps"])
        served.axhline(result["peak_rps"], color=MUTED, linestyle="--", linewidth=1)
        served.annotate(
            f"peak {result['peak_rps']:.0f}", (1, result["peak_rps"]), xytext=(0, 4), textcoords="offset points"
        )
        served.set_title(f"Served per second, of {result['offered_rps']:,.0f} requests per second")
        _from_zero(shed, [second["shed"] for second in seconds], SHED)
        shed.set_title(f"Refused per second with 429, in {result['shed_p50_ms']} ms at the median")
        _from_zero(memory, [second["rss_mb"] for second in seconds], MEMORY)
        memory.set_title("Resident memory of the gateway, MB")
        memory.set_xlabel("second")
        figure.savefig(out, dpi=120)


def _from_zero(axes: Axes, values: Sequence[float], colour: str, reach: float = 0.0) -> None:
    """A line over the seconds on an axis that starts at zero."""
    axes.plot(range(1, len(values) + 1), values, color=colour)
    axes.set_ylim(0, 1.15 * max(*values, reach, 1.0))
    axes.margins(x=0.01)
